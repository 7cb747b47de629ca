package job

import (
	"context"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/fleet"
)

// stops are the ways in which a job ends early: a signal, the context, its limit. A line gets them as
// SIGINT, the first and then the second, as from a person at its terminal.
type stops struct {
	signals <-chan os.Signal
	limit   *time.Timer
	overdue int // how often limit fired

	asked int        // 1: gently, 2: now, 3: killed
	why   fleet.Kind // the first reason
	last  time.Time  // of the last SIGINT
}

// graces are how long a line has after the first and after the second SIGINT of the limit; tests set
// others.
var graces = [2]time.Duration{time.Minute, time.Minute}

// apart is the least time between two SIGINTs. A command takes two that follow at once as one.
const apart = 500 * time.Millisecond

// raise notes a stop, and reports whether it asks for more than the last one.
func (s *stops) raise(to int, why fleet.Kind) bool {
	if to <= s.asked {
		return false
	}
	if s.asked == 0 {
		s.why = why
	}
	s.asked = to
	return true
}

// expire counts that the limit fired, and starts the next grace period.
func (s *stops) expire() int {
	if s.overdue < len(graces) {
		s.limit.Reset(graces[s.overdue])
	}
	s.overdue++
	return s.overdue
}

// check notes the stops that came since the last line, and reports whether there was any.
func (s *stops) check(ctx context.Context) bool {
	for {
		select {
		case <-s.signals:
			s.raise(min(s.asked+1, 2), fleet.Stopped)
			continue
		case <-s.limit.C:
			s.raise(s.expire(), fleet.Slow)
			continue
		default:
		}
		if ctx.Err() != nil {
			s.raise(1, fleet.Stopped)
		}
		return s.asked > 0
	}
}

// wait waits until a started line has ended, and passes stops on to its process group.
func (s *stops) wait(ctx context.Context, cmd *exec.Cmd) error {
	ended, cancelled := make(chan error, 1), ctx.Done()
	go func() { ended <- cmd.Wait() }()
	for {
		to, why := 0, fleet.Stopped
		select {
		case err := <-ended:
			return err
		case <-s.signals:
			to = min(s.asked+1, 2)
		case <-cancelled:
			to, cancelled = 1, nil
		case <-s.limit.C:
			to, why = s.expire(), fleet.Slow
		}
		if s.raise(to, why) {
			s.send(cmd.Process.Pid)
		}
	}
}

// send sends a process group what was asked last.
func (s *stops) send(group int) {
	if s.asked > 2 {
		_ = unix.Kill(-group, unix.SIGKILL)
		return
	}
	time.Sleep(time.Until(s.last.Add(apart)))
	s.last = time.Now()
	_ = unix.Kill(-group, unix.SIGINT) // which may have ended
}
