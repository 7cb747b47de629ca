package rshim

import (
	"cmp"
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

// Limits are time limits for a DPU. While the DPU takes no data, the driver waits for its own
// BOOT_TIMEOUT. Some releases wait for ever (rshim-user-space#413).
type Limits struct {
	Notice   time.Duration // without a byte taken, after which the user is told
	Stuck    time.Duration // without a byte taken, beyond the driver's own BOOT_TIMEOUT
	First    time.Duration // until its first message, counted from the push's end
	Silence  time.Duration // longest time between two messages: an installer may write a whole disk in between
	Firmware time.Duration // the same while the NIC's firmware is written
	All      time.Duration // from the push's end to the last message
	Gone     time.Duration // that the driver's files may be away: over USB they go and come with a reset
	Poll     time.Duration // how often the messages are read
}

// Patient are limits for real hardware. NVIDIA's pages say that firmware may take half an hour.
var Patient = Limits{
	Notice: 15 * time.Second, Stuck: time.Minute,
	First: 5 * time.Minute, Silence: 20 * time.Minute, Firmware: 40 * time.Minute, All: 90 * time.Minute,
	Gone: 2 * time.Minute, Poll: time.Second,
}

// restoreLimit is how long restoring the settings may take after the context ended.
const restoreLimit = 10 * time.Second

// Push locks and resets the DPU, pushes the parts in order, and follows the DPU's messages until
// one states the outcome. It writes the messages with their times to log. Then it restores the
// driver's settings, unless that hangs. Once the push has begun, the DPU's former system is lost.
func (p *Port) Push(ctx context.Context, parts []Part, limits Limits, log io.Writer) (Verdict, error) {
	if p.lock == nil {
		if err := p.Hold(); err != nil {
			return Verdict{}, err
		}
		defer p.unlock()
	}
	m, err := p.CheckReady(ctx)
	if err != nil {
		return Verdict{}, err
	}
	var v Verdict
	j, err := p.startMessages(ctx)
	if err == nil {
		f := &follower{port: p, journal: j, limits: limits, log: log, bootTimeout: m.bootTimeout()}
		v, err = f.pushAndFollow(ctx, parts)
	}
	if errors.Is(err, errDeaf) {
		return v, err // the driver would accept no settings either
	}
	away, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreLimit)
	defer cancel()
	if rest := p.restoreSettings(away, j, m.level); rest != nil && err == nil {
		// The DPU is fine; only the driver's display settings are not restored.
		v.Errors = append(v.Errors, plaintext.OneLine(rest.Error()))
	}
	return v, err
}

// follower collects the messages of one push.
type follower struct {
	port    *Port
	journal *messageLog
	limits  Limits
	log     io.Writer

	bootTimeout time.Duration // the driver's

	verdict   Verdict
	step      *progress.Step
	last      []string // the last messages, for errors
	begun     bool     // a failed push has reset the DPU
	booted    bool     // a message of this boot was read
	logFailed bool     // writing to the log failed
}

// pushAndFollow pushes the parts, and reads the DPU's messages to the final one.
func (f *follower) pushAndFollow(ctx context.Context, parts []Part) (Verdict, error) {
	if err := f.pushParts(ctx, parts); err != nil {
		return f.verdict, f.withLastMessages(ctx, err)
	}
	f.step = progress.Start(ctx, "boot "+f.port.name, 0, "")
	err := f.followMessages(ctx)
	f.step.End(f.verdict.Line, err)
	return f.verdict, err
}

