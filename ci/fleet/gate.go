package fleet

import (
	"fmt"

	"slipway/ci/report"
)

// Gate says when work on many boards stops, and which boards are tried again.
type Gate struct {
	Canary    int // so many pass before the others begin; 0: none
	StopAfter int // failures, after which no board is begun; 0: never
	Retries   int // of boards that another try can help
}

// ForBoards returns the gate for a number of boards: it has at most as many canaries.
func (g Gate) ForBoards(boards int) Gate {
	g.Canary = min(g.Canary, boards)
	return g
}

// Stop returns why no further board may begin, or "". failing counts the boards that failed and are
// not tried again at this moment, canariesFailed those of canaries whose attempts have ended.
func (g Gate) Stop(failing, canariesFailed int) (why string) {
	switch {
	case canariesFailed > 0:
		return fmt.Sprintf("%d of %d canaries failed", canariesFailed, g.Canary)
	case g.StopAfter > 0 && failing >= g.StopAfter:
		return fmt.Sprintf("%s failed (--stop-after=%d)", report.Boards(failing), g.StopAfter)
	}
	return ""
}

// MayRetry reports whether a board gets another attempt, unless the work stops: its last attempt
// ended with this kind and was number tries.
func (g Gate) MayRetry(kind Kind, tries int) bool { return kind.Retry() && tries <= g.Retries }
