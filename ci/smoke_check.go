package ci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// teardownLimit holds for all commands of a check's teardown together.
const teardownLimit = 30 * time.Second

// runCheck runs one check, as often as it may be tried, and what it has to leave
// tidy. After its result come those of its parts.
func (s *session) runCheck(ctx context.Context, c Check) []report.CheckResult {
	r := report.CheckResult{Name: plaintext.Clean(c.Name, 200), Kind: c.Kind, Status: report.Skipped}
	if r.Saw = s.unready(ctx, c); r.Saw != "" {
		return []report.CheckResult{r}
	}
	began := time.Now()
	f, tries, err := s.try(ctx, c)
	var lacks missing
	if errors.As(err, &lacks) {
		r.Saw = string(lacks)
		return []report.CheckResult{r}
	}
	left := s.tearDown(ctx, c)
	r.ElapsedMS = time.Since(began).Milliseconds()
	if tries > 1 {
		r.Attempts = tries
	}
	switch {
	case ctx.Err() != nil && err != nil:
		r.Saw = strings.Join(append([]string{lostSaw + context.Cause(ctx).Error()}, left...), "\n")
	default:
		conclude(&r, c, f, err, left)
	}
	return append([]report.CheckResult{r}, partResults(r, f.parts)...)
}

// unready says why a check is not even begun.
func (s *session) unready(ctx context.Context, c Check) string {
	switch {
	case c.Skip:
		return "the suite says skip"
	case s.isLost():
		return "not run: " + errLost.Error()
	case ctx.Err() != nil:
		return "not run: stopped before its turn"
	}
	return ""
}

// missing is what the board lacks for a check.
type missing string

func (m missing) Error() string { return string(m) }

// try examines until a check passes or has no try left.
func (s *session) try(ctx context.Context, c Check) (f finding, tries int, err error) {
	for tries = 1; ; tries++ {
		f, err = s.examine(ctx, c)
		if err == nil && f.ok() || tries > c.Retries || s.isLost() || errors.As(err, new(missing)) {
			return f, tries, err
		}
		select {
		case <-ctx.Done():
			return f, tries, context.Cause(ctx)
		case <-time.After(c.Pause):
		}
	}
}

var errSlow = errors.New("no answer in time")

// examine runs one probe with its timeout. A board that gives no answer is asked for
// a sign of life, so that a dead one does not cost every check's timeout.
func (s *session) examine(ctx context.Context, c Check) (finding, error) {
	slow := fmt.Errorf("%w (%v)", errSlow, c.Timeout)
	limited, cancel := context.WithTimeoutCause(ctx, c.Timeout, slow)
	defer cancel()
	f, err := s.probe(limited, c)
	// A board that goes down ends programs, so a failure is one of a board that
	// still answers.
	if err == nil && (f.ok() || s.end == nil) || ctx.Err() != nil || errors.As(err, new(missing)) {
		return f, err
	}
	if err != nil && limited.Err() != nil {
		err = context.Cause(limited)
	}
	if s.answers(ctx) {
		return f, err
	}
	if err == nil {
		err = errors.New(strings.Join(f.saw, "; "))
	}
	err = fmt.Errorf("%w, and then not to anything else: %w", err, errLost)
	if _, meant := c.probe.(reboot); !meant { // a restart of ours that fails is the board's failure
		s.lose(err)
	}
	return f, err
}

// probe asks for what a check needs on the board, then what it wants to know.
func (s *session) probe(ctx context.Context, c Check) (finding, error) {
	for _, n := range c.needs {
		if n.kind == "check" {
			continue
		}
		why, err := s.lacking(ctx, n)
		if err == nil && why != "" {
			err = missing(why)
		}
		if err != nil {
			return finding{}, err
		}
	}
	f, err := c.probe.Inspect(ctx, s)
	s.compare(c, &f)
	return f, err
}

func (s *session) answers(ctx context.Context) bool {
	if s.isLost() {
		return false
	}
	if Answers(ctx, s.board, s.limits.alive) || ctx.Err() != nil {
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

// tearDown runs a check's teardown, also after a timeout or a Ctrl-C, and says
// what of it went wrong. One command that fails does not keep the next from
// running.
func (s *session) tearDown(ctx context.Context, c Check) (wrong []string) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), teardownLimit, fmt.Errorf("it took longer than %v", teardownLimit))
	defer cancel()
	go func() {
		select {
		case <-s.now:
			cancel()
		case <-ctx.Done():
		}
	}()
	for _, argv := range c.teardown {
		if s.isLost() {
			return append(wrong, "teardown was not run: "+errLost.Error())
		}
		r, err := s.board.Run(ctx, argv...)
		if err == nil && r.Status != 0 {
			err = errors.New(describe(r))
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("teardown: %s: %v", shellLine(argv), err))
		}
	}
	return wrong
}

// conclude turns what a probe found into a result. What a teardown left behind fails
// a check too: the next ones may meet it.
func conclude(r *report.CheckResult, c Check, f finding, err error, left []string) {
	for _, m := range f.metrics {
		r.Metrics = append(r.Metrics, m.Metric)
	}
	if err != nil {
		f.expect(false, "an answer", err.Error())
	}
	for _, wrong := range left {
		f.expect(false, "a teardown that works", wrong)
	}
	if f.ok() {
		r.Proves = f.proves
		r.Status, r.Saw = report.Passed, plaintext.Clean(strings.Join(f.facts, "; "), report.MaxFactBytes)
		return
	}
	r.Status = report.Failed
	r.Saw = plaintext.Clean(strings.Join(f.saw, "\n"), report.MaxSawBytes)
	r.Want = plaintext.Clean(strings.Join(f.want, "\n"), report.MaxSawBytes)
	r.Next = plaintext.Clean(cmp.Or(f.next, c.Next), report.MaxSawBytes)
}

// addOutcome adds what a program told: any result that failed fails the whole.
func (f *finding) addOutcome(o outcome) {
	n := map[report.Status]int{}
	for _, p := range o.parts {
		n[p.status]++
	}
	f.parts = o.parts
	f.expect(n[report.Failed] == 0, "no result that failed", "results: "+report.CountWords(n))
	for _, p := range o.problems {
		f.expect(false, "a whole output", plaintext.Clean(p, 500))
	}
	if len(o.parts) == 0 && len(o.problems) == 0 {
		f.expect(false, "at least one result", "the output holds none")
	}
}

// partResults are the parts of a check as results of their own.
func partResults(r report.CheckResult, parts []part) []report.CheckResult {
	var all []report.CheckResult
	for _, p := range parts {
		one := report.CheckResult{Name: plaintext.Clean(r.Name+"/"+p.name, 200), Kind: r.Kind, Status: p.status, ElapsedMS: p.tookMS, Saw: p.saw}
		if p.status == report.Passed {
			one.Proves = r.Proves
		}
		if p.status == report.Failed {
			one.Saw, one.Want, one.Next = cmp.Or(p.saw, "it failed, and said nothing"), "a pass", r.Next
		}
		all = append(all, one)
	}
	return all
}
