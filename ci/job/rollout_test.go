package job

import (
	"fmt"
	"strings"
	"testing"

	"slipway/ci/fleet"
	"slipway/ci/report"
)

// Reports come from boards, and are packed: few bytes can be much text. Logs are not kept, and reports
// that are too large together are refused.
func TestOutcomeIsLimited(t *testing.T) {
	var s RolloutState
	for i := range 6 {
		s.Results = append(s.Results, RolloutResult{RolloutBoard: RolloutBoard{Name: fmt.Sprintf("lab-%d", i)}, Result: &fleet.Result{Kind: fleet.Passed, Checks: 1}})
	}
	much := strings.Repeat("x", maxOutcomeBytes/5)
	_, reports, err := s.Outcome(func(w ReportWish) (report.Report, error) {
		return report.Report{Board: w.Name, Logs: []report.Log{{Text: much}}}, nil
	})
	if err != nil || len(reports) != 6 || reports[5].Board != "lab-5" || reports[5].Logs != nil {
		t.Errorf("Outcome = %d reports, %v; want six without logs", len(reports), err)
	}
	read := 0
	_, _, err = s.Outcome(func(ReportWish) (report.Report, error) {
		read++
		return report.Report{Board: much}, nil
	})
	if err == nil || !strings.Contains(err.Error(), "larger than 256.0 MiB\nnext: hub report lab-4") || read != 5 {
		t.Errorf("Outcome = %v after %d reports; want an error after 5", err, read)
	}
}

// People read one word for a state, in the program and on the page.
func TestWord(t *testing.T) {
	for want, s := range map[string]RolloutState{
		"canaries":               {},
		"wave 1":                 {Rollout: Rollout{Wave: 1}},
		"boards that came later": {Rollout: Rollout{Wave: 2}},
		"paused":                 {Rollout: Rollout{Wish: Pause}},
		"stopping":               {Rollout: Rollout{Wish: Cancel}},
		"stopped":                {Rollout: Rollout{Wish: Cancel, Ended: true}},
		"ended":                  {Rollout: Rollout{Wish: Go, Ended: true}},
	} {
		if got := s.Word(); got != want {
			t.Errorf("Word of the rollout %+v = %q; want %q", s.Rollout, got, want)
		}
	}
	passed := Job{State: Ended, Stop: Now, Result: &Result{}}
	passed.Result.Kind = "passed"
	for want, j := range map[string]Job{"queued": {State: Queued}, "stopping": {State: Running, Stop: Gently}, "stopping now": {State: Running, Stop: Now}, "passed": passed} {
		if got := j.Word(); got != want {
			t.Errorf("Word of the job %+v = %q; want %q", j, got, want)
		}
	}
}
