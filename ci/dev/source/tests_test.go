package source

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
-- build/ignored/i_test.go --
package ignored
-- nested/go.mod --
module fixture/nested

go 1.22
-- nested/n_test.go --
package nested

import "testing"

func TestNested(t *testing.T) { t.Fatal("nested too") }
`

// racedOutcomes are packages whose result depends on the race detector. To compile Go's library for
// it takes a minute of CPU time, so they are in the run only if CI is set, as in "test".
const racedOutcomes = `
-- races/r_test.go --
package races

import "testing"

func TestRace(t *testing.T) {
	n, done := 0, make(chan bool)
	go func() { n++; done <- true }()
	n++
	<-done
}
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
`

func TestRunOfEveryOutcome(t *testing.T) {
	source, opts, failed, counts := outcomes, TestOptions{Shuffle: 7}, 6, "6 passed, 6 failed, 1 skipped in 7 packages, "
	if os.Getenv("CI") != "" {
		source, opts.Race, failed, counts = outcomes+racedOutcomes, RaceMost, 7, "7 passed, 7 failed, 1 skipped in 9 packages, "
	}
	root := unpack(t, strings.ReplaceAll(source, "-- build/ignored/", "-- testdata/"))
	out := t.TempDir()
	results, err := runModules(t.Context(), root, out, opts)
	if err != nil {
		t.Fatal(err)
	}
	races := []string{`=== FAIL: fixture/races TestRace`, `WARNING: DATA RACE`}
	if opts.Race == RaceNone {
		races = nil
	}
	compareLines(t, summary(t, out), slices.Concat([]string{
		`slowest:`,
		`=== Failed`,
		`=== FAIL: fixture/bad TestBad/sub_\(1\) \(0.00s\)`,
		`    bad_test.go:6: got 1; want 2`,
		`=== FAIL: fixture/broken  \(0.00s\)`,
		`=== FAIL: fixture/exits  `,
		`no setup`,
		`=== FAIL: fixture/nested TestNested`,
		`=== FAIL: fixture/panics TestPanic`,
		`panic: out of cheese`,
	}, races, []string{
		`=== Errors`,
		`.*b_test.go:5:28: undefined: undefinedName`,
	}))
	var skips strings.Builder
	results.skips["needs a sun"] = 2
	results.writeSkips(&skips)
	if diff := cmp.Diff("skipped:\n     2  needs a sun\n     1  needs a moon:\n", skips.String()); diff != "" {
		t.Errorf("writeSkips (-want +got):\n%s", diff)
	}
	if got := results.String(); !strings.HasPrefix(got, counts) {
		t.Errorf("results = %s; want %s", got, counts)
	}
	if err := results.verdict(); err == nil || err.Error() != fmt.Sprintf("%d of the tests failed", failed) {
		t.Errorf("verdict() = %v; want %d failures", err, failed)
	}
	if got := readJUnit(t, filepath.Join(out, "junit.xml")); got.Failures != failed {
		t.Errorf("junit.xml has %d failures; want %d", got.Failures, failed)
	}
}

// summary returns what gotestsum prints of a run.
func summary(t *testing.T, out string) string {
	t.Helper()
	tools, err := runTools()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := printSummary(t.Context(), &text, tools["gotestsum"], out); err != nil {
		t.Fatal(err)
	}
	return text.String()
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
	if results.passed != 3 || results.verdict() != nil {
		t.Errorf("-run TestGood: %d passed, verdict %v; want 3 and none", results.passed, results.verdict())
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
	tools, err := runTools()
	if err != nil {
		t.Fatal(err)
	}
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
		err := testClone(ctx, &text, root, tools["gotestsum"], TestOptions{})
		if !errors.Is(err, why) {
			t.Errorf("%s: testClone = %v; want %v", before, err, why)
		}
		if before == "not begun" {
			break
		}
		compareLines(t, text.String(), []string{
			`=== FAIL: a TestFails`,
			`    a_test.go:7: got 1; want 2`,
			`=== FAIL: b TestHangs`,
			`it (began and did not end|had not ended when the run was cut)`,
			`=== FAIL: the whole run`,
			`go test: stopped after .*: somebody pressed Ctrl-C`,
			`no result of: .*slipway/c$`,
		})
		failures := 3
		if strings.Contains(text.String(), "\n=== FAIL: c ") { // it had begun
			failures = 4
		}
		if want := fmt.Sprintf("1 passed, %d failed, 0 skipped in 3 packages", failures); !strings.Contains(text.String(), want) {
			t.Errorf("the summary lacks %q:\n%s", want, &text)
		}
		if got := readJUnit(t, filepath.Join(out, "junit.xml")); got.Failures != failures {
			t.Errorf("junit.xml has %d failures; want %d", got.Failures, failures)
		}
	}
	if data, err := os.ReadFile(filepath.Join(out, "junit.xml")); err == nil && !bytes.Contains(data, []byte(why.Error())) {
		t.Errorf("after a run that did not begin, junit.xml is %q; want it gone, or with the reason", data)
	}
}

// junitFile is what the tests read of junit.xml.
type junitFile struct {
	Failures int `xml:"failures,attr"`
}

func readJUnit(t *testing.T, path string) junitFile {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got junitFile
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
	for _, dir := range []string{"broken", "exits", "bad", "panics", "races", "nested", "pinned"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []int{-1, 2, 0} { // the first run may find anything
		results, err := runModules(t.Context(), root, t.TempDir(), TestOptions{Shuffle: int64(i / 2)})
		if err != nil {
			t.Fatal(err)
		}
		if n := results.cached; want >= 0 && n != want || strings.Contains(results.String(), "unchanged since they passed") != (n > 0) {
			t.Errorf("run %d: %d unchanged packages; want %d: %s", i, n, want, results)
		}
		if results.passed != 5 {
			t.Errorf("run %d: %d passed; want 5", i, results.passed)
		}
	}
}

// The race detector is for the packages that a run names: none, most or all.
func TestRacedPackages(t *testing.T) {
	root := unpack(t, `
