package source

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/layers/lazy"
)

// testState is how a test or a package came out; "" is not at all.
type testState string

const (
	passed  testState = "pass"
	failed  testState = "fail"
	skipped testState = "skip"
)

// testResult is what became of one test.
type testResult struct {
	name    string // "TestWrite/short"; "" stands for the package itself
	state   testState
	elapsed time.Duration
	output  *excerpt
}

// packageResult is what became of one package's tests.
type packageResult struct {
	module string // its folder below the clone
	path   string
	race   bool // tested under the race detector
	testResult
	tests   map[string]*testResult
	parents map[string]bool // names of tests with subtests, which are counted in their place
	order   []*testResult
	shuffle string
	cached  bool // the result is that of an earlier run, from Go's test cache
}

// testResults gathers the events of all modules. Parts of a run that go on side by side may
// call add, limit, noise and failuresOf. The rest is for before and after them.
type testResults struct {
	mu       sync.Mutex
	packages map[string]*packageResult
	order    []*packageResult
	builds   map[string]*excerpt // what the compiler said, by import path
	stray    excerpt             // output that belongs to no test
	whole    *packageResult      // stands for a run that was broken off
	began    time.Time
	count    int
}

// Subtests are named by input; a broken test could make them without end.
const (
	maxTests     = 200_000
	maxNameBytes = 4096
	maxSeconds   = 1e6
)

func newTestResults() *testResults {
	return &testResults{packages: map[string]*packageResult{}, builds: map[string]*excerpt{}, began: time.Now()}
}

func (r *testResults) limit() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count > maxTests {
		return fmt.Errorf("more than %d tests and subtests", maxTests)
	}
	return nil
}

func (r *testResults) noise(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(&r.stray, line)
}

// expect notes a package that must have a result in the end.
func (r *testResults) expect(module, path string, race bool) { r.pkg(module, path).race = race }

func (r *testResults) pkg(module, path string) *packageResult {
	p := r.packages[path]
	if p == nil {
		p = &packageResult{module: module, path: path, tests: map[string]*testResult{}, parents: map[string]bool{}}
		p.output = &excerpt{}
		r.packages[path] = p
		r.order = append(r.order, p)
	}
	return p
}

// add takes in one event and says whether it ended a package.
func (r *testResults) add(module string, e testEvent) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.Action == "build-output":
		r.built(e)
		return false
	case e.Package == "" || len(e.Test) > maxNameBytes:
		return false
	}
	p := r.pkg(module, e.Package)
	t := &p.testResult
	if e.Test != "" {
		t = r.test(p, e.Test)
	}
	switch e.Action {
	case "output":
		p.hear(t, e.Output)
	case "pass", "fail", "skip":
		t.end(e)
		r.explain(t, e)
		return e.Test == ""
	}
	return false
}

func (r *testResults) built(e testEvent) {
	if r.builds[e.ImportPath] == nil {
		r.builds[e.ImportPath] = &excerpt{}
	}
	_, _ = r.builds[e.ImportPath].Write([]byte(e.Output))
}

// explain gives a package whose build failed the compiler's words.
func (r *testResults) explain(t *testResult, e testEvent) {
	if said := r.builds[e.FailedBuild]; said != nil {
		t.output = said
	}
}

func (r *testResults) test(p *packageResult, name string) *testResult {
	t := p.tests[name]
	if t != nil {
		return t
	}
	t = &testResult{name: name, output: &excerpt{}}
	p.tests[name] = t
	p.order = append(p.order, t)
	r.count++
	// A subtest's own name may hold slashes, so not every one of these is a test.
	for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
		p.parents[name[:i]] = true
	}
	return t
}

var cachedLine = lazy.Regexp(`^ok  \t\S+\t\(cached\)`)

var shuffleLine = lazy.Regexp(`^-test\.shuffle (\d+)\n$`)

// frame matches what go test itself prints around a test's own output.
var frame = lazy.Regexp(`^\s*(=== (RUN|PAUSE|CONT|NAME)|--- (PASS|FAIL|SKIP))|^(PASS|FAIL)\n$`)

