package update

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// refuseUntrusted returns the finding about a bundle that the board's engine refused. A
// wrong clock of the board can be the reason.
func (s *Source) refuseUntrusted(ctx context.Context, why error) Finding {
	board, err := s.boardClock(ctx)
	here := time.Now()
	wrong := err == nil && board.Sub(here).Abs() > clockSlack
	if !wrong || !s.signed.isClockProblem(board, why) {
		return refusedFinding("take a bundle that was signed for this board and is whole", "%v", why)
	}
	next := fmt.Sprintf("set the board's clock, then run update again; on the board: date -u -s '%s'", here.UTC().Format(time.DateTime))
	return refusedFinding(next, "the board's clock says %s, and this machine's %s: %v", formatClock(board), formatClock(here), why)
}

// clockSlack is the allowed difference of two clocks. Certificates last for years.
const clockSlack = 10 * time.Minute

func formatClock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// isClockProblem reports whether the board's clock can be the reason for an invalid
// certificate. The engine's error says so, or the board's time is outside the validity.
func (v validity) isClockProblem(board time.Time, why error) bool {
	for _, word := range []string{"not yet valid", "expired"} {
		if strings.Contains(why.Error(), word) {
			return true
		}
	}
	return !v.from.IsZero() && (board.Before(v.from) || board.After(v.until))
}

func (s *Source) boardClock(ctx context.Context) (time.Time, error) {
	r, err := s.board.Ask(ctx, "date", "+%s")
	if err != nil {
		return time.Time{}, err
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(string(r.Stdout)), 10, 64)
	if err != nil || seconds < 0 || seconds > 1<<40 {
		return time.Time{}, fmt.Errorf("the board's date says what is no time: status %d", r.Status)
	}
	return time.Unix(seconds, 0), nil
}
