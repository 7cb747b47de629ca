package source

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/layers/plaintext"
)

// testEvent is one line of go test -json.
type testEvent struct {
	Action  string
	Package string `json:",omitempty"`
	Test    string `json:",omitempty"`
	Output  string `json:",omitempty"`
}

func (e testEvent) endsPackage() bool {
	return e.Package != "" && e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip")
}

// testResults counts the results of all packages, and writes their events to a file. All parts
// of a run add to it at the same time.
type testResults struct {
	mu       sync.Mutex
	events   *os.File
	err      error // of a write
	began    time.Time
	packages map[string]*packageResult

	passed, failed, skipped, cached int
	skips                           map[string]int // the skipped tests, by reason
}

// packageResult is what the events of a package said so far.
type packageResult struct {
	running map[string]string // the last message of each test that began and did not end
	failed  bool              // a test failed
	ended   bool
}

// maxOutputBytes is less than the longest line that gotestsum reads.
const maxOutputBytes = 4096

// add counts and writes a line of go test -json and returns its event. Others become build output.
func (r *testResults) add(line []byte) testEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e testEvent
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		r.write(testEvent{Action: "build-output", Output: string(line[:min(len(line), maxOutputBytes)]) + "\n"}) // gotestsum prints it among the errors
		return e
	}
	switch p := r.packages[e.Package]; {
	case p == nil:
	case e.Test != "":
		r.addTest(p, e)
	case e.Action == "output" && strings.HasPrefix(e.Output, "ok  \t") && strings.Contains(e.Output, "\t(cached)"):
		r.cached++
	case e.endsPackage():
		r.endPackage(p, e)
	}
	_, err := fmt.Fprintf(r.events, "%s\n", line)
	r.err = errors.Join(r.err, err)
	return e
}

// messageLine matches the first line of what a test logged, or gave as reason to be skipped.
var messageLine = plaintext.Regexp(`^ +\w+\.go:\d+: (.*)`)

// addTest notes a test's start, its last message (the reason of a skip), or counts its end.
func (r *testResults) addTest(p *packageResult, e testEvent) {
	switch e.Action {
	case "run":
		p.running[e.Test] = ""
		return
	case "output":
		if m := messageLine().FindStringSubmatch(e.Output); m != nil {
			p.running[e.Test] = m[1]
		}
		return
	case "pass":
		r.passed++
	case "skip":
		r.skipped++
		r.skips[p.running[e.Test]]++
	case "fail":
		r.failed++
		p.failed = true
	default:
		return
	}
	delete(p.running, e.Test)
}

// endPackage marks a package as ended, and fails its tests without an end, as after a timeout. A
// package that failed without a failed test counts as one failure.
func (r *testResults) endPackage(p *packageResult, e testEvent) {
	r.failRunning(e.Package, "it began and did not end\n")
	p.ended = true
	if e.Action == "fail" && !p.failed {
		r.failed++
	}
}

// failRunning adds a failure, with the reason why, of each running test of the package path.
func (r *testResults) failRunning(path, why string) {
	p := r.packages[path]
	for _, test := range slices.Backward(slices.Sorted(maps.Keys(p.running))) { // subtests first: gotestsum panics otherwise
		r.fail(path, test, why)
		p.failed = true
	}
	clear(p.running)
}

// fail adds a failure that go test did not report.
func (r *testResults) fail(path, test, why string) {
	r.failed++
	r.write(testEvent{"output", path, test, why})
	r.write(testEvent{Action: "fail", Package: path, Test: test})
}

func (r *testResults) write(e testEvent) {
	err := json.NewEncoder(r.events).Encode(e)
	r.err = errors.Join(r.err, err)
}

// finish fails tests without an end and packages without a result. If the run ended early, for the
// reason cut, it fails the run in place of these packages, and lists them. It returns write errors.
func (r *testResults) finish(cut error) error {
	var missing []string
	for _, path := range slices.Sorted(maps.Keys(r.packages)) {
		r.failRunning(path, "it had not ended when the run was cut\n")
		if !r.packages[path].ended {
			missing = append(missing, path)
		}
	}
	if cut != nil {
		r.fail("the whole run", "", fmt.Sprintf("%v\nno result of: %s\n", cut, strings.Join(missing, " ")))
		return r.err
	}
	for _, path := range missing {
		r.fail(path, "", "go test gave no result for this package\n")
	}
	return r.err
}

// writeSkips writes how many tests were skipped for each reason, most first. Without root hundreds
// are skipped, so only junit.xml has their names.
func (r *testResults) writeSkips(w io.Writer) {
	if len(r.skips) == 0 {
		return
	}
	fmt.Fprintln(w, "skipped:")
	for _, reason := range slices.SortedFunc(maps.Keys(r.skips), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.skips[b], r.skips[a]), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(w, "  %4d  %s\n", r.skips[reason], cmp.Or(reason, "no reason given"))
	}
}

// String returns the counts and the time of a run in one line.
func (r *testResults) String() string {
	cached := ""
	if r.cached > 0 {
		cached = fmt.Sprintf(", %d unchanged since they passed", r.cached)
	}
	return fmt.Sprintf("%d passed, %d failed, %d skipped in %d packages%s, %s",
		r.passed, r.failed, r.skipped, len(r.packages), cached, time.Since(r.began).Round(100*time.Millisecond))
}

// verdict returns an error if something failed, or if no test ran.
func (r *testResults) verdict() error {
	switch {
	case r.failed > 0:
		return fmt.Errorf("%d of the tests failed", r.failed)
	case r.passed+r.skipped == 0:
		return errors.New("no test ran")
	}
	return nil
}
