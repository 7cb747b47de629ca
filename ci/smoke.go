package ci

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/flash/target"
	"slipway/images"
	"slipway/layers/progress"
)

// ErrFailed is what a run ends with whose report is whole and says that the board
// failed.
var ErrFailed = errors.New("the board failed its checks")

// errLost ends what is still to be asked of a board that answers no more.
var errLost = errors.New("the board stopped answering")

const (
	checksAtOnce = 3
	// alive is how long a board may take for a program that does nothing, before it
	// counts as lost. A board under emulation takes seconds when it is busy.
	alive = 15 * time.Second
)

// Smoke runs the suites of a board on it. The report is worth keeping whatever
// the error is: after ErrFailed it is whole, otherwise it holds what was seen.
func Smoke(ctx context.Context, conn *target.Conn, spec images.Spec, a images.Artifact) (Report, error) {
	open := func(ctx context.Context) (containers, error) { return target.OpenContainers(ctx, conn) }
	return smoke(ctx, &session{board: conn, open: open}, spec, a)
}

func smoke(ctx context.Context, s *session, spec images.Spec, a images.Artifact) (Report, error) {
	r := newReport(spec)
	defer s.close()
	suites, err := loadSuites(spec)
	if err != nil {
		r.fail("smoke", err, "mend the suites that the board's board.yml names")
		return r, err
	}
	r.Identity = s.identify(ctx, a)
	for _, suite := range suites {
		r.Suites = append(r.Suites, s.runSuite(ctx, suite))
	}
	if r.Failed() && ctx.Err() == nil {
		r.Logs = s.logs(ctx)
	}
	r.ElapsedMS = time.Since(r.Started).Milliseconds()
	err = r.verdict(ctx)
	return r, err
}

func loadSuites(spec images.Spec) ([]Suite, error) {
	if len(spec.Suites) == 0 {
		return nil, fmt.Errorf("board %s has no suites, so nothing would be proved; add suites: to its board.yml (have %s)",
			spec.Board, strings.Join(Suites(), ", "))
	}
	var suites []Suite
	for _, name := range spec.Suites {
		suite, err := LoadSuite(name)
		if err != nil {
			return nil, err
		}
		suites = append(suites, suite)
	}
	return suites, nil
}

// verdict is the error of a run. Where no failed check tells of it, a failed stage
// does: the report may be all that somebody reads.
func (r *Report) verdict(ctx context.Context) (err error) {
	switch n := r.counts(); {
	case ctx.Err() != nil:
		err = fmt.Errorf("smoke %s: stopped: %w", r.Board, context.Cause(ctx))
		r.fail("smoke", err, "run it again")
	case n.checks[Failed] > 0:
		err = fmt.Errorf("smoke %s: %d of %d checks failed: %w", r.Board, n.checks[Failed], n.total(), ErrFailed)
	case n.checks[Passed] == 0:
		err = fmt.Errorf("smoke %s: none of %d checks passed: %w", r.Board, n.total(), ErrFailed)
		r.fail("smoke", err, "take skip out of the suites, or name others in the board's board.yml")
	}
	return err
}

// fail adds a stage that failed.
func (r *Report) fail(stage string, err error, next string) {
	took := time.Since(r.Started).Milliseconds()
	r.Stages = append(r.Stages, Stage{Name: stage, Status: Failed, ElapsedMS: took, Saw: err.Error(), Next: next})
}

// session is one board during one run of its suites.
type session struct {
	board Board
	open  func(context.Context) (containers, error)

	mu     sync.Mutex
	opened containers
	lost   bool

	container sync.Mutex // they run one at a time
}

func (s *session) close() {
	if s.opened != nil {
		s.opened.Close()
	}
}

