package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// service is a systemd unit.
type service struct {
	unit             string
	enabled, running *bool
}

// readService parses a check of the section service, which needs enabled or running.
func readService(e *Entry) Probe {
	v := service{unit: e.completeUnitName(e.Text("name", e.Name)), enabled: e.Flag("enabled"), running: e.Flag("running")}
	if v.enabled == nil && v.running == nil {
		e.Fail(e.Key, "a service needs enabled or running")
	}
	return v
}

// completeUnitName returns the name of a unit, with .service added if it has no type. It refuses
// blanks, wildcards, and a leading dash, which systemctl reads as an option.
func (e *Entry) completeUnitName(name string) string {
	if name == "" || strings.HasPrefix(name, "-") || strings.ContainsAny(name, " \t\n\x00*?[") {
		e.Fail(e.Key, "%q is not a unit's name", name)
	}
	if strings.Contains(name, ".") {
		return name
	}
	return name + ".service"
}

// Inspect asks systemd whether the unit is installed, enabled and running, as the check expects.
func (v service) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	out, err := s.Output(ctx, "systemctl", "show", "--property=LoadState,ActiveState,SubState,UnitFileState,Result", v.unit)
	if err != nil {
		return f, err
	}
	state := plaintext.Properties(out)
	if state["LoadState"] == "" {
		return f, fmt.Errorf("systemctl show %s answered %q", v.unit, plaintext.Clean(out, 200))
	}
	if state["LoadState"] == "not-found" && (isTrue(v.enabled) || isTrue(v.running)) {
		f.Expect(false, v.unit+" is installed", v.unit+" is not known to systemd")
		return f, nil
	}
	if v.enabled != nil {
		enabled := enabledStates[state["UnitFileState"]]
		f.Expect(enabled == *v.enabled, plaintext.Either(*v.enabled, "enabled", "not enabled"), "unit file is "+cmp.Or(state["UnitFileState"], "absent"))
	}
	if v.running != nil {
		active := state["ActiveState"] == "active" || state["ActiveState"] == "reloading"
		saw := fmt.Sprintf("%s (%s)", state["ActiveState"], state["SubState"])
		if state["ActiveState"] == "failed" {
			saw += ", result: " + state["Result"]
		}
		f.Expect(active == *v.running, plaintext.Either(*v.running, "running", "not running"), saw)
	}
	return f, nil
}

// enabledStates are the states for which `systemctl is-enabled` exits with 0.
var enabledStates = map[string]bool{
	"enabled": true, "enabled-runtime": true, "static": true, "alias": true, "indirect": true, "generated": true,
}

func (v service) Next() string {
	return fmt.Sprintf("on the board: systemctl status %s; journalctl -b -u %s", v.unit, v.unit)
}

func isTrue(b *bool) bool { return b != nil && *b }

// units waits until the board has booted, and checks that no unit has failed.
type units struct{ ignore []string }

func readUnits(e *Entry) Probe { return units{ignore: e.List("ignore")} }

// maxFailedUnits is how many failed units a report shows with their journals.
const maxFailedUnits = 8

// Inspect waits until systemd has started the system, and checks that no unit but u.ignore failed.
func (u units) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	var r boardssh.Result
	err := boardssh.Answer(ctx, 0, "systemctl", func(ctx context.Context) error { // one that waits for the start may be silent for as long
		_, err := s.Board.Run(ctx, "systemctl", "is-system-running")
		return err
	})
	if !errors.Is(err, boardssh.ErrSilent) {
		r, err = s.Board.Run(ctx, "systemctl", "is-system-running", "--wait")
	}
	if err != nil {
		return f, err
	}
	state := plaintext.FirstLine(string(r.Stdout))
	failed, err := u.listFailed(ctx, s)
	if err != nil {
		return f, err
	}
	// A unit that may fail still degrades the system.
	up := state == "running" || state == "degraded" && len(failed) == 0 && len(u.ignore) > 0
	f.Expect(up, `system is "running"`, fmt.Sprintf("system is %q", cmp.Or(state, DescribeResult(r))))
	for i, unit := range failed {
		if i == maxFailedUnits {
			f.saw = append(f.saw, fmt.Sprintf("and %d more failed units", len(failed)-i))
			break
		}
		f.Expect(false, unit+" has not failed", unit+" failed; its last lines:\n"+u.readJournal(ctx, s, unit))
	}
	if f.OK() {
		f.AddFact("no failed units")
	}
	return f, nil
}

// listFailed returns the names of the failed units that u does not ignore.
func (u units) listFailed(ctx context.Context, s *Session) ([]string, error) {
	out, err := s.Output(ctx, "systemctl", "list-units", "--state=failed", "--all", "--plain", "--no-legend", "--no-pager", "--full")
	if err != nil {
		return nil, err
	}
	var failed []string
	for _, line := range plaintext.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) > 0 && !slices.Contains(u.ignore, fields[0]) {
			failed = append(failed, fields[0])
		}
	}
	return failed, nil
}

// readJournal returns the last eight lines of a unit's journal in this boot, or an error, indented.
func (u units) readJournal(ctx context.Context, s *Session, unit string) string {
	out, err := s.Output(ctx, "journalctl", "--boot", "--no-pager", "--quiet", "--lines=8", "--output=short-monotonic", "--unit="+unit)
	if err != nil {
		out = err.Error()
	}
	return "  " + strings.ReplaceAll(plaintext.Clean(strings.TrimSpace(out), 2000), "\n", "\n  ")
}

// Alone returns true: no other check runs while the board is still booting.
func (u units) Alone() bool { return true }

func (u units) Next() string {
	return "on the board: systemctl --failed, then journalctl -b -u <unit>"
}