// pushParts pushes the parts and shows the progress. If it fails after the reset, it sets f.begun.
func (f *follower) pushParts(ctx context.Context, parts []Part) error {
	s := newStream(ctx, parts)
	step := progress.Start(ctx, "push to "+f.port.name, s.sizeBytes, progress.Bytes)
	step.Detail("the DPU resets")
	var opened atomic.Bool
	var pushed atomic.Int64 // an interrupted call may still count
	s.open = func() { opened.Store(true); step.Detail("") }
	s.count = func(n int64) { pushed.Add(n); step.Add(n) }
	watched, stop := f.watchProgress(ctx, step, &pushed)
	err := f.port.files.pushStream(watched, s)
	stop()
	if err != nil {
		f.begun = opened.Load() && !failedAtOpen(err)
		err = f.port.explainError("boot", err)
	}
	if n := pushed.Load(); err != nil && f.begun {
		err = fmt.Errorf("after %d of %d bytes: %w", n, s.sizeBytes, err)
		if ctx.Err() != nil { // the user interrupted it
			err = fmt.Errorf("%w; the DPU was reset and starts nothing before it gets a whole stream\nnext: repeat the line", err)
		}
	}
	step.End(fmt.Sprintf("%d bytes", s.sizeBytes), err)
	return err
}

// watchProgress watches a push in a goroutine. It tells the user if the DPU takes no data for a
// while, and cancels watched if the driver should have given up itself. stop ends the goroutine.
func (f *follower) watchProgress(ctx context.Context, step *progress.Step, pushed *atomic.Int64) (watched context.Context, stop func()) {
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

// withLastMessages reads the DPU's messages, logs them, and adds the last ones to the error of a
// push that reset the DPU. They say why the DPU took no more data.
func (f *follower) withLastMessages(ctx context.Context, err error) error {
	if ctx.Err() != nil || !f.begun {
		return err
	}
	m, misc := f.port.Misc(ctx)
	if misc != nil {
		return err
	}
	for _, line := range f.journal.newMessages(m.log) {
		f.logMessage(line)
	}
	return fmt.Errorf("%w%s", err, f.lastMessages())
}

// lastMessages returns the DPU's last messages, or that it sent none, as the end of an error text.
func (f *follower) lastMessages() string {
	if len(f.last) == 0 {
		return "; the DPU has said nothing since its reset"
	}
	return "; the DPU said last: " + strings.Join(f.last, " | ")
}

const lastLines = 3

// logMessage logs a line with the time, adds it to f.last, and adds the first error to the verdict.
func (f *follower) logMessage(line string) {
	_, err := fmt.Fprintf(f.log, "%s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05Z"), line)
	if err != nil && !f.logFailed { // a full disk does not stop the following
		f.logFailed = true
		f.verdict.Errors = append(f.verdict.Errors, "what the DPU said is not all in its log: "+err.Error())
	}
	f.last = append(f.last, line)
	f.last = slices.Clone(f.last[max(0, len(f.last)-lastLines):])
}

// followMessages reads and logs messages until the final one, or until a limit is exceeded.
func (f *follower) followMessages(ctx context.Context) error {
	began := time.Now()
	heard, there := began, began
	tick := time.NewTicker(f.limits.Poll)
	defer tick.Stop()
	for {
		m, err := f.port.Misc(ctx)
		if ctx.Err() != nil {
			return f.interruptedError(ctx)
		}
		if err == nil {
			there = time.Now()
			fresh := f.journal.newMessages(m.log)
			if len(fresh) > 0 {
				heard = there
			}
			if over, err := f.judgeMessages(fresh); over {
				return err
			}
		} else if time.Since(there) > f.limits.Gone {
			return fmt.Errorf("the stream was pushed whole, but the DPU cannot be followed any longer: %w%s", err, f.lastMessages())
		}
		if err := f.checkLimits(time.Since(heard), time.Since(began)); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return f.interruptedError(ctx)
		}
	}
}

// interruptedError returns the error of a user's interrupt after the push: the DPU continues alone.
func (f *follower) interruptedError(ctx context.Context) error {
	return fmt.Errorf("%w; the stream was pushed whole, so the DPU continues by itself: do not cut its power, rshim show %s says how far it is%s", context.Cause(ctx), f.port.name, f.lastMessages())
}

