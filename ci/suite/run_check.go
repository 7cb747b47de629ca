package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// TeardownLimit is the time for all commands of a check's teardown.
const TeardownLimit = 30 * time.Second

// RunCheck runs one check with its retries, then, unless it is skipped or its first try fails with
// Missing, its teardown. It returns the result of the check, followed by those of its parts. A
// check that ctx interrupted counts as skipped.
func (s *Session) RunCheck(ctx context.Context, c Check) []report.CheckResult {
	r := report.CheckResult{Name: plaintext.Clean(c.Name, 200), Kind: c.Kind, Status: report.Skipped}
	if r.Saw = s.skipReason(ctx, c); r.Saw != "" {
		return []report.CheckResult{r}
	}
	began := time.Now()
	f, tries, err := s.retryProbe(ctx, c)
	if lacks, ok := errors.AsType[Missing](err); ok && tries == 1 {
		r.Saw = string(lacks)
		return []report.CheckResult{r}
	}
	teardownErrors := s.tearDown(ctx, c)
	r.ElapsedMS = time.Since(began).Milliseconds()
	if tries > 1 {
		r.Attempts = tries
	}
	if ctx.Err() != nil && err != nil {
		r.Saw = strings.Join(append([]string{lostSaw + context.Cause(ctx).Error()}, teardownErrors...), "\n")
	} else {
		fillResult(&r, c, f, err, teardownErrors)
	}
	return append([]report.CheckResult{r}, partResults(r, f.parts)...)
}

// skipReason returns why a check does not begin (suite says skip, board lost, run stopped), or "".
func (s *Session) skipReason(ctx context.Context, c Check) string {
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

// Missing says what the board lacks. As the error of a check's first try, it skips the check.
type Missing string

func (m Missing) Error() string { return string(m) }

// retryProbe runs the probe until the check passes, or has no retries left, or cannot pass because
// the board is lost or lacks something. It waits for c.Pause between tries.
func (s *Session) retryProbe(ctx context.Context, c Check) (f Finding, tries int, err error) {
	for tries = 1; ; tries++ {
		f, err = s.runProbe(ctx, c)
		if err == nil && f.OK() || tries > c.Retries || s.isLost() || errors.As(err, new(Missing)) {
			return f, tries, err
		}
		if err := run.Sleep(ctx, c.Pause); err != nil {
			return f, tries, err
		}
	}
}

var errSlow = errors.New("no answer in time")

// runProbe runs one probe with its timeout. If the board is silent, or the probe fails and the
// board then runs no program either, the board is marked as lost. Unless the check is a reboot, the
// run then ends: other checks need not wait for their timeouts.
func (s *Session) runProbe(ctx context.Context, c Check) (Finding, error) {
	slow := fmt.Errorf("%w (%v)", errSlow, c.Timeout)
	if c.asks {
		slow = fmt.Errorf("%w: %w", boardssh.ErrSilent, slow)
	}
	limited, cancel := context.WithTimeoutCause(ctx, c.Timeout, slow)
	defer cancel()
	var f Finding
	inspect := func(ctx context.Context) (err error) {
		f, err = s.inspectBoard(ctx, c)
		return err
	}
	_, restarts := c.probe.(reboot)
	err := error(nil)
	if c.asks {
		err = boardssh.Answer(limited, 0, c.Name, inspect)
	} else {
		err = inspect(limited)
	}
	if errors.Is(err, boardssh.ErrSilent) && ctx.Err() == nil && !restarts {
		s.endLostRun(err)
		return f, err
	}
	// A board that goes down ends programs. A failure counts if the board still answers.
	if err == nil && (f.OK() || s.end == nil) || ctx.Err() != nil || errors.As(err, new(Missing)) {
		return f, err
	}
	if err != nil && limited.Err() != nil {
		err = context.Cause(limited)
	}
	if s.isAnswering(ctx) {
		return f, err
	}
	if err == nil {
		err = errors.New(strings.Join(f.saw, "; "))
	}
	err = fmt.Errorf("%w, and then not to anything else: %w", err, errLost)
	if !restarts { // a failed restart is a failed check, and no lost board
		s.endLostRun(err)
	}
	return f, err
}

// inspectBoard tests that the board has what the check needs, runs the check's probe, and compares
// the metrics with the last good run. If the board lacks something, it returns a Missing error.
func (s *Session) inspectBoard(ctx context.Context, c Check) (Finding, error) {
	for _, n := range c.needs {
		if n.kind == "check" {
			continue
		}
		if err := s.checkNeed(ctx, n); err != nil {
			return Finding{}, err
		}
	}
	f, err := c.probe.Inspect(ctx, s)
	s.compareMetrics(c, &f)
	return f, err
}

// isAnswering reports whether the board still runs a program. If not, it marks the board as lost.
// It is also true if ctx ends meanwhile.
func (s *Session) isAnswering(ctx context.Context) bool {
	if s.isLost() {
		return false
	}
	if IsAlive(ctx, s.Board, s.limits.alive) || ctx.Err() != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
	return false
}

func (s *Session) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// tearDown runs all commands of a check's teardown in TeardownLimit, also after a timeout, a Ctrl-C
// or a failed command, but not on a lost board. s.now cancels it. It returns the errors as text.
func (s *Session) tearDown(ctx context.Context, c Check) (wrong []string) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), TeardownLimit, fmt.Errorf("it took longer than %v", TeardownLimit))
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
		r, err := s.Board.Run(ctx, argv...)
		if err == nil && r.Status != 0 {
			err = errors.New(DescribeResult(r))
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("teardown: %s: %v", ShellLine(argv), err))
		}
	}
	return wrong
}

