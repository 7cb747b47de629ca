package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/ci/report"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// checksAtOnce is how many checks run at the same time. sshd allows 10 sessions a connection; an
// interrupted check needs two, and containers and files need more.
const checksAtOnce = 3

// suiteRun is the state of a suite while its checks run.
type suiteRun struct {
	*Session
	checks  []Check
	began   time.Time
	step    *progress.Step
	results [][]report.CheckResult // of each check, and then of its parts
	done    []chan struct{}        // closed when a check has its result

	running struct {
		sync.Mutex
		names []string
	}
}

// runSuite runs a suite's checks, several at a time, with progress. Results are in suite order.
func (s *Session) runSuite(ctx context.Context, suite Suite) report.SuiteResult {
	r := &suiteRun{
		Session: s, checks: suite.Checks, began: time.Now(),
		step:    progress.Start(ctx, "smoke "+suite.Name, int64(len(suite.Checks)), progress.Tasks),
		results: make([][]report.CheckResult, len(suite.Checks)), done: make([]chan struct{}, len(suite.Checks)),
	}
	for i := range r.done {
		r.done[i] = make(chan struct{})
	}
	for _, batch := range splitBatches(suite.Checks) {
		r.runBatch(ctx, batch)
	}
	result := report.SuiteResult{Name: suite.Name, Checks: slices.Concat(r.results...), ElapsedMS: time.Since(r.began).Milliseconds()}
	tally, err := result.Tally()
	if s.whyLost() != nil {
		err = errLost
	}
	r.step.End(tally, err)
	return result
}

// runBatch runs a batch of checks, checksAtOnce at a time, and waits for them. It starts them in
// the suite's order, so that a check that waits for an earlier one cannot block that one.
func (r *suiteRun) runBatch(ctx context.Context, batch []int) {
	var group errgroup.Group
	group.SetLimit(checksAtOnce)
	for _, i := range batch {
		group.Go(func() error {
			defer close(r.done[i])
			r.results[i] = r.runWhenReady(ctx, r.checks[i])
			r.step.Add(1)
			return nil
		})
	}
	group.Wait()
}

// runWhenReady waits for the checks that c needs, and runs c if all passed. If not, it skips c.
func (r *suiteRun) runWhenReady(ctx context.Context, c Check) []report.CheckResult {
	skipped := report.CheckResult{Name: plaintext.Clean(c.Name, 200), Kind: c.Kind, Status: report.Skipped}
	if skipped.Saw = r.explainUnmetNeed(c); skipped.Saw != "" {
		skipped.StartMS = time.Since(r.began).Milliseconds()
		return []report.CheckResult{skipped}
	}
	defer r.lockContainers(c)()
	defer r.showRunning(c.Name)()
	offset := time.Since(r.began)
	results := r.RunCheck(ctx, c)
	for i := range results {
		results[i].StartMS = offset.Milliseconds()
	}
	return results
}

// explainUnmetNeed waits for the checks that c needs, and says which one did not pass, or "".
func (r *suiteRun) explainUnmetNeed(c Check) string {
	for _, n := range c.needs {
		if n.kind != "check" {
			continue
		}
		<-r.done[n.check]
		if needed := r.results[n.check][0]; needed.Status != report.Passed {
			return fmt.Sprintf("it needs %q, which %s", needed.Name, plaintext.Either(needed.Status == report.Failed, "failed", "was skipped"))
		}
	}
	return ""
}

// showRunning adds a check to the progress line until the caller calls end.
func (r *suiteRun) showRunning(name string) (end func()) {
	r.updateRunning(func(names []string) []string { return append(names, name) })
	return func() {
		r.updateRunning(func(names []string) []string {
			i := slices.Index(names, name)
			return slices.Delete(names, i, i+1)
		})
	}
}

// updateRunning changes the names of the running checks and shows them on the progress line.
func (r *suiteRun) updateRunning(change func([]string) []string) {
	r.running.Lock()
	defer r.running.Unlock()
	r.running.names = change(r.running.names)
	r.step.Detail(strings.Join(r.running.names, ", "))
}

// splitBatches splits checks, as indexes, into batches to run in turn. One with Alone has its own.
func splitBatches(checks []Check) [][]int {
	var all [][]int
	var open []int
	for i, c := range checks {
		if c.Alone {
			all, open = append(all, open, []int{i}), nil
			continue
		}
		open = append(open, i)
	}
	return append(all, open)
}

// lockContainers waits until no other container check runs, and keeps others waiting until the
// caller calls end. The wait does not count as the check's time. Other kinds of checks do not wait.
func (s *Session) lockContainers(c Check) (end func()) {
	if c.Kind != "container" {
		return func() {}
	}
	s.container.Lock()
	return s.container.Unlock
}
