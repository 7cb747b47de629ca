package rshim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Limits are how long a DPU may take. While the DPU takes no data, the driver waits for
// its BOOT_TIMEOUT; some releases of it wait for ever (rshim-user-space#413).
type Limits struct {
	Notice   time.Duration // without a byte taken, after which the user is told
	Stuck    time.Duration // without a byte taken, beyond the driver's own BOOT_TIMEOUT
	First    time.Duration // until its first message, counted from the push's end
	Silence  time.Duration // between two messages: an installer writes a whole disk meanwhile
	Firmware time.Duration // the same while the NIC's firmware is written
	All      time.Duration // from the push's end to the last message
	Gone     time.Duration // that the driver's files may be away: over USB they go and come with a reset
	Poll     time.Duration // how often the messages are read
}

// Patient are the limits for real hardware. Half an hour for the firmware is what NVIDIA's
// pages tell people to wait.
var Patient = Limits{
	Notice: 15 * time.Second, Stuck: time.Minute,
	First: 5 * time.Minute, Silence: 20 * time.Minute, Firmware: 40 * time.Minute, All: 90 * time.Minute,
	Gone: 2 * time.Minute, Poll: time.Second,
}

// restLimit is how long putting the settings back may take where the context has ended.
const restLimit = 10 * time.Second

// Push resets the DPU, pushes the parts one behind the other, and follows the DPU's
// messages to the one that says what came of it. They are written to log too, each with
// the time. Nothing of the DPU's former system is left to be relied on once it has begun.
func (p *Port) Push(ctx context.Context, parts []Part, limits Limits, log io.Writer) (Verdict, error) {
	if p.held == nil {
		if err := p.Hold(); err != nil {
			return Verdict{}, err
		}
		defer p.letGo()
	}
	m, err := p.Ready(ctx)
	if err != nil {
		return Verdict{}, err
	}
	var v Verdict
	j, err := p.listen(ctx)
	if err == nil {
		f := &follower{port: p, journal: j, limits: limits, log: log, bootTimeout: m.bootTimeout()}
		v, err = f.pushAndFollow(ctx, parts)
	}
	if errors.Is(err, errDeaf) {
		return v, err // the driver would take no settings either
	}
	away, cancel := context.WithTimeout(context.WithoutCancel(ctx), restLimit)
	defer cancel()
	if rest := p.rest(away, j, m.level); rest != nil && err == nil {
		// The DPU is as it should be; only what the driver shows is not.
		v.Errors = append(v.Errors, plaintext.OneLine(rest.Error()))
	}
	return v, err
}

// follower collects the messages of one push.
type follower struct {
	port    *Port
	journal *journal
	limits  Limits
	log     io.Writer

	bootTimeout time.Duration // the driver's

	verdict Verdict
	step    *progress.Step
	last    []string // the last messages, for errors
	begun   bool     // a push that failed had reset the DPU
	booted  bool     // a message of this boot was heard
	mute    bool     // the log takes no more
}

func (f *follower) pushAndFollow(ctx context.Context, parts []Part) (Verdict, error) {
	if err := f.push(ctx, parts); err != nil {
		return f.verdict, f.withLast(ctx, err)
	}
	f.step = progress.Start(ctx, "boot "+f.port.name, 0, "")
	err := f.follow(ctx)
	f.step.End(f.verdict.Line, err)
	return f.verdict, err
}

func (f *follower) push(ctx context.Context, parts []Part) error {
	s := newStream(ctx, parts)
	step := progress.Start(ctx, "push to "+f.port.name, s.sizeBytes, progress.Bytes)
	step.Detail("the DPU resets")
	var opened atomic.Bool
	var pushed atomic.Int64 // a call that is broken off may still count
	s.open = func() { opened.Store(true); step.Detail("") }
	s.count = func(n int64) { pushed.Add(n); step.Add(n) }
	watched, stop := f.watch(ctx, step, &pushed)
	err := f.port.wire.push(watched, s)
	stop()
	if err != nil {
		f.begun = opened.Load() && !atOpen(err)
		err = f.port.explain("boot", err)
	}
	if n := pushed.Load(); err != nil && f.begun {
		err = fmt.Errorf("after %d of %d bytes: %w%s", n, s.sizeBytes, err, f.unfinished(ctx))
	}
	step.End(fmt.Sprintf("%d bytes", s.sizeBytes), err)
	return err
}

// unfinished is what a user who broke a push off has to know.
func (f *follower) unfinished(ctx context.Context) string {
	if ctx.Err() == nil {
		return ""
	}
	return "; the DPU was reset and starts nothing before it gets a whole stream\n  next: run the same command again"
}

