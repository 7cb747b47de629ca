package rshim

import (
	"context"
	"errors"
	"slices"
)

// messageLog separates the DPU's new messages from those already seen. Where the driver
// clears what was read, each reading holds only new messages. Older drivers cannot
// clear. There a reading that begins with the previous one continues it. Any other
// reading comes from a DPU that was reset, so all of it is new.
type messageLog struct {
	clears bool
	asked  bool // the driver accepted the setting, whether it clears or not
	last   []string
}

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

// startMessages makes the driver show the DPU's messages and skips the present ones: an earlier
// stream may have ended in "DPU is ready". It returns its changes even if it fails.
func (p *Port) startMessages(ctx context.Context) (*messageLog, error) {
	j := &messageLog{}
	if err := p.writeSetting(ctx, "DISPLAY_LEVEL", "2"); err != nil {
		return j, err
	}
	j.asked = p.writeSetting(ctx, "CLEAR_ON_READ", "1") == nil
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

// restoreSettings restores the settings that startMessages changed.
func (p *Port) restoreSettings(ctx context.Context, j *messageLog, level string) error {
	var errs []error
	if level != "" && level != "2" {
		errs = append(errs, p.writeSetting(ctx, "DISPLAY_LEVEL", level))
	}
	if j.asked {
		errs = append(errs, p.writeSetting(ctx, "CLEAR_ON_READ", "0"))
	}
	return errors.Join(errs...)
}