// fillResult sets a check's result from its finding, its error, and the errors of its teardown. A
// failed teardown fails the check, because what it left behind may disturb later checks.
func fillResult(r *report.CheckResult, c Check, f Finding, err error, teardownErrors []string) {
	for _, m := range f.metrics {
		r.Metrics = append(r.Metrics, m.Metric)
	}
	r.Table = f.table
	if err != nil {
		f.Expect(false, "an answer", err.Error())
	}
	if f.OK() && len(teardownErrors) > 0 {
		f.Next = "run its teardown by hand on the board: "
		for i, argv := range c.teardown {
			f.Next += plaintext.Either(i > 0, "; ", "") + ShellLine(argv)
		}
	}
	for _, wrong := range teardownErrors {
		f.Expect(false, "a teardown that works", wrong)
	}
	if f.OK() {
		r.Proves = f.Proves
		r.Status, r.Saw = report.Passed, plaintext.Clean(strings.Join(f.facts, "; "), report.MaxFactBytes)
		return
	}
	r.Status = report.Failed
	r.Saw = plaintext.Clean(strings.Join(f.saw, "\n"), report.MaxSawBytes)
	r.Want = plaintext.Clean(strings.Join(f.Want, "\n"), report.MaxSawBytes)
	r.Next = plaintext.Clean(cmp.Or(f.Next, c.Next), report.MaxSawBytes)
}

// addOutcome puts the test results that a program printed into the finding, in place of earlier
// ones. One failed result or one problem fails the check, and so does an output without results.
func (f *Finding) addOutcome(o outcome) {
	n := map[report.Status]int{}
	for _, p := range o.Parts {
		n[p.Status]++
	}
	f.parts = o.Parts
	f.Expect(n[report.Failed] == 0, "no result that failed", "results: "+report.CountWords(n))
	for _, p := range o.Problems {
		f.Expect(false, "a whole output", plaintext.Clean(p, 500))
	}
	if len(o.Parts) == 0 && len(o.Problems) == 0 {
		f.Expect(false, "at least one result", "the output holds none")
	}
}

// partResults returns a result for each part: a test result that the check's program printed.
func partResults(r report.CheckResult, parts []part) []report.CheckResult {
	var all []report.CheckResult
	for _, p := range parts {
		one := report.CheckResult{Name: plaintext.Clean(r.Name+"/"+p.Name, 200), Kind: r.Kind, Status: p.Status, ElapsedMS: p.TookMS, Saw: p.Saw}
		if p.Status == report.Passed {
			one.Proves = r.Proves
		}
		if p.Status == report.Failed {
			one.Saw, one.Want, one.Next = cmp.Or(p.Saw, "it failed, and said nothing"), "a pass", r.Next
		}
		all = append(all, one)
	}
	return all
}

// WaitUntil calls poll, with pauses, until poll returns true or an error, or until the timeout. The
// timeout returns nil, because the caller knows what poll saw last.
func WaitUntil(ctx context.Context, timeout, pause time.Duration, poll func() (done bool, err error)) error {
	for end := time.Now().Add(timeout); ; {
		done, err := poll()
		if done || err != nil || time.Now().After(end) {
			return err
		}
		if err := run.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// guardScript starts a guard in the background and then executes the check's program. The guard
// kills the program if the SSH connection is gone or the time limit is over, and removes the
// program's folder $2, if it is not "". The guard kills the whole process group if an SSH server or
// sudo started the program. Otherwise the group may have other programs, and only the check's
// program is killed. A zombie counts as ended, because in some containers nobody waits for it.
const guardScript = `limit=$1 dir=$2 parent=$PPID group=$$
shift 2
[ -d "/proc/$parent" ] || parent=$$
read -r _ _ _ _ leader _ </proc/$$/stat
read -r starter </proc/$parent/comm
case "$leader $starter" in
"$$ "* | "$parent sudo") group=-$leader ;;
esac
runs() { read -r _ _ state _ <"/proc/$1/stat" && [ "$state" != Z ]; }
{
	n=0
	while runs $$ && runs "$parent" && [ "$n" -lt "$limit" ]; do
		sleep 1
		n=$((n + 1))
	done
	if runs $$; then
		trap '' TERM
		kill -TERM "$group"
		sleep 5
		[ -z "$dir" ] || rm -rf "$dir"
		kill -KILL "$group"
	elif [ "$parent" != $$ ] && ! runs "$parent"; then
		[ -z "$dir" ] || rm -rf "$dir"
	fi
} </dev/null >/dev/null 2>&1 &
exec "$@"`

// guardPause is how long after Slipway's own timeout the guard kills a program.
const guardPause = 15 * time.Second

// guardedFolder is a context key. If a context has it, guardedBoard runs the program with a guard
// that removes the folder in the value; "" is no folder.
type guardedFolder struct{}

// guardedBoard is a board that starts programs with guardScript if the context asks for it.
type guardedBoard struct{ Board }

// Run runs a program. If ctx has guardedFolder, a guard (see guardScript) kills the program 15 s
// after ctx's deadline, and removes that folder.
func (b guardedBoard) Run(ctx context.Context, argv ...string) (boardssh.Result, error) {
	if dir, ok := ctx.Value(guardedFolder{}).(string); ok {
		limit := 24 * time.Hour
		if end, ok := ctx.Deadline(); ok {
			limit = time.Until(end) + guardPause
		}
		argv = slices.Concat([]string{"sh", "-c", guardScript, "sh", strconv.Itoa(int(limit.Seconds())), dir}, argv)
	}
	return b.Board.Run(ctx, argv...)
}

// runGuarded runs a program that a guard ends with its check. The guard removes dir, if not "".
func (s *Session) runGuarded(ctx context.Context, dir string, argv ...string) (boardssh.Result, error) {
	return s.Board.Run(context.WithValue(ctx, guardedFolder{}, dir), argv...)
}
