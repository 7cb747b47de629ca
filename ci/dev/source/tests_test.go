package source

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"slipway/ci/report/junit"
	"slipway/flash/flashtest"
	"slipway/layers/run"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// unpack writes the files of a txtar archive into a new folder.
func unpack(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range txtar.Parse([]byte(archive)).Files {
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Every way in which a test or a package can come out, in two modules.
const outcomes = `
-- go.mod --
module fixture

go 1.22
-- good/good_test.go --
package good

import "testing"

func TestGood(t *testing.T) {
	t.Run("a", func(t *testing.T) {})
	t.Run("b/with a slash", func(t *testing.T) {})
}

func TestNeeds(t *testing.T) { t.Skip("needs a moon:\ninstall moon") }

func FuzzGood(f *testing.F) {
	f.Add("seed")
	f.Fuzz(func(t *testing.T, s string) {})
}
-- bad/bad_test.go --
package bad

import "testing"

func TestBad(t *testing.T) {
	t.Run("sub (1)", func(t *testing.T) { t.Error("got 1; want 2") })
	t.Run("fine", func(t *testing.T) {})
}
-- panics/p_test.go --
package panics

import "testing"

func TestPanic(t *testing.T) { panic("out of cheese") }
-- exits/e_test.go --
package exits

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) { fmt.Println("no setup"); os.Exit(3) }
-- broken/b_test.go --
package broken

import "testing"

func TestX(t *testing.T) { undefinedName() }
-- silent/silent.go --
package silent
-- races/r_test.go --
package races

import "testing"

func TestRace(t *testing.T) {
	n, done := 0, make(chan bool)
	go func() { n++; done <- true }()
	n++
	<-done
}
-- build/ignored/i_test.go --
package ignored
-- pinned/pinned_test.go --
package pinned

import (
	"runtime"
	"testing"
)

func TestProcessors(t *testing.T) {
	if n := runtime.NumCPU(); n != 1 {
		t.Fatalf("the test may use %d processors; want 1", n)
	}
}
-- nested/go.mod --
module fixture/nested

go 1.22
-- nested/n_test.go --
package nested

import "testing"

func TestNested(t *testing.T) { t.Fatal("nested too") }
`

func TestRunOfEveryOutcome(t *testing.T) {
	root := unpack(t, strings.ReplaceAll(outcomes, "-- build/ignored/", "-- testdata/"))
	out := t.TempDir()
	results, err := runModules(t.Context(), root, out, TestOptions{Shuffle: true})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	printSummary(&text, results)
	compareLines(t, text.String(), []string{
		`without tests: fixture/silent`,
		`SKIP  fixture/good TestNeeds: needs a moon: install moon`,
		`FAIL  fixture/bad TestBad/sub_\(1\) \(0.0s\)`,
		`  \|     bad_test.go:6: got 1; want 2`,
		`  again: go test -tags=mage -race -shuffle=\d+ -run '\^TestBad\$/\^sub_\\\(1\\\)\$' fixture/bad`,
		`FAIL  fixture/broken  \(0.0s\)`,
		`  \| .*b_test.go:5:28: undefined: undefinedName`,
		`FAIL  fixture/exits  `,
		`  \| no setup`,
		`FAIL  fixture/panics TestPanic`,
		`  \| panic: out of cheese`,
		`FAIL  fixture/races TestRace`,
		`  \| WARNING: DATA RACE`,
		`FAIL  fixture/nested TestNested`,
		`  again: go -C nested test -tags=mage -race -shuffle=\d+ -run '\^TestNested\$' fixture/nested`,
		`5 passed, 6 failed, 1 skipped in 9 packages`,
	})
	if err := results.verdict(); err == nil || err.Error() != "6 of the tests failed" {
		t.Errorf("verdict() = %v; want 6 failures", err)
	}
	checkJUnit(t, results)
	if info, err := os.Stat(filepath.Join(out, "events.jsonl")); err != nil || info.Size() == 0 {
		t.Errorf("events.jsonl: %v, %v; want events", info, err)
	}
}

// compareLines wants each pattern to match a line of text, in order.
func compareLines(t *testing.T, text string, patterns []string) {
	t.Helper()
	rest := strings.Split(text, "\n")
	for _, p := range patterns {
		re := regexp.MustCompile("^" + p)
		i := 0
		for i < len(rest) && !re.MatchString(rest[i]) {
			i++
		}
		if i == len(rest) {
			t.Fatalf("no line, after those before it, matches %q in:\n%s", p, text)
		}
		rest = rest[i+1:]
	}
}

func checkJUnit(t *testing.T, results *testResults) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "junit.xml")
	if err := writeJUnit(path, results); err != nil {
		t.Fatal(err)
	}
	if got := readJUnit(t, path); got.Tests != 12 || got.Failures != 6 || got.Skipped != 1 {
		t.Errorf("junit has %d tests, %d failures, %d skipped; want 12, 6, 1", got.Tests, got.Failures, got.Skipped)
	}
}

