package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/ci"
	"slipway/ci/report"
	boardupdate "slipway/flash/boardssh/update"
	"slipway/images"
)

// simulateUpdate simulates a fleet that is to be updated, and the result of each board's
// update. The tests of ci run a real engine.
func simulateUpdate(t *testing.T, boards int, come map[string]func(*attempt) (ci.Outcome, error), faults ...boardFault) *simulation {
	t.Helper()
	p := simulate(t, boards, faults...)
	head := "070702" + strings.Repeat("0", 88) + "%08X" + strings.Repeat("0", 8) // with the length of the name
	bundle := fmt.Sprintf(head+"sw-description\x00\x00\x00\x00"+head+"TRAILER!!!\x00\x00\x00\x00", 15, 11)
	file := filepath.Join(t.TempDir(), "new.swu")
	if err := os.WriteFile(file, []byte(bundle), 0o600); err != nil {
		t.Fatal(err)
	}
	p.request.File, p.request.To, p.request.Update = "", "", file
	p.update = func(_ context.Context, a *attempt, how ci.UpdateOptions) (ci.Outcome, error) {
		if how.DryRun != p.request.DryRun || a.bundle.Kind != boardupdate.SWUpdate {
			t.Errorf("%s: asked for %+v with a bundle of %s", a.job.host.Name, how, a.bundle.Kind)
		}
		if end := come[a.job.host.Name]; end != nil {
			return end(a)
		}
		return comesTo(ci.NewSystem, true, nil)(a)
	}
	return p
}

// comesTo returns an update after which a system runs.
func comesTo(system ci.System, restarted bool, err error) func(*attempt) (ci.Outcome, error) {
	return func(*attempt) (ci.Outcome, error) {
		o := ci.Outcome{System: system, Restarted: restarted, Committed: err == nil && system == ci.NewSystem, Version: "2", SentBytes: 5}
		o.Report.Stages = []report.Stage{{Name: "install", Status: report.Passed}, {Name: "smoke", Status: report.Passed}}
		return o, err
	}
}

// The kind of an update's result is that of the system that runs.
func TestUpdateKinds(t *testing.T) {
	failed := errors.New("it failed")
	want := []Kind{Passed, WentBack, OnTrial, Unsure, NotTaken, NotTaken, Other, Lost, Lost}
	p := simulateUpdate(t, len(want), map[string]func(*attempt) (ci.Outcome, error){
		"board-001": comesTo(ci.OldSystem, true, report.ErrFailed),
		"board-002": comesTo(ci.NewSystem, true, failed),
		"board-003": comesTo(ci.UnknownSystem, true, failed),
		"board-004": comesTo(ci.OldSystem, false, boardupdate.ErrRefused),
		"board-005": comesTo(ci.UnknownSystem, false, boardupdate.ErrNoEngine),
		"board-006": comesTo(ci.OldSystem, false, failed),
		"board-007": comesTo(ci.OldSystem, false, boardupdate.ErrLost),
		"board-008": func(a *attempt) (ci.Outcome, error) { // only the board's silence shows this
			a.conn.Close()
			return comesTo(ci.OldSystem, false, failed)(a)
		},
	})
	outcome, err := p.runPlan(t.Context())
	if !errors.Is(err, report.ErrFailed) {
		t.Errorf("error %v; want %v, which is what the worst one is", err, report.ErrFailed)
	}
	for i, r := range outcome.Results {
		if r.Kind != want[i] {
			t.Errorf("%s ended as %q (%s); want %q", r.Host, r.Kind, r.Saw, want[i])
		}
	}
	if r := outcome.Results[0]; r.System != ci.NewSystem || r.Version != "2" || r.SentBytes != 5 {
		t.Errorf("the result is %+v; want what the update came to", r)
	}
	p.checkFiles(outcome)
}