func (p *packageResult) hear(t *testResult, text string) {
	if m := shuffleLine().FindStringSubmatch(text); m != nil {
		p.shuffle = m[1]
		return
	}
	p.cached = p.cached || t == &p.testResult && cachedLine().MatchString(text)
	if !frame().MatchString(text) {
		_, _ = t.output.Write([]byte(text))
	}
}

func (t *testResult) end(e testEvent) {
	t.state = testState(e.Action)
	t.elapsed = time.Duration(min(e.Elapsed, maxSeconds) * float64(time.Second))
	if t.state == passed {
		t.output = &excerpt{} // nobody reads it; there may be a lot
	}
}

// missing turns what has no result into failures: a package that go test passed
// over, a test that was still running when its package failed.
func (r *testResults) missing() {
	for _, p := range r.order {
		if p.state == "" {
			p.state = failed
			fmt.Fprintln(p.output, "go test gave no result for this package")
		}
		for _, t := range p.order {
			if t.state == "" {
				t.state, p.state = failed, failed
				fmt.Fprintln(t.output, "it began and did not end")
			}
		}
	}
}

// broken notes that the run was broken off. That is a failure even where all tests
// so far have passed.
func (r *testResults) broken(why error) {
	r.whole = &packageResult{path: "the whole run", testResult: testResult{state: failed, output: &excerpt{}}}
	fmt.Fprintln(r.whole.output, why)
	var without []string
	for _, p := range r.order {
		if p.state == "" {
			without = append(without, p.path)
		}
		for _, t := range p.order {
			if t.state == "" {
				t.state = failed
				fmt.Fprintln(t.output, "it had not ended when the run was broken off")
			}
		}
	}
	if len(without) > 0 {
		fmt.Fprintf(r.whole.output, "no result of: %s\n", strings.Join(without, " "))
	}
}

// failures returns how many tests, and packages by themselves, failed.
func (r *testResults) failures() int { return len(r.failed()) }

// failuresOf returns the failures of one part of a run, while others may go on.
func (r *testResults) failuresOf(module string, paths []string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(slices.DeleteFunc(r.failed(), func(c caseResult) bool { return c.pkg.module != module || !slices.Contains(paths, c.pkg.path) }))
}

// caseResult is one line of the summary: a test without subtests, or a package
// that failed although none of its tests did.
type caseResult struct {
	pkg *packageResult
	*testResult
}

func (r *testResults) cases() []caseResult {
	var all []caseResult
	for _, p := range r.order {
		blamed := false
		for _, t := range p.order {
			own := !p.parents[t.name] || t.state == failed && !p.failedBelow(t.name)
			if own {
				all = append(all, caseResult{p, t})
			}
			blamed = blamed || t.state == failed
		}
		if p.state == failed && !blamed {
			all = append(all, caseResult{p, &p.testResult})
		}
	}
	if r.whole != nil {
		all = append(all, caseResult{r.whole, &r.whole.testResult})
	}
	return all
}

func (p *packageResult) failedBelow(name string) bool {
	return slices.ContainsFunc(p.order, func(t *testResult) bool {
		return t.state == failed && strings.HasPrefix(t.name, name+"/")
	})
}

func (r *testResults) in(s testState) []caseResult {
	return slices.DeleteFunc(r.cases(), func(c caseResult) bool { return c.state != s })
}

// cached returns how many packages have the result of an earlier run.
func (r *testResults) cached() (n int) {
	for _, p := range r.order {
		if p.cached {
			n++
		}
	}
	return n
}

func (r *testResults) failed() []caseResult { return r.in(failed) }

// verdict is the error of a run in which something failed. A run without a
// single result is one too.
func (r *testResults) verdict() error {
	if n := r.failures(); n > 0 {
		return fmt.Errorf("%d of the tests failed", n)
	}
	if len(r.cases()) == 0 {
		return fmt.Errorf("no test ran")
	}
	return nil
}
