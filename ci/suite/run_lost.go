package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"slipway/ci/report"
	"slipway/flash/boardssh"
)

// A board that is lost in the middle of its suites has failed no check, since the results of others
// are unknown. The run ends with one failure, which says how the board was lost.

// errLost ends the checks that remain after the board was lost.
var errLost = errors.New("the board stopped answering")

const (
	// AliveTimeout is how long a board may need for a program that does nothing, before it
	// counts as lost. A busy board under emulation needs seconds.
	AliveTimeout = 15 * time.Second
	// backWithin is the time for a lost board to answer. That shows whether it restarted.
	backWithin = time.Minute
)

// lostLimits replace AliveTimeout and backWithin in a test's session; 0 keeps the default.
type lostLimits struct{ alive, backWithin time.Duration }

// IsAlive reports whether the board runs the program true within limit, or AliveTimeout if limit is
// 0. An open connection proves nothing: it may not yet have noticed that the board is gone.
func IsAlive(ctx context.Context, b Board, limit time.Duration) bool {
	limited, cancel := context.WithTimeout(ctx, cmp.Or(limit, AliveTimeout))
	defer cancel()
	_, err := b.Run(limited, "true")
	return err == nil
}

// endLostRun cancels the run because a check found the board lost, and keeps the first reason. If
// the board was silent, it also marks the board as lost. Outside of a run it does nothing.
func (s *Session) endLostRun(why error) {
	if s.end == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why, s.lost = why, s.lost || errors.Is(why, boardssh.ErrSilent) // nothing more is asked then
		s.end(errLost)
	}
}

// whyLost returns the error of the first check that found the board lost, or nil.
func (s *Session) whyLost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// lossError returns the error of a run in which the board was lost, or nil, also if ctx ends. It
// connects again to learn whether the board restarted, which may take backWithin.
func (s *Session) lossError(ctx context.Context, r report.Report) error {
	why := s.whyLost()
	if why == nil || ctx.Err() != nil {
		return nil
	}
	at, name := findLostCheck(r)
	after := s.explainLoss(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if strings.Contains(why.Error(), "\nnext: ") { // which stays last
		return report.Because(ctx, report.ErrUnreachable, fmt.Errorf("smoke %s: lost at check %d of %d (%s), and %s: %w", r.Board, at, r.Counts().TotalChecks(), name, after, why))
	}
	after += nextIfSilent(why)
	return report.Because(ctx, report.ErrUnreachable, fmt.Errorf("smoke %s: lost at check %d of %d (%s): %w; %s", r.Board, at, r.Counts().TotalChecks(), name, why, after))
}

// explainLoss connects to the lost board again, unless it was silent, and says whether it
// restarted. A board that answers is no longer marked as lost, so that readLogs can read its logs.
func (s *Session) explainLoss(ctx context.Context) string {
	within := cmp.Or(s.limits.backWithin, backWithin)
	if s.redial == nil || errors.Is(s.whyLost(), boardssh.ErrSilent) {
		return "it was not asked again"
	}
	if err := s.redial(ctx, within); err != nil {
		return fmt.Sprintf("it did not answer again within %v: %v", within, err)
	}
	if !IsAlive(ctx, s.Board, s.limits.alive) {
		return "it takes connections again, and runs no program"
	}
	s.mu.Lock()
	s.lost = false // so that readLogs reads its logs
	s.mu.Unlock()
	id, _ := s.readIdentity(ctx, s.artifact)
	before, after := s.identity.BootID, id.BootID
	switch {
	case before == "" || after == "":
		return "it answers again; whether it restarted is not known, as it has no boot id"
	case before != after:
		return fmt.Sprintf("it restarted by itself: its boot id was %s and is %s", before, after)
	}
	return "it answers again and did not restart: its boot id is the same, so the connection broke or its sshd ended"
}

// nextIfSilent returns "\nnext: STEP" if err is of a silent board and has no next step, else "".
func nextIfSilent(err error) string {
	if !errors.Is(err, boardssh.ErrSilent) || strings.Contains(err.Error(), "\nnext: ") {
		return ""
	}
	return "\nnext: ps -ef  # on the board, for the program that does not end"
}

// LostNext is the next step after the board was lost.
const LostNext = "see whether the board has power and did not restart (its serial console; on the board: journalctl -b -1 -e), and the network on the way; then run smoke again"

// lostSaw is the beginning of CheckResult.Saw of a check that did not finish.
const lostSaw = "not finished: "

// findLostCheck returns the number, from 1, and name of the first check that the lost board left
// unfinished. If there is none, it returns the number of checks and "after the last".
func findLostCheck(r report.Report) (at int, name string) {
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			at++
			if c.Status == report.Skipped && strings.HasPrefix(c.Saw, lostSaw+errLost.Error()) {
				return at, c.Name
			}
		}
	}
	return at, "after the last"
}