// The result of the canary decides about the others. --failed continues with those, and asks
// the user first.
func TestUpdateCanary(t *testing.T) {
	p := simulateUpdate(t, 3, map[string]func(*attempt) (ci.Outcome, error){"board-000": comesTo(ci.OldSystem, true, report.ErrFailed)})
	p.request.Canary = 1
	outcome, _ := p.runPlan(t.Context())
	if n := outcome.countKinds(); n[WentBack] != 1 || n[NotBegun] != 2 {
		t.Fatalf("%s; want that only the canary was begun", n)
	}
	p.request.Failed, p.request.Limit = true, "all:!board-000"
	outcome, err := p.runPlan(t.Context())
	if n := outcome.countKinds(); err == nil || n[WentBack] != 1 || n[Passed] != 2 {
		t.Errorf("--failed: %v, %s; want the two others updated", err, n)
	}
	p.request.Failed, p.request.DryRun = false, true
	if outcome, err = p.runPlan(t.Context()); err != nil || outcome.countKinds()[Passed] != 2 || !strings.HasPrefix(outcome.Work, "preflight ") {
		t.Errorf("--dry-run: %v, %s, %s; want a preflight of both", err, outcome.Work, outcome.countKinds())
	}
	if last, err := p.readOutcome(); err != nil || last.countKinds()[Passed] != 2 || last.countKinds()[WentBack] != 1 {
		t.Errorf("the update's own outcome is %s, %v; want it left as it was", last.countKinds(), err)
	}
}

// No board begins without a confirmation.
func TestUpdateNotConfirmed(t *testing.T) {
	p := simulateUpdate(t, 2, nil)
	no := errors.New("no")
	var asked string
	p.request.Confirm = func(question string) error {
		asked = question
		return no
	}
	var out strings.Builder
	if _, err := Run(t.Context(), &out, p.opt, p.spec, p.request); !errors.Is(err, no) || !strings.Contains(asked, "these 2 boards") || !strings.Contains(out.String(), "board-001") {
		t.Errorf("Run = %v, asked %q of\n%s", err, asked, out.String())
	}
	if _, err := os.Stat(p.outputDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", p.outputDir(), err)
	}
}

// A board whose time limit ends while it restarts gets the result of its update, and is not
// reported as too slow.
func TestUpdateOutlivesItsTime(t *testing.T) {
	p := simulateUpdate(t, 1, nil)
	plan, _, err := newPlan(t.Context(), p.opt, p.spec, p.request)
	if err != nil {
		t.Fatal(err)
	}
	defer plan.close()
	var end context.CancelFunc
	plan.limit = func(ctx context.Context, _ *job) (context.Context, context.CancelFunc) {
		ctx, end = context.WithCancel(ctx)
		return ctx, end
	}
	plan.update = func(_ context.Context, a *attempt, _ ci.UpdateOptions) (ci.Outcome, error) {
		end()
		return comesTo(ci.OldSystem, true, report.ErrFailed)(a)
	}
	if err := plan.prepareRun(t.Context()); err != nil {
		t.Fatal(err)
	}
	outcome, _ := plan.runFleet(t.Context(), io.Discard)
	if got := outcome.Results[0]; got.Kind != WentBack || strings.Contains(got.Saw, errSlow.Error()) {
		t.Errorf("it ended as %q: %s", got.Kind, got.Saw)
	}
}

// The bundle is checked before any board is reached.
func TestUpdateRefusals(t *testing.T) {
	p := simulateUpdate(t, 1, nil)
	p.request.Update = inventoryName
	if _, err := Run(t.Context(), &strings.Builder{}, images.Options{Dir: p.opt.Dir}, p.spec, p.request); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Run without the bundle = %v", err)
	}
	p.request.Update = p.request.Inventory
	if _, err := Run(t.Context(), &strings.Builder{}, p.opt, p.spec, p.request); err == nil || !strings.Contains(err.Error(), "not a bundle") {
		t.Errorf("Run with another file = %v", err)
	}
}

// A broken connection does not end an update, even if it breaks before the update begins.
func TestUpdateOfBoardThatBlinks(t *testing.T) {
	p := simulateUpdate(t, 0, nil, faultBlinks)
	outcome, _, err := p.runReal(p.request)
	if err != nil || outcome.countKinds()[Passed] != 2 {
		t.Errorf("%v, %s; want both updated", err, outcome.countKinds())
	}
	p.wantUpdated(2)
}
