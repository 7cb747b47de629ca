package suite

import (
	"context"
	"strings"

	"slipway/ci/report"
)

// journalTail prints the end of a boot's journal, at most as long as a command's output may
// be. $1 is the boot as journalctl counts them: 0 is this one, -1 the one before.
const journalTail = `journalctl --boot="$1" --no-pager --quiet --output=short-monotonic | tail -c 1000000`

// readLogs reads the board's logs after a failure. began is the boot id at the beginning of
// the run: if the board restarted since, the logs include the boot before. It leaves out a
// log that it cannot read.
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