// judgeMessages logs the lines and adds them to the verdict. It returns true after the final
// message. The verdict ignores lines before the first boot stage, which the old system wrote.
func (f *follower) judgeMessages(lines []string) (bool, error) {
	for n, line := range lines {
		f.logMessage(line)
		f.step.Detail(line)
		if f.booted = f.booted || stage().MatchString(line); !f.booted {
			continue
		}
		over, err := f.verdict.addLine(line)
		if over {
			for _, more := range lines[n+1:] {
				f.logMessage(more)
			}
			return true, err
		}
	}
	return false, nil
}

// checkLimits returns an error if silent (since the last message) or total is too long.
func (f *follower) checkLimits(silent, total time.Duration) error {
	switch {
	case len(f.last) == 0 && silent > f.limits.First:
		return fmt.Errorf("the stream was pushed whole, but the DPU said nothing for %v; is the stream one for this DPU? bfb check it, look at %s, and power the host off and on", f.limits.First, f.port.filePath("console"))
	case f.verdict.NICFirmware == firmwareBegun && silent > f.limits.Firmware:
		return fmt.Errorf("the DPU writes the NIC's firmware and has said nothing for %v%s; do not cut its power, look at %s", f.limits.Firmware, f.lastMessages(), f.port.filePath("console"))
	case f.verdict.NICFirmware != firmwareBegun && len(f.last) > 0 && silent > f.limits.Silence:
		return fmt.Errorf("the DPU has said nothing for %v%s; look at %s", f.limits.Silence, f.lastMessages(), f.port.filePath("console"))
	case total > f.limits.All:
		return fmt.Errorf("the DPU has not said within %v that it is done%s; look at %s", f.limits.All, f.lastMessages(), f.port.filePath("console"))
	}
	return nil
}

// messageLog separates the DPU's new messages from those already seen. A driver that clears what
// was read returns only new messages. From older drivers, a reading that begins with the previous
// one continues it; any other is from a DPU that was reset, so all of it is new.
type messageLog struct {
	clears bool
	before string // CLEAR_ON_READ to restore; "": the driver refuses that setting
	last   []string
}

// newMessages returns the messages of a reading after those of j.last, and sets j.last to it. It
// returns all if the reading does not begin with those, or if the driver clears read messages.
func (j *messageLog) newMessages(reading []string) []string {
	if j.clears {
		return reading
	}
	last := j.last
	j.last = reading
	if len(reading) >= len(last) && slices.Equal(reading[:len(last)], last) {
		return reading[len(last):]
	}
	return reading
}

// startMessages makes the driver show the DPU's messages and clear read ones, and finds out if it
// does. It skips the present ones: an earlier stream may have ended in "DPU is ready". It returns a
// messageLog, for restoreSettings, even if it fails.
func (p *Port) startMessages(ctx context.Context) (*messageLog, error) {
	j := &messageLog{}
	if err := p.writeSetting(ctx, "DISPLAY_LEVEL", "1"); err != nil { // shows CLEAR_ON_READ
		return j, err
	}
	before, err := p.Misc(ctx)
	if err == nil {
		err = p.writeSetting(ctx, "DISPLAY_LEVEL", "2")
	}
	if err != nil {
		return j, err
	}
	if p.writeSetting(ctx, "CLEAR_ON_READ", "1") == nil {
		j.before = cmp.Or(before.clear, "0")
	}
	first, err := p.Misc(ctx)
	if err != nil {
		return j, err
	}
	second, err := p.Misc(ctx)
	if err != nil {
		return j, err
	}
	n := len(first.log)
	saidSo := n > 0 && len(second.log) >= n && slices.Equal(first.log, second.log[:n])
	j.clears = j.before != "" && !saidSo
	j.last = second.log
	return j, nil
}

// restoreSettings sets DISPLAY_LEVEL to level, unless that is "", and CLEAR_ON_READ to what it was
// before startMessages.
func (p *Port) restoreSettings(ctx context.Context, j *messageLog, level string) error {
	var errs []error
	if level != "" {
		errs = append(errs, p.writeSetting(ctx, "DISPLAY_LEVEL", level))
	}
	if j.before != "" {
		errs = append(errs, p.writeSetting(ctx, "CLEAR_ON_READ", j.before))
	}
	return errors.Join(errs...)
}