// runSuite runs the checks of a suite, several at a time. Their results stand in
// the order of the suite.
func (s *session) runSuite(ctx context.Context, suite Suite) SuiteResult {
	began := time.Now()
	step := progress.Start(ctx, "smoke "+suite.Name, int64(len(suite.Checks)), progress.Tasks)
	result := SuiteResult{Name: suite.Name, Checks: make([]CheckResult, len(suite.Checks))}
	for _, batch := range batches(suite.Checks) {
		var group errgroup.Group
		group.SetLimit(checksAtOnce)
		for _, i := range batch {
			group.Go(func() error {
				check := suite.Checks[i]
				defer s.turn(check)()
				step.Detail(check.Name)
				offset := time.Since(began)
				result.Checks[i] = s.runCheck(ctx, check)
				result.Checks[i].StartMS = offset.Milliseconds()
				step.Add(1)
				return nil
			})
		}
		group.Wait()
	}
	result.ElapsedMS = time.Since(began).Milliseconds()
	step.End(result.tally())
	return result
}

// tally is how a suite went, as the last words of its step.
func (r SuiteResult) tally() (string, error) {
	n := map[Status]int{}
	for _, c := range r.Checks {
		n[c.Status]++
	}
	text := countWords(n)
	if n[Failed] > 0 {
		return text, errors.New(text)
	}
	return text, nil
}

// batches splits checks where one must run alone.
func batches(checks []Check) [][]int {
	var all [][]int
	var open []int
	for i, c := range checks {
		if a, ok := c.probe.(interface{ alone() bool }); ok && a.alone() {
			all, open = append(all, open, []int{i}), nil
			continue
		}
		open = append(open, i)
	}
	return append(all, open)
}

func (s *session) runCheck(ctx context.Context, c Check) CheckResult {
	r := CheckResult{Name: clean(c.Name, 200), Kind: c.Kind, Status: Skipped}
	switch {
	case c.Skip:
		r.Saw = "the suite says skip"
		return r
	case ctx.Err() != nil:
		r.Saw = "not run: stopped before its turn"
		return r
	case s.isLost():
		r.Saw = "not run: " + errLost.Error()
		return r
	}
	began := time.Now()
	f, err := s.examine(ctx, c)
	r.ElapsedMS = time.Since(began).Milliseconds()
	if ctx.Err() != nil && err != nil {
		r.Saw = "not finished: " + context.Cause(ctx).Error()
		return r
	}
	r.judge(c, f, err)
	return r
}

var errSlow = errors.New("no answer in time")

// examine runs one probe with its timeout. A board that gives no answer is asked for
// a sign of life, so that a dead one does not cost every check's timeout.
func (s *session) examine(ctx context.Context, c Check) (finding, error) {
	slow := fmt.Errorf("%w (%v)", errSlow, c.Timeout)
	limited, cancel := context.WithTimeoutCause(ctx, c.Timeout, slow)
	defer cancel()
	f, err := c.probe.run(limited, s)
	if err == nil || ctx.Err() != nil {
		return f, err
	}
	if limited.Err() != nil {
		err = context.Cause(limited)
	}
	if !s.answers(ctx) {
		err = fmt.Errorf("%w, and then not to anything else: %w", err, errLost)
	}
	return f, err
}

// turn waits until a check may run, and returns what ends its turn. The wait is
// no part of the check's time.
func (s *session) turn(c Check) (end func()) {
	if c.Kind != "container" {
		return func() {}
	}
	s.container.Lock()
	return s.container.Unlock
}

func (s *session) answers(ctx context.Context) bool {
	if s.isLost() {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, alive)
	defer cancel()
	_, err := s.board.Run(limited, "true")
	if err == nil || ctx.Err() != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
	return false
}

func (s *session) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// judge turns what a probe found into a result.
func (r *CheckResult) judge(c Check, f finding, err error) {
	if err != nil {
		f.expect(false, "an answer", err.Error())
	}
	if f.ok() {
		r.Status, r.Saw = Passed, clean(strings.Join(f.facts, "; "), maxFactBytes)
		return
	}
	r.Status = Failed
	r.Saw = clean(strings.Join(f.saw, "\n"), maxSawBytes)
	r.Want = clean(strings.Join(f.want, "\n"), maxSawBytes)
	r.Next = clean(or(f.next, c.Next), maxSawBytes)
}
