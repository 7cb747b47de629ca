package undo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// maxUnits limits how many units one deploy may restart.
const maxUnits = 50

var unitPattern = plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9:_.@\\-]{0,200}$`)

// CheckUnits returns an error for an invalid unit name, or for more than maxUnits names.
func CheckUnits(units []string) error {
	if len(units) > maxUnits {
		return fmt.Errorf("more than %d units", maxUnits)
	}
	for _, u := range units {
		if !unitPattern().MatchString(u) {
			return fmt.Errorf("%q is no name of a unit", u)
		}
	}
	return nil
}

// ErrUnit means that a unit did not start, or did not keep running.
var ErrUnit = errors.New("the unit does not run")

// RestartUnits reloads systemd, and if it can load all units, restarts them one by one. It then
// checks for the duration watch that they run. Else it returns an ErrUnit with the journal's end.
func RestartUnits(ctx context.Context, c *boardssh.Conn, units []string, watch time.Duration) error {
	if err := CheckUnits(units); err != nil {
		return err
	}
	return progress.Run(ctx, "restart "+strings.Join(units, ", "), func(s *progress.Step) (string, error) {
		if err := reloadSystemd(ctx, c); err != nil {
			return "", err
		}
		before := map[string]unit{}
		for _, name := range units {
			if err := checkUnitLoads(ctx, c, name); err != nil {
				return "", err
			}
		}
		for _, name := range units {
			s.Detail(name)
			r, err := c.Run(ctx, "systemctl", "restart", name)
			if err != nil {
				return "", err
			}
			if before[name], err = showUnit(ctx, c, name); err != nil {
				return "", err
			}
			if r.Status != 0 || !before[name].isRunning() {
				return "", describeFailedUnit(ctx, c, name, before[name])
			}
		}
		return "active", watchUnits(ctx, c, before, watch)
	})
}

// RestoreUnits restarts units whose files an undo restored. It stops units whose file the undo
// removed, because the deploy had added it.
func RestoreUnits(ctx context.Context, c *boardssh.Conn, units []string) error {
	if err := CheckUnits(units); err != nil {
		return err
	}
	left, err := stopRemovedUnits(ctx, c, units)
	if err != nil || len(left) == 0 {
		return err
	}
	return RestartUnits(ctx, c, left, 0)
}

// reloadSystemd makes systemd read its files. The next step of an error runs that again.
func reloadSystemd(ctx context.Context, c *boardssh.Conn) error {
	_, err := c.AskOutput(ctx, "systemctl", "daemon-reload")
	if err == nil || ctx.Err() != nil || errors.Is(err, boardssh.ErrSilent) {
		return err
	}
	return c.NextOnBoard(err, "systemctl daemon-reload", "see why it fails")
}

// stopRemovedUnits reloads systemd and stops units without a file. It returns the others.
func stopRemovedUnits(ctx context.Context, c *boardssh.Conn, units []string) (left []string, err error) {
	if err := reloadSystemd(ctx, c); err != nil {
		return nil, err
	}
	for _, name := range units {
		u, err := showUnit(ctx, c, name)
		if err != nil {
			return nil, err
		}
		if u["LoadState"] != "not-found" {
			left = append(left, name)
		} else if err := stopRemovedUnit(ctx, c, name, u["ActiveState"]); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// stopRemovedUnit stops a unit without a file, or clears its failed state, unless it is inactive.
func stopRemovedUnit(ctx context.Context, c *boardssh.Conn, name, state string) error {
	if state == "inactive" {
		return nil // systemctl stop refuses a unit that systemd does not know
	}
	return progress.Run(ctx, "stop "+name, func(*progress.Step) (string, error) {
		if state == "failed" {
			_, err := c.AskOutput(ctx, "systemctl", "reset-failed", name)
			return "it has no file any more", err
		}
		_, err := c.Output(ctx, "systemctl", "stop", name)
		return "it has no file any more", err
	})
}

// checkUnitLoads refuses a unit that systemd cannot load, because a restart would only stop it.
func checkUnitLoads(ctx context.Context, c *boardssh.Conn, name string) error {
	u, err := showUnit(ctx, c, name)
	if err == nil && u["LoadState"] != "loaded" {
		err = describeFailedUnit(ctx, c, name, u)
	}
	return err
}

// watchUnits checks every second, for the duration of watch, that all units run and that systemd
// has not restarted one. before has their states after the restart.
func watchUnits(ctx context.Context, c *boardssh.Conn, before map[string]unit, watch time.Duration) error {
	for over := time.Now().Add(watch); time.Now().Before(over); {
		if err := run.Sleep(ctx, min(time.Second, watch)); err != nil {
			return err
		}
		for name, was := range before {
			is, err := showUnit(ctx, c, name)
			if err != nil {
				return err
			}
			if !is.isRunning() || is["NRestarts"] != was["NRestarts"] {
				return describeFailedUnit(ctx, c, name, is)
			}
		}
	}
	return nil
}

// unit holds the properties of a unit that systemctl show prints.
type unit map[string]string

// showUnit reads the state of a unit from systemctl show.
func showUnit(ctx context.Context, c *boardssh.Conn, name string) (unit, error) {
	text, err := c.AskOutput(ctx, "systemctl", "show", "--property=LoadState,LoadError,ActiveState,SubState,Result,NRestarts,Type", name)
	if err != nil {
		return nil, err
	}
	return plaintext.Properties(text), nil
}

// isRunning reports whether a unit is active, reloading, in first start, or a successful oneshot.
func (u unit) isRunning() bool {
	switch u["ActiveState"] {
	case "active", "reloading":
		return true
	case "activating":
		return u["SubState"] != "auto-restart" && u["NRestarts"] == "0"
	case "inactive":
		return u["Type"] == "oneshot" && u["Result"] == "success"
	}
	return false
}

const journalLines = "20"

// describeFailedUnit returns an ErrUnit with the unit's state and the last lines of its journal.
func describeFailedUnit(ctx context.Context, c *boardssh.Conn, name string, u unit) error {
	state := fmt.Sprintf("%s: %s, %s, %s, result %s", name, u["LoadState"], u["ActiveState"], u["SubState"], u["Result"])
	if u["LoadError"] != "" {
		state += ", " + u["LoadError"]
	}
	r, err := c.Ask(ctx, "journalctl", "--no-pager", "--lines="+journalLines, "--output=cat", "--unit="+name)
	if err != nil {
		return fmt.Errorf("%w: %s; its journal: %w", ErrUnit, boardssh.Printable(state), err)
	}
	var lines strings.Builder
	for line := range strings.Lines(string(r.Stdout)) {
		lines.WriteString("\n  " + boardssh.Printable(line))
	}
	err = fmt.Errorf("%w: %s; its journal says:%s", ErrUnit, boardssh.Printable(state), lines.String())
	return c.NextOnBoard(err, "systemctl status "+name, "see why")
}
