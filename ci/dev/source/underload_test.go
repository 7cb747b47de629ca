package source

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestFlaky fails in its 23rd round. Each test counts its rounds in a file.
const flaky = `
-- go.mod --
module slipway

go 1.22
-- flaky/flaky_test.go --
package flaky

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"slipway/slow"
)

func count(t *testing.T) int64 {
	f, err := os.OpenFile(filepath.Join("..", t.Name()), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.WriteString("x")
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestFlaky(t *testing.T) {
	time.Sleep(time.Millisecond)
	if count(t) == 23 {
		t.Error("Flaky = 1; want 2")
	}
}

var table = []func(*testing.T){func(t *testing.T) { os.WriteFile(filepath.Join(t.TempDir(), "x"), nil, 0o755) }}

func TestProgram(t *testing.T) {
	count(t)
	table[0](t)
}

func TestByHelper(t *testing.T) {
	count(t)
	slow.Wait(t)
}

func TestSkipped(t *testing.T) {
	defer count(t)
	time.Sleep(1)
	t.Skip("not here")
}

func TestFolder(t *testing.T) {
	count(t)
	os.MkdirAll(t.TempDir(), 0o755)
}
-- slow/slow.go --
package slow

import (
	"testing"
	"time"
)

func Wait(t *testing.T) { time.Sleep(1) }
-- plain/plain_test.go --
package plain

import "testing"

func TestPlain(t *testing.T) {}
`

func TestUnderLoad(t *testing.T) {
	root := unpack(t, flaky)
	counts := func() (all string) {
		for _, name := range []string{"TestFlaky", "TestProgram", "TestByHelper", "TestSkipped", "TestFolder"} {
			data, _ := os.ReadFile(filepath.Join(root, name))
			all += strings.Repeat(" ", min(1, len(all))) + string(rune('0'+len(data)/10)) + string(rune('0'+len(data)%10))
		}
		return all
	}
	for _, run := range []struct {
		rounds        int
		each          time.Duration
		counts, lines string
		failed        bool
	}{
		{5, time.Hour, "05 05 05 01 00", `^slipway/flaky +4 tests, 5 rounds each, 1 skipped, 0 failed\n$`, false},
		{30, 1, "06 06 06 02 00", `0 failed\n( +slipway/flaky Test(ByHelper|Flaky|Program) had time for 6 of them\n){3}$`, false},
		{30, time.Hour, "23 30 30 03 00", `^slipway/flaky +4 tests, 30 rounds each, 1 skipped, 1 failed\nFAIL  slipway/flaky TestFlaky after 21 rounds: see build/soak/tests/slipway.flaky.TestFlaky.log\n$`, true},
		{30, time.Hour, "32 30 30 04 00", `1 skipped, 0 failed\n$`, false},
	} {
		var out bytes.Buffer
		err := loadRun{rounds: run.rounds, each: run.each, wanted: regexp.MustCompile("Test")}.underLoad(t.Context(), &out, root)
		if (err != nil) != run.failed || !regexp.MustCompile(run.lines).Match(out.Bytes()) {
			t.Errorf("%d rounds: %v\n%s\nwant %s", run.rounds, err, &out, run.lines)
		}
		if got := counts(); got != run.counts {
			t.Errorf("after %d rounds the tests ran %s times; want %s", run.rounds, got, run.counts)
		}
		log, err := os.ReadFile(filepath.Join(root, loadDir, "slipway.flaky.TestFlaky.log"))
		if run.failed && !strings.Contains(string(log), "Flaky = 1; want 2") || !run.failed && err == nil {
			t.Errorf("after %d rounds the log of TestFlaky is %q, %v", run.rounds, log, err)
		}
	}
	if err := (loadRun{rounds: 1, each: time.Hour, wanted: regexp.MustCompile("TestPlain")}).underLoad(t.Context(), new(bytes.Buffer), root); err == nil || !strings.Contains(err.Error(), "TestPlain") {
		t.Errorf("underLoad of TestPlain = %v; want that it does not wait", err)
	}
}
