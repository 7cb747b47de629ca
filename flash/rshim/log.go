package rshim

import (
	"context"
	"slices"
)

// journal tells the DPU's new messages from those that it has shown before. Where the
// driver can clear what was read, each reading holds new messages alone. Older drivers
// cannot: there a reading that begins with the last one goes on from it, and any other is
// of a DPU that was reset, and new from its beginning.
type journal struct {
	clears bool
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
// a stream pushed earlier may have ended in "DPU is ready".
func (p *Port) listen(ctx context.Context) (*journal, error) {
	if err := p.set(ctx, "DISPLAY_LEVEL", "2"); err != nil {
		return nil, err
	}
	j := &journal{clears: p.set(ctx, "CLEAR_ON_READ", "1") == nil}
	first, err := p.Misc(ctx)
	if err != nil {
		return nil, err
	}
	second, err := p.Misc(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(first.log); n > 0 && len(second.log) >= n && slices.Equal(first.log, second.log[:n]) {
		j.clears = false // it said that it would
	}
	j.last = second.log
	return j, nil
}

// rest puts the settings back that listen changed.
func (p *Port) rest(ctx context.Context, j *journal, level string) error {
	if level != "" && level != "2" {
		if err := p.set(ctx, "DISPLAY_LEVEL", level); err != nil {
			return err
		}
	}
	if !j.clears {
		return nil
	}
	return p.set(ctx, "CLEAR_ON_READ", "0")
}
