package tegra

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"slipway/layers/progress"
)

// forceLimit is how long a board may take from the recovery command to the USB bus.
var forceLimit = 60 * time.Second

const pollEvery = 100 * time.Millisecond

// Force runs command, which brings the board on a port into recovery mode, such as a
// relay's. A board that is in recovery mode already must reappear, since its boot ROM
// talks only once.
func Force(ctx context.Context, h Host, port string, command func(context.Context) error) error {
	if err := CheckPort(port); err != nil {
		return err
	}
	return progress.Run(ctx, "recovery "+port, func(s *progress.Step) (string, error) {
		before, _ := recoveryAt(h.Sys, port)
		limited, stop := context.WithTimeoutCause(ctx, forceLimit, fmt.Errorf("the command of board.yml's flash.recovery took more than %v", forceLimit))
		defer stop()
		s.Detail("running the board's recovery command")
		if err := command(limited); err != nil {
			return "", fmt.Errorf("force recovery mode: %w", err)
		}
		s.Detail("waiting for it on USB")
		found, err := h.waitForRecovery(ctx, port, before.Number)
		return found.Module + " in recovery mode", err
	})
}

// waitForRecovery waits for a board with another number than before.
func (h Host) waitForRecovery(ctx context.Context, port string, before int) (Recovery, error) {
	late := time.NewTimer(forceLimit)
	defer late.Stop()
	for {
		found, ok := recoveryAt(h.Sys, port)
		if ok && found.Number != before {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return Recovery{}, context.Cause(ctx)
		case <-late.C:
			if ok {
				return Recovery{}, fmt.Errorf("USB port %s: the board on it did not come back in %v after the recovery command; does the command act on this board?", port, forceLimit)
			}
			return Recovery{}, fmt.Errorf("USB port %s: no Jetson in recovery mode in %v after the recovery command: %s", port, forceLimit, explainAbsence(h.Sys, port))
		case <-time.After(pollEvery):
		}
	}
}

// Filled replaces {port} in a command by the port, so that one command can serve
// several relays.
func Filled(command []string, port string) ([]string, error) {
	if len(command) == 0 {
		return nil, errors.New("board.yml has no flash.recovery: a command that brings the board into recovery mode")
	}
	filled := make([]string, len(command))
	for i, word := range command {
		filled[i] = strings.ReplaceAll(word, "{port}", port)
	}
	return filled, nil
}
