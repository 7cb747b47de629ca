package ci

import "context"

// logs are what the board itself has to say about a failure. One that cannot be
// had is left out: the failed checks stand in the report already.
func (s *session) logs(ctx context.Context) []Log {
	if s.isLost() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	var logs []Log
	for _, l := range []struct {
		name string
		argv []string
	}{
		{"journal, errors of this boot", []string{"journalctl", "--boot", "--priority=err", "--no-pager", "--quiet", "--lines=200", "--output=short-monotonic"}},
		{"kernel messages, the last 150", []string{"sh", "-c", "dmesg | tail -n 150"}},
	} {
		r, err := s.board.Run(ctx, l.argv...)
		if err == nil && r.Status == 0 && len(r.Stdout) > 0 {
			logs = append(logs, Log{Name: l.name, Text: cleanTail(string(r.Stdout), maxLogBytes)})
		}
	}
	return logs
}