func TestRunNarrowed(t *testing.T) {
	root := unpack(t, outcomes)
	for _, dir := range []string{"broken", "exits", "nested", "panics", "races"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	results, err := runModules(t.Context(), root, t.TempDir(), TestOptions{Run: "TestGood", Short: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(results.in(passed)); n != 2 || results.verdict() != nil {
		t.Errorf("-run TestGood: %d passed, verdict %v; want 2 and none", n, results.verdict())
	}
	results, err = runModules(t.Context(), root, t.TempDir(), TestOptions{Run: "TestNobody"})
	if err != nil {
		t.Fatal(err)
	}
	if results.verdict() == nil {
		t.Error("-run TestNobody: verdict() = nil; want an error, nothing ran")
	}
}

const interrupted = `
-- go.mod --
module slipway

go 1.22
-- ci/test-packages.txt --
-- a/a_test.go --
package a

import "testing"

func TestDone(t *testing.T) {}

func TestFails(t *testing.T) { t.Error("got 1; want 2") }
-- b/b_test.go --
package b

import (
	"testing"
	"time"
)

func TestHangs(t *testing.T) { time.Sleep(time.Hour) }
-- c/c_test.go --
package c

import (
	"testing"
	"time"
)

func TestHangsToo(t *testing.T) { time.Sleep(time.Hour) }
`

// aFailedBHangs says whether the events have the result of slipway/a and the begin of b's test.
// Go runs packages side by side: c may be anywhere then, but has not ended.
func aFailedBHangs(events []byte) bool {
	return bytes.Contains(events, []byte(`"Action":"fail","Package":"slipway/a","Elapsed"`)) && bytes.Contains(events, []byte("=== RUN   TestHangs\\n"))
}

// A run that is broken off keeps what it has seen, and leaves nothing green.
func TestInterruptedRun(t *testing.T) {
	root := unpack(t, interrupted)
	t.Chdir(root)
	out := filepath.Join(root, testDir)
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	why := errors.New("somebody pressed Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for ctx.Err() == nil {
			if data, err := os.ReadFile(filepath.Join(out, "events.jsonl")); err == nil && aFailedBHangs(data) {
				cancel(why)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	for _, before := range []string{"stopped", "not begun"} { // the second time, the context has ended already
		if err := os.WriteFile(filepath.Join(out, "junit.xml"), []byte("green"), 0o644); err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		err := Tests(ctx, &text, TestOptions{})
		if !errors.Is(err, why) {
			t.Errorf("%s: Tests = %v; want %v", before, err, why)
		}
		if before == "not begun" {
			break
		}
		compareLines(t, text.String(), []string{
			`FAIL  slipway/a TestFails`,
			`  \|     a_test.go:7: got 1; want 2`,
			`FAIL  slipway/b TestHangs`,
			`  \| it had not ended when the run was broken off`,
			`FAIL  the whole run`,
			`  \| go test: stopped after .*: somebody pressed Ctrl-C`,
			`  again: go tool mage test`,
		})
		failures := 3
		switch { // c was linked, or ran
		case strings.Contains(text.String(), "\nFAIL  slipway/c "):
			failures = 4
		case !regexp.MustCompile(`no result of: (slipway/b )?slipway/c\n`).MatchString(text.String()):
			t.Errorf("nothing is said of slipway/c:\n%s", &text)
		}
		if want := fmt.Sprintf("1 passed, %d failed, 0 skipped in 3 packages", failures); !strings.Contains(text.String(), want) {
			t.Errorf("the summary lacks %q:\n%s", want, &text)
		}
		if got := readJUnit(t, filepath.Join(out, "junit.xml")); got.Tests != failures+1 || got.Failures != failures {
			t.Errorf("junit.xml has %d tests, %d failures; want %d and %d", got.Tests, got.Failures, failures+1, failures)
		}
	}
	if data, err := os.ReadFile(filepath.Join(out, "junit.xml")); err == nil && !bytes.Contains(data, []byte(why.Error())) {
		t.Errorf("after a run that did not begin, junit.xml is %q; want it gone, or with the reason", data)
	}
}

func readJUnit(t *testing.T, path string) junit.Suites {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got junit.Suites
	if err := xml.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// A program that is at work after a first Ctrl-C gets another one, as what it started does.
func TestInterruptIsRepeated(t *testing.T) {
	before := interruptAgain
	interruptAgain = 50 * time.Millisecond
	t.Cleanup(func() { interruptAgain = before })
	ctx, cancel := context.WithCancel(t.Context())
	const script = "trap 'n=$((n+1)); [ $n = 3 ] && exit 7' INT; echo ready; while :; do sleep 0.02; done"
	cmd := run.Prepare(ctx, command(t.TempDir(), "sh", "-c", script))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 7 {
		t.Errorf("it ended with status %d; want the third signal to end it", status)
	}
}

// What did not change is not tested again, unless the order has to change.
func TestUnchangedPackages(t *testing.T) {
	root := unpack(t, outcomes)
	for _, dir := range []string{"broken", "exits", "bad", "panics", "races", "nested"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []int{-1, 3, 0} { // the first run may find anything
		results, err := runModules(t.Context(), root, t.TempDir(), TestOptions{Shuffle: i == 2})
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		printSummary(&text, results)
		if n := results.cached(); want >= 0 && n != want || strings.Contains(text.String(), "unchanged since they passed") != (n > 0) {
			t.Errorf("run %d: %d unchanged packages; want %d:\n%s", i, n, want, text.String())
		}
		if n := len(results.in(passed)); n != 4 {
			t.Errorf("run %d: %d passed; want 4", i, n)
		}
	}
}

// The race detector is for all packages but those that it slows down most, and for a run
// that wants it for all.
func TestRacedPackages(t *testing.T) {
	for path, want := range map[string]bool{
		"slipway/ci": true, "slipway/ci/device": true, "slipway/flash/sources": true, "slipway/layers": true,
		"slipway/ci/dev/bench": false, "slipway/flash/source": false, "slipway/flash/source/lzma2": false, "slipway/runtime-hook": false,
	} {
		if got := isRaced(path, TestOptions{}); got != want {
			t.Errorf("isRaced(%s) = %v; want %v", path, got, want)
		}
		if !isRaced(path, TestOptions{Race: true}) {
			t.Errorf("isRaced(%s) with -race = false", path)
		}
		again := caseResult{pkg: &packageResult{module: ".", path: path, race: want}, testResult: &testResult{}}.rerunCommand()
		if strings.Contains(again, " -race ") != want {
			t.Errorf("%s runs again by %q", path, again)
		}
	}
}

func TestMissingResults(t *testing.T) {
	r := newTestResults()
	r.expect(".", "a", false)
	r.expect(".", "b", false)
	r.add(".", testEvent{Action: "run", Package: "a", Test: "TestHangs"})
	r.add(".", testEvent{Action: "fail", Package: "a"})
	r.missing()
	var got []string
	for _, c := range r.failed() {
		got = append(got, c.pkg.path+" "+c.name+": "+c.output.String())
	}
	want := []string{"a TestHangs: it began and did not end", "b : go test gave no result for this package"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestPackageNames(t *testing.T) {
	got := packageNames("# what for\ngcc  # race\n\n  libc6-dev\ngcc # again\n")
	if d := cmp.Diff([]string{"gcc", "libc6-dev"}, got); d != "" {
		t.Error(d)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte(`{"Action":"start","Package":"p"}`+"\n"+`{"Action":"fail","Package":"p","Test":"T/a","Elapsed":1e300}`+"\n"), 7)
	f.Add([]byte(`{"Action":"output","Package":"p","Test":"/","Output":"-test.shuffle 1\n"}`+"\nnoise\n{"), 1)
	f.Add([]byte(`{"Action":"build-output","ImportPath":"p","Output":"x\n"}`+"\n"+`{"Action":"fail","Package":"p","FailedBuild":"p"}`), 100)
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		if piece < 1 {
			piece = 1
		}
		r := newTestResults()
		in := &eventReader{each: func(e testEvent) { r.add(".", e) }, noise: r.noise}
		for len(data) > 0 {
			n := min(piece, len(data))
			if _, err := in.Write(data[:n]); err != nil {
				t.Fatal(err)
			}
			data = data[n:]
		}
		in.flush()
		if piece%2 == 0 {
			r.broken(context.Canceled)
		}
		r.missing()
		var text bytes.Buffer
		printSummary(&text, r)
		if _, err := junitOf(r); err != nil {
			t.Fatal(err)
		}
		for _, c := range r.cases() {
			if c.state == "" {
				t.Errorf("%s %s has no state", c.pkg.path, c.name)
			}
		}
	})
}

// A test that is cut off leaves its loop device attached.
func TestLoopOfCutOffTest(t *testing.T) {
	var device string
	err := withTempDir(func(dir string) error {
		file := filepath.Join(dir, "disk")
		if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
			return err
		}
		if os.Geteuid() != 0 {
			t.Skip("needs root, for loop devices")
		}
		device = flashtest.Attach(t, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // another program that looks at the device keeps it
		file, err := os.ReadFile("/sys/block/" + filepath.Base(device) + "/loop/backing_file")
		if err != nil || !strings.Contains(string(file), "/sw-") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s is still attached, over %s", device, file)
		}
	}
}
