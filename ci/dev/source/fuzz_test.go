package source

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const fuzzFixture = `
-- go.mod --
module fixture

go 1.22
-- a/a_test.go --
package a

import "testing"

func FuzzSound(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {})
}

func TestNotFuzz(t *testing.T) { t.Error("must not run") }
-- nested/go.mod --
module fixture/nested

go 1.22
-- nested/n_test.go --
package nested

import "testing"

func FuzzCrash(f *testing.F) {
	f.Add("seed")
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) != 4 {
			t.Error("cannot take this")
		}
	})
}
`

func TestFuzzTargets(t *testing.T) {
	root := unpack(t, fuzzFixture)
	targets, err := fuzzTargets(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range targets {
		names = append(names, f.pkg+" "+f.name)
	}
	if d := cmp.Diff([]string{"fixture/a FuzzSound", "fixture/nested FuzzCrash"}, names); d != "" {
		t.Fatal(d)
	}
	var said string
	for d := 100 * time.Millisecond; d < time.Minute; d *= 4 { // a busy machine takes longer to start the fuzzer
		if said, err = targets[0].runTarget(t.Context(), d); err == nil {
			break
		}
	}
	if err != nil || !strings.Contains(said, " execs") {
		t.Errorf("runTarget(FuzzSound) = %q, %v; want a count of execs", said, err)
	}
	_, err = targets[1].runTarget(t.Context(), 20*time.Second)
	if err == nil || !strings.Contains(err.Error(), "testdata/fuzz/FuzzCrash/") {
		t.Errorf("runTarget(FuzzCrash) = %v; want an error with the file of the input", err)
	}
}

func TestFuzzTargetsOfBrokenPackage(t *testing.T) {
	root := unpack(t, strings.Replace(fuzzFixture, "package a", "package a\n\nvar x int = nil", 1))
	if _, err := fuzzTargets(t.Context(), root); err == nil || !strings.Contains(err.Error(), "fixture/a") {
		t.Errorf("fuzzTargets() = %v; want an error about fixture/a", err)
	}
}

func TestOutOfTime(t *testing.T) {
	for output, want := range map[string]bool{
		"fuzz: elapsed: 0s, execs: 1\n    context deadline exceeded\n":                                          true,
		"    context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzX/1\n":                   false,
		"    Failing input written to testdata/fuzz/FuzzX/1\n    context deadline exceeded":                     false,
		"failure while testing seed corpus entry: FuzzX/seed#0\n    context deadline exceeded":                  false,
		"    x_test.go:3: dial: context deadline exceeded\n    x_test.go:4: got 1 answers; want 2\nFAIL\tp\t1s": false,
	} {
		if got := outOfTime(output); got != want {
			t.Errorf("outOfTime(%q) = %v; want %v", output, got, want)
		}
	}
}
