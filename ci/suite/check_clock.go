package suite

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"slipway/layers/plaintext"
)

// clock checks that the board's time is near this machine's.
type clock struct{ within time.Duration }

func readClock(e *Entry) Probe {
	return clock{within: time.Duration(e.Number("within", 5, 1, 86400)) * time.Second}
}

func (c clock) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	sent := time.Now()
	out, err := s.Output(ctx, "date", "-u", "+%s")
	if err != nil {
		return f, err
	}
	received := time.Now()
	seconds, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		return f, fmt.Errorf("date answered %q", plaintext.Clean(out, 200))
	}
	off := clockOffset(time.Unix(seconds, 0), sent, received)
	f.Expect(off.Abs() <= c.within, fmt.Sprintf("within %v of this machine's clock", c.within),
		fmt.Sprintf("%s; the board says %s", formatOffset(off), time.Unix(seconds, 0).UTC().Format(time.RFC3339)))
	return f, nil
}

func formatOffset(off time.Duration) string {
	if off == 0 {
		return "no difference"
	}
	return fmt.Sprintf("%v %s", off.Abs().Round(time.Millisecond), plaintext.Either(off < 0, "behind", "ahead"))
}

// clockOffset returns the least possible offset of a clock that shows whole seconds. The
// board read it at some time between sent and received.
func clockOffset(shown, sent, received time.Time) time.Duration {
	switch {
	case shown.Add(time.Second).Before(sent):
		return shown.Add(time.Second).Sub(sent)
	case shown.After(received):
		return shown.Sub(received)
	}
	return 0
}

func (c clock) Next() string {
	return "on the board: timedatectl; look whether it has a clock with a battery, and reaches a time server"
}