// watch tells the user of a push that stands still, and ends it when the driver itself
// should have. The push is over before stop returns.
func (f *follower) watch(ctx context.Context, step *progress.Step, pushed *atomic.Int64) (watched context.Context, stop func()) {
	watched, end := context.WithCancelCause(ctx)
	limit := f.bootTimeout + f.limits.Stuck
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(f.limits.Poll)
		defer tick.Stop()
		last, since := pushed.Load(), time.Now()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
			}
			still := time.Since(since).Round(time.Second)
			switch now := pushed.Load(); {
			case now != last:
				last, since = now, time.Now()
				step.Detail("")
			case time.Since(since) > limit:
				end(fmt.Errorf("the driver took nothing for %v, longer than its BOOT_TIMEOUT of %v: %w", still, f.bootTimeout, errStuck))
			case time.Since(since) > f.limits.Notice:
				step.Detail(fmt.Sprintf("the DPU has taken nothing for %v; the driver gives up after %v", still, f.bootTimeout))
			}
		}
	}()
	return watched, func() { end(nil); <-done }
}

// withLast adds what the DPU said last to an error of the push: there stands why it took
// no more.
func (f *follower) withLast(ctx context.Context, err error) error {
	if ctx.Err() != nil || !f.begun {
		return err
	}
	m, misc := f.port.Misc(ctx)
	if misc != nil {
		return err
	}
	for _, line := range f.journal.fresh(m.log) {
		f.keep(line)
	}
	return fmt.Errorf("%w%s", err, f.saidLast())
}

func (f *follower) saidLast() string {
	if len(f.last) == 0 {
		return "; the DPU has said nothing since its reset"
	}
	return "; the DPU said last: " + strings.Join(f.last, " | ")
}

const lastLines = 3

func (f *follower) keep(line string) {
	_, err := fmt.Fprintf(f.log, "%s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05Z"), line)
	if err != nil && !f.mute { // a full disk is no reason to leave the DPU alone
		f.mute = true
		f.verdict.Errors = append(f.verdict.Errors, "what the DPU said is not all in its log: "+err.Error())
	}
	f.last = append(f.last, line)
	f.last = slices.Clone(f.last[max(0, len(f.last)-lastLines):])
}

// follow reads messages until one is the last, or a limit is over.
func (f *follower) follow(ctx context.Context) error {
	began := time.Now()
	heard, there := began, began
	tick := time.NewTicker(f.limits.Poll)
	defer tick.Stop()
	for {
		m, err := f.port.Misc(ctx)
		if ctx.Err() != nil {
			return f.left(ctx)
		}
		if err == nil {
			there = time.Now()
			fresh := f.journal.fresh(m.log)
			if len(fresh) > 0 {
				heard = there
			}
			if over, err := f.hear(fresh); over {
				return err
			}
		} else if time.Since(there) > f.limits.Gone {
			return fmt.Errorf("the stream was pushed whole, but the DPU cannot be followed any longer: %w%s", err, f.saidLast())
		}
		if err := f.overdue(time.Since(heard), time.Since(began)); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return f.left(ctx)
		}
	}
}

// left is the error of somebody who does not wait for the verdict.
func (f *follower) left(ctx context.Context) error {
	return fmt.Errorf("%w; the stream was pushed whole, so the DPU goes on by itself: do not cut its power, rshim:show %s says how far it is%s", context.Cause(ctx), f.port.name, f.saidLast())
}

// hear judges messages. Those that come before any of the boot's own stages are of the
// system that ran until the reset.
func (f *follower) hear(lines []string) (bool, error) {
	for n, line := range lines {
		f.keep(line)
		f.step.Detail(line)
		if f.booted = f.booted || stage.MatchString(line); !f.booted {
			continue
		}
		over, err := f.verdict.addLine(line)
		if over {
			for _, more := range lines[n+1:] {
				f.keep(more)
			}
			return true, err
		}
	}
	return false, nil
}

// overdue says which limit is over, and what that means.
func (f *follower) overdue(silent, all time.Duration) error {
	switch {
	case len(f.last) == 0 && silent > f.limits.First:
		return fmt.Errorf("the stream was pushed whole, but the DPU said nothing for %v; is the stream one for this DPU? bfb:check it, look at %s, and power the host off and on", f.limits.First, f.port.path("console"))
	case f.verdict.NICFirmware == firmwareBegun && silent > f.limits.Firmware:
		return fmt.Errorf("the DPU writes the NIC's firmware and has said nothing for %v%s; do not cut its power, look at %s", f.limits.Firmware, f.saidLast(), f.port.path("console"))
	case f.verdict.NICFirmware != firmwareBegun && len(f.last) > 0 && silent > f.limits.Silence:
		return fmt.Errorf("the DPU has said nothing for %v%s; look at %s", f.limits.Silence, f.saidLast(), f.port.path("console"))
	case all > f.limits.All:
		return fmt.Errorf("the DPU has not said within %v that it is done%s; look at %s", f.limits.All, f.saidLast(), f.port.path("console"))
	}
	return nil
}
