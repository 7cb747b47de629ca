package suite

import (
	"context"
	"strings"

	"slipway/ci/report"
)

// journalTail prints the last 1,000,000 bytes of a boot's journal. $1 is the boot as journalctl
// counts: 0 is this one, -1 the one before.
const journalTail = `journalctl --boot="$1" --no-pager --quiet --output=short-monotonic | tail -c 1000000`

// readLogs returns the board's journal and kernel messages, for a report of a failure. If the boot
// id is no longer the one in began, it adds the journal of the previous boot. It leaves out empty
// and unreadable logs, and all logs of a lost board.
func (s *Session) readLogs(ctx context.Context, began string) []report.Log {
	if s.isLost() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	sources := []struct {
		name string
		argv []string
	}{
		{"journal, errors of this boot", []string{"journalctl", "--boot", "--priority=err", "--no-pager", "--quiet", "--lines=200", "--output=short-monotonic"}},
		{"kernel messages, the last 150", []string{"sh", "-c", "dmesg | tail -n 150"}},
		{"journal of this boot", []string{"sh", "-c", journalTail, "sh", "0"}},
		{"journal of the boot before", []string{"sh", "-c", journalTail, "sh", "-1"}},
	}
	if boot, err := s.Board.Run(ctx, "cat", "/proc/sys/kernel/random/boot_id"); err != nil || began == "" || strings.TrimSpace(string(boot.Stdout)) == began {
		sources = sources[:3]
	}
	var logs []report.Log
	for _, l := range sources {
		r, err := s.Board.Run(ctx, l.argv...)
		if err == nil && r.Status == 0 && len(r.Stdout) > 0 {
			logs = append(logs, report.NewLog(l.name, string(r.Stdout)))
		}
	}
	return logs
}