-- go.mod --
module slipway

go 1.22
-- ci/ci.go --
package ci
-- ci/dev/bench/bench.go --
package bench
-- flash/source/source.go --
package source
-- flash/sources/sources.go --
package sources
`)
	for race, want := range map[Race]string{
		RaceNone: "",
		RaceMost: "slipway/ci slipway/flash/sources",
		RaceAll:  "slipway/ci slipway/ci/dev/bench slipway/flash/source slipway/flash/sources",
	} {
		results := &testResults{packages: map[string]*packageResult{}}
		parts, err := splitTests(t.Context(), root, []string{root}, results, TestOptions{Race: race})
		if err != nil || len(results.packages) != 4 {
			t.Fatalf("splitTests = %v, %v", results.packages, err)
		}
		var raced []string
		for _, p := range parts {
			if p.race != (p.cpu != "") {
				t.Errorf("race %v on processor %q; want one processor under the race detector only", p.race, p.cpu)
			}
			if p.race {
				raced = append(raced, p.paths...)
			}
		}
		slices.Sort(raced)
		if got := strings.Join(raced, " "); got != want {
			t.Errorf("Race %d: %s; want %s", race, got, want)
		}
	}
}

// newResults returns results that write to a file, and a function that reads the file.
func newResults(t *testing.T, packages ...string) (*testResults, func() string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	r := &testResults{events: file, packages: map[string]*packageResult{}, skips: map[string]int{}}
	for _, name := range packages {
		r.packages[name] = &packageResult{running: map[string]string{}}
	}
	return r, func() string {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// A test that a dead package had begun has failed, and so has a package without a result.
func TestMissingResults(t *testing.T) {
	r, events := newResults(t, "a", "b")
	for _, line := range []string{`{"Action":"run","Package":"a","Test":"TestHangs"}`, `{"Action":"fail","Package":"a"}`} {
		r.add([]byte(line))
	}
	if err := r.finish(nil); err != nil {
		t.Fatal(err)
	}
	want := `{"Action":"run","Package":"a","Test":"TestHangs"}
{"Action":"output","Package":"a","Test":"TestHangs","Output":"it began and did not end\n"}
{"Action":"fail","Package":"a","Test":"TestHangs"}
{"Action":"fail","Package":"a"}
{"Action":"output","Package":"b","Output":"go test gave no result for this package\n"}
{"Action":"fail","Package":"b"}
`
	if d := cmp.Diff(want, events()); d != "" {
		t.Error(d)
	}
	if r.failed != 2 {
		t.Errorf("%d failures; want 2", r.failed)
	}
}

// gotestsum reads the events of a run that was cut in a subtest.
func TestCutInASubtest(t *testing.T) {
	r, events := newResults(t, "a")
	for _, test := range []string{"TestX", "TestX/sub"} {
		r.add(fmt.Appendf(nil, `{"Action":"run","Package":"a","Test":%q}`, test))
	}
	if err := r.finish(errors.New("cut")); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "events.jsonl"), []byte(events()), 0o644); err != nil {
		t.Fatal(err)
	}
	compareLines(t, summary(t, out), []string{`=== FAIL: a TestX/sub`, `it had not ended when the run was cut`, `=== FAIL: a TestX`, `=== FAIL: the whole run`})
}

func TestPackageNames(t *testing.T) {
	got := packageNames("# what for\ngcc  # race\n\n  libc6-dev\ngcc # again\n")
	if d := cmp.Diff([]string{"gcc", "libc6-dev"}, got); d != "" {
		t.Error(d)
	}
}

// Whatever a line holds, gotestsum can read the events, and a failed package is counted.
func FuzzEvents(f *testing.F) {
	f.Add([]byte(`{"Action":"start","Package":"p"}` + "\n" + `{"Action":"fail","Package":"p","Test":"T/a","Elapsed":1e300}`))
	f.Add([]byte(`{"Action":"output","Package":"p","Test":"/","Output":"-test.shuffle 1\n"}` + "\nnoise\n{"))
	f.Add([]byte(`{"Action":"build-output","ImportPath":"p","Output":"x\n"}` + "\n" + `{"Action":"fail","Package":"p","FailedBuild":"p"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, events := newResults(t, "p")
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			r.add(line)
		}
		ended := r.packages["p"].ended
		if err := r.finish(nil); err != nil || !ended && r.failed == 0 {
			t.Errorf("finish() = %v with %d failures; the package had ended: %v", err, r.failed, ended)
		}
		for line := range strings.Lines(events()) {
			var e testEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Action == "" {
				t.Errorf("%q is no event: %v", line, err)
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

// Loop devices of the run's own folder are detached; one of a container that has a folder of the
// same name stays.
func TestDetachLoops(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a loop device and a mount namespace take root")
	}
	dir := t.TempDir()
	attach := `mkdir -p "$1/in" && truncate -s 1M "$1/in/file" && losetup --find --show "$1/in/file"`
	ours, err := run.Output(t.Context(), run.Command{Argv: []string{"sh", "-c", attach, "sh", filepath.Join(dir, "ours")}})
	if err != nil {
		t.Skip(err)
	}
	theirs := exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs tmpfs "$2" && { `+attach+`; read -r end; losetup --detach "$(losetup --noheadings --output NAME --associated "$1/in/file")"; }`, "sh", filepath.Join(dir, "theirs"), dir)
	end, _ := theirs.StdinPipe()
	out, _ := theirs.StdoutPipe()
	if err := theirs.Start(); err != nil {
		t.Fatal(err)
	}
	said, _ := bufio.NewReader(out).ReadString('\n')
	if err := detachLoops(dir); err != nil {
		t.Error(err)
	}
	for device, want := range map[string]bool{strings.TrimSpace(string(ours)): false, strings.TrimSpace(said): true} {
		_, gone := os.Stat("/sys/block/" + filepath.Base(device) + "/loop/backing_file")
		if attached := gone == nil; attached != want {
			t.Errorf("%s attached: %v; want %v", device, attached, want)
		}
	}
	if err := errors.Join(end.Close(), theirs.Wait()); err != nil {
		t.Error(err)
	}
}
