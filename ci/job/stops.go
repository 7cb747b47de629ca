package job

import (
	"context"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/fleet"
)

// stops are the ways in which a job ends early: a wish in its folder, the context, its limit. A line
// gets them as SIGINT, the first and then the second, as from a person at its terminal.
type stops struct {
	folder Folder
	over   time.Time // when the job is at its limit

	asked int        // 1: gently, 2: now, 3: killed
	why   fleet.Kind // the first reason
}

// graces are how long a line has after the first and after the second SIGINT of the limit; tests set
// others.
var graces = [2]time.Duration{time.Minute, time.Minute}

// apart is the least time between two SIGINTs. A command takes two that follow at once as one. It is
// also how often the wishes are read.
const apart = 500 * time.Millisecond

// look notes what is asked now, and returns it.
func (s *stops) look(ctx context.Context) int {
	wished, late := s.folder.asked(), 0
	if ctx.Err() != nil {
		wished = max(wished, 1)
	}
	for _, at := range []time.Duration{0, graces[0], graces[0] + graces[1]} {
		if time.Since(s.over) >= at {
			late++
		}
	}
	if s.asked = max(s.asked, wished, late); s.asked > 0 && s.why == "" {
		if s.why = fleet.Slow; wished > 0 {
			s.why = fleet.Stopped
		}
	}
	return s.asked
}

// wait waits until a started line has ended, and passes stops on to its process group.
func (s *stops) wait(ctx context.Context, cmd *exec.Cmd) error {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for sent := 0; ; {
		select {
		case err := <-ended:
			return err
		case <-time.After(apart):
		}
		switch asked := s.look(ctx); {
		case asked > 2:
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		case asked > sent:
			sent++
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGINT) // which may have ended
		}
	}
}
