package rshim

import (
	"context"
	"errors"
	"slices"
)

// journal tells the DPU's new messages from those that it has shown before. Where the
// driver can clear what was read, each reading holds new messages alone. Older drivers
// cannot: there a reading that begins with the last one goes on from it, and any other is
// of a DPU that was reset, and new from its beginning.
type journal struct {
	clears bool
	asked  bool // the driver took the setting, whether it clears or not
	last   []string
}

func (j *journal) fresh(reading []string) []string {
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

// listen makes the driver show the DPU's messages, and passes over those that are there:
// a stream pushed earlier may have ended in "DPU is ready". What it changed it says also
// where it fails.
func (p *Port) listen(ctx context.Context) (*journal, error) {
	j := &journal{}
	if err := p.set(ctx, "DISPLAY_LEVEL", "2"); err != nil {
		return j, err
	}
	j.asked = p.set(ctx, "CLEAR_ON_READ", "1") == nil
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
	j.clears = j.asked && !saidSo
	j.last = second.log
	return j, nil
}

// rest puts the settings back that listen changed.
func (p *Port) rest(ctx context.Context, j *journal, level string) error {
	var errs []error
	if level != "" && level != "2" {
		errs = append(errs, p.set(ctx, "DISPLAY_LEVEL", level))
	}
	if j.asked {
		errs = append(errs, p.set(ctx, "CLEAR_ON_READ", "0"))
	}
	return errors.Join(errs...)
}
