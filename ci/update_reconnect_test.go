package ci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshd"
	boardupdate "slipway/flash/boardssh/update"
)

// cutter cuts the connection to a board so many times at each place: before a request, or
// after the work was done and before the answer arrives.
type cutter struct {
	conn   *boardssh.Conn
	relay  *sshd.Relay
	before map[string]int
	after  map[string]int
	cuts   int
}

func (c *cutter) cutAt(ctx context.Context, place string, do func() error) error {
	if c.before[place] > 0 {
		c.before[place]--
		c.cut()
	}
	err := do()
	if err == nil && c.after[place] > 0 {
		c.after[place]--
		c.cut()
		_, err = c.conn.Run(ctx, "true")
	}
	return err
}

func (c *cutter) cut() {
	c.cuts++
	c.relay.Cut()
}

// cutEngine is an engine that is reached over such a connection.
type cutEngine struct {
	boardupdate.Engine
	*cutter
	resuming bool // the next status is requested by waitForInstallation
}

func (e *cutEngine) Status(ctx context.Context) (s boardupdate.Status, err error) {
	err = e.cutAt(ctx, map[bool]string{true: "idle status", false: "status"}[e.resuming], func() error {
		s, err = e.Engine.Status(ctx)
		return err
	})
	e.resuming = false
	return s, err
}

func (e *cutEngine) Inspect(ctx context.Context, from *boardupdate.Source) (c boardupdate.Claims, err error) {
	return c, e.cutAt(ctx, "inspect", func() error {
		c, err = e.Engine.Inspect(ctx, from)
		return err
	})
}

func (e *cutEngine) Install(ctx context.Context, from *boardupdate.Source, tell func(int, string)) error {
	return e.cutAt(ctx, "install", func() error { return e.Engine.Install(ctx, from, tell) })
}

func (e *cutEngine) WaitUntilIdle(ctx context.Context) error {
	e.resuming = true
	return e.cutAt(ctx, "wait idle", func() error { return e.Engine.WaitUntilIdle(ctx) })
}

func (e *cutEngine) MarkGood(ctx context.Context) error {
	return e.cutAt(ctx, "commit", func() error { return e.Engine.MarkGood(ctx) })
}

func (e *cutEngine) MarkBad(ctx context.Context) error {
	return e.cutAt(ctx, "roll back", func() error { return e.Engine.MarkBad(ctx) })
}

// cutUpdate is an update over such a connection.
func cutUpdate(t, board *testing.T, r *boardtest.RAUC, bundle string) (*updateRun, *cutter) {
	conn, line := connectBy(t, r.Program())
	u := onRAUC(board, r, conn, bundle)
	c := &cutter{conn: conn, relay: line, before: map[string]int{}, after: map[string]int{}}
	find, restart, prove := u.find, u.restart, u.prove
	u.find = func(ctx context.Context) (e boardupdate.Engine, err error) {
		err = c.cutAt(ctx, "find", func() error {
			e, err = find(ctx)
			return err
		})
		if err != nil {
			return nil, err
		}
		return &cutEngine{Engine: e, cutter: c}, nil
	}
	u.restart = func(ctx context.Context) error {
		return c.cutAt(ctx, "restart", func() error {
			if _, err := conn.Run(ctx, "true"); err != nil { // as Reboot reads the boot ID
				return err
			}
			return restart(ctx)
		})
	}
	u.prove = func(ctx context.Context) (proved report.Report, err error) {
		return proved, c.cutAt(ctx, "smoke", func() error {
			if _, err := conn.Run(ctx, "true"); err != nil { // as suite.Run, which connects again to see what became of the board
				return errors.Join(report.Because(ctx, report.ErrUnreachable, err), conn.Redial(ctx, redialLimit))
			}
			proved, err = prove(ctx)
			return err
		})
	}
	return u, c
}

// A connection may break at any stage once, twice or four times without ending the update.
// The fifth time ends it, and the error names the first break.
func TestUpdateCutAtEachStage(t *testing.T) {
	board := t // the service outlives the cases
	r := boardtest.StartRAUC(t)
	version := 1
	counts := map[string][]int{"before": {2, breakTries}, "after": {2}}
	if os.Getenv("SLIPWAY_LONG") != "" {
		counts = map[string][]int{"before": {1, 2, 3, 4, breakTries}, "after": {1, 2, 3, 4, breakTries}}
	}
	for _, place := range []string{
		"find", "status", "inspect", "install", "wait idle", "idle status", "restart", "smoke", "commit", "roll back",
	} {
		for _, when := range []string{"before", "after"} {
			for _, times := range counts[when] {
				if when+place == "afterinstall" {
					times = 1 // the bundle is installed then
				}
				t.Run(fmt.Sprintf("%s %s, %d times", when, place, times), func(t *testing.T) {
					version++
					content := fmt.Sprint("system ", version)
					if place == "roll back" {
						content = fmt.Sprint("broken ", version)
					}
					was := r.Booted()
					u, c := cutUpdate(t, board, r, r.Make(board, boardtest.Bundle{Name: fmt.Sprint("v", version), Version: fmt.Sprint(version), Content: content}))
					map[string]map[string]int{"before": c.before, "after": c.after}[when][place] = times
					if place == "wait idle" || place == "idle status" { // runs only after the connection broke once
						c.before["install"] = 1
					}
					err := u.runAllStages(t.Context(), connectedAlready)
					u.close()
					c.wantOutcome(t, u, err, place, times, was, r)
					if got := r.Slot(r.Booted()); u.outcome.System == NewSystem && got != content {
						t.Errorf("%q runs; want %q", got, content)
					}
					activateNewSlot(board, r)
				})
			}
		}
	}
}

// A board that does not come back counts as unreachable.
func TestUpdateCutForGood(t *testing.T) {
	conn, line := connectBy(t)
	if err := line.Close(); err != nil {
		t.Fatal(err)
	}
	u := &updateRun{conn: conn}
	if err := u.redialAfterPause(t.Context(), time.Second, 1); report.ExitStatus(err) != 3 {
		t.Errorf("redialAfterPause() = %v, exit status %d; want 3", err, report.ExitStatus(err))
	}
}

// wantOutcome compares the outcome of an update with the expected one.
func (c *cutter) wantOutcome(t *testing.T, u *updateRun, err error, place string, times int, was string, r *boardtest.RAUC) {
	t.Helper()
	if c.cuts < times {
		t.Errorf("the line was cut %d times; want %d", c.cuts, times)
	}
	switch {
	case times == breakTries:
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("broke %d times", c.cuts)) || !errors.Is(err, report.ErrUnreachable) && place != "roll back" || errors.Is(err, boardupdate.ErrRefused) {
			t.Errorf("run() = %v; want an error that says how often it broke, and no refusal", err)
		}
	case place == "roll back":
		if !errors.Is(err, report.ErrFailed) || u.outcome.System != OldSystem || r.Booted() != was {
			t.Errorf("run() = %v, the %s system runs in %s; want the old one in %s", err, u.outcome.System, r.Booted(), was)
		}
	case err != nil || !u.outcome.Committed || u.outcome.System != NewSystem || r.Booted() == was:
		t.Errorf("run() = %v, %s", err, u.outcome)
	}
	runs := map[bool]System{true: OldSystem, false: NewSystem}[r.Booted() == was]
	if u.outcome.Restarted && u.outcome.System != runs {
		t.Errorf("the outcome says that the %s system runs; it is the %s one", u.outcome.System, runs)
	}
}

// activateNewSlot starts the installed system and marks it good, for the next update.
func activateNewSlot(t *testing.T, r *boardtest.RAUC) {
	t.Helper()
	e, err := boardupdate.FindEngine(t.Context(), boardtest.Connect(t), r.Bus)
	if err != nil {
		t.Fatal(err)
	}
	status, err := e.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status.WaitsForRestart() {
		r.Restart(t)
	}
	if err := e.MarkGood(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// RAUC's service ends during the installation and is started again, as by systemd.
func TestUpdateServiceEnds(t *testing.T) {
	r := boardtest.StartRAUC(t)
	u := onRAUC(t, r, boardtest.Connect(t), r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2", Hook: waitingHook(r)}))
	u.pause = 2 * time.Second
	ended := make(chan error, 1)
	go func() { ended <- u.runAllStages(t.Context(), connectedAlready) }()
	awaitHook(t, r)
	releaseHook(t, r)
	r.Boot(t, "A")
	if err := <-ended; err != nil {
		t.Fatalf("run() = %v", err)
	}
	if saw := u.outcome.Report.Stages[2].Saw; r.Slot("B") != "system 2" || !u.outcome.Committed || !strings.Contains(saw, "RAUC's service on the board ended while it installed") {
		t.Errorf("slot B holds %q, %v; the stage says %q", r.Slot("B"), u.outcome, saw)
	}
}

// A connection that breaks while the engine checks the bundle does not skip a check.
func TestUpdateCutJudges(t *testing.T) {
	r := boardtest.StartRAUC(t)
	first := onRAUC(t, r, boardtest.Connect(t), r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"}))
	if err := first.runAllStages(t.Context(), connectedAlready); err != nil {
		t.Fatal(err)
	}
	u, c := cutUpdate(t, t, r, r.Make(t, boardtest.Bundle{Name: "one", Version: "1", Content: "system 1 again"}))
	c.before["inspect"] = 1
	if err := u.runAllStages(t.Context(), connectedAlready); !errors.Is(err, boardupdate.ErrRefused) || !strings.Contains(err.Error(), "--downgrade") || c.cuts != 1 {
		t.Errorf("run() = %v after %d cuts; want the older version refused", err, c.cuts)
	}
}

// An update waits for a board that is installing already, but not without end, and does not
// blame the bundle.
func TestUpdateBusy(t *testing.T) {
	r := boardtest.StartRAUC(t)
	first := onRAUC(t, r, boardtest.Connect(t), r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2", Hook: waitingHook(r)}))
	ended := make(chan error, 1)
	go func() { ended <- first.runAllStages(t.Context(), connectedAlready) }()
	awaitHook(t, r)
	u := onRAUC(t, r, boardtest.Connect(t), r.Make(t, boardtest.Bundle{Name: "three", Version: "3", Content: "system 3"}))
	u.idle = time.Second
	err := u.runAllStages(t.Context(), connectedAlready)
	releaseHook(t, r)
	if !errors.Is(err, boardupdate.ErrBusy) || errors.Is(err, boardupdate.ErrRefused) || !strings.Contains(err.Error(), "within 1s\nnext: rauc status") {
		t.Errorf("run() = %v; want %v", err, boardupdate.ErrBusy)
	}
	for _, s := range u.outcome.Report.Stages {
		if s.Status == report.Failed && !strings.HasPrefix(s.Next, "wait until that installation has ended") {
			t.Errorf("stage %s: next %q", s.Name, s.Next)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the first one: %v", err)
	}
}

// killWhileItInstalls ends an update while its board installs, and leaves the board no word of it.
func killWhileItInstalls(t *testing.T, r *boardtest.RAUC, u *updateRun, line *sshd.Relay) {
	t.Helper()
	ended := make(chan error, 1)
	ctx, kill := context.WithCancel(t.Context())
	go func() { ended <- u.runAllStages(ctx, connectedAlready) }()
	awaitHook(t, r)
	if err := line.Close(); err != nil { // so that it cannot stop the engine
		t.Fatal(err)
	}
	kill()
	<-ended
}

// After a kill the board still installs. The repeated update waits for that and continues.
func TestUpdateAfterKill(t *testing.T) {
	r := boardtest.StartRAUC(t)
	conn, line := connectBy(t)
	killed := onRAUC(t, r, conn, r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2", Hook: waitingHook(r) + "; exit 1"}))
	killWhileItInstalls(t, r, killed, line)
	u := onRAUC(t, r, boardtest.Connect(t), r.Make(t, boardtest.Bundle{Name: "three", Version: "3", Content: "system 3"}))
	u.pause = 0
	ended := make(chan error, 1)
	waits := make(chan struct{})
	find := u.find
	u.find = func(ctx context.Context) (boardupdate.Engine, error) {
		e, err := find(ctx)
		close(waits)
		return e, err
	}
	go func() { ended <- u.runAllStages(t.Context(), connectedAlready) }()
	<-waits
	select {
	case err := <-ended:
		t.Fatalf("run() = %v, while the board installs", err)
	case <-time.After(2 * time.Second):
	}
	releaseHook(t, r)
	if err := <-ended; err != nil || u.outcome.System != NewSystem || !u.outcome.Committed || r.Slot(r.Booted()) != "system 3" {
		t.Errorf("run() = %v, %s; want the new system", err, u.outcome)
	}
}

// After a kill the board installs a bundle to its end that was copied to it whole. The same
// update then restarts the board, and does not install the bundle again.
func TestUpdateAfterKillOfStaged(t *testing.T) {
	r := boardtest.StartRAUC(t)
	bundle := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2", Hook: waitingHook(r)})
	conn, line := connectBy(t, r.Program())
	killed := onRAUC(t, r, conn, bundle)
	killWhileItInstalls(t, r, killed, line)
	releaseHook(t, r)
	u := onRAUC(t, r, boardtest.Connect(t, r.Program()), bundle)
	u.how.Writing = func(SystemID) error {
		if r.Slot("B") != "system 2" {
			t.Error("the update did not wait for the installation")
		}
		return nil
	}
	err := u.runAllStages(t.Context(), connectedAlready)
	if err != nil || u.outcome.System != NewSystem || !u.outcome.Committed || r.Slot(r.Booted()) != "system 2" || countInstallations(t, r, "rootfs.1") != 1 {
		t.Errorf("run() = %v, %s, %d installations; want the new system after one", err, u.outcome, countInstallations(t, r, "rootfs.1"))
	}
	os.Remove(killed.source.Where)
}

// A connection that breaks while another system waits for a restart does not make the board
// start that system.
func TestUpdateCutWhileAnotherWaits(t *testing.T) {
	r := boardtest.StartRAUC(t)
	other := onRAUC(t, r, boardtest.Connect(t), r.Make(t, boardtest.Bundle{Name: "other", Version: "2", Content: "another system"}))
	other.how.NoReboot = true
	if err := other.runAllStages(t.Context(), connectedAlready); err != nil {
		t.Fatal(err)
	}
	u, c := cutUpdate(t, t, r, r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"}))
	c.before["inspect"] = 1
	var written bool
	u.how.Writing = func(SystemID) error { written = true; return nil }
	err := u.runAllStages(t.Context(), connectedAlready)
	if !errors.Is(err, boardupdate.ErrRefused) || r.Booted() != "A" || u.outcome.Restarted || written || c.cuts != 1 {
		t.Errorf("run() = %v, %s, after %d cuts, written %v; want a refusal", err, u.outcome, c.cuts, written)
	}
}

// streamingEngine is an engine that would stream. Then Slipway compares the bundle before it
// asks the user.
type streamingEngine struct{ boardupdate.Engine }

func (streamingEngine) ChooseDelivery(context.Context, *boardupdate.Bundle) (boardupdate.Delivery, string) {
	return boardupdate.Streamed, ""
}

// Another system may wait for a restart before the question to the user and after it. The
// board is not restarted into either, and nothing is recorded of an update.
func TestUpdateAnotherWaits(t *testing.T) {
	for _, when := range []string{"before the question", "after the question"} {
		t.Run(when, func(t *testing.T) {
			r := boardtest.StartRAUC(t)
			good := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"})
			other := r.Make(t, boardtest.Bundle{Name: "other", Version: "2", Content: "another system"})
			waits := map[string]string{"before the question": other, "after the question": good}[when]
			first := onRAUC(t, r, boardtest.Connect(t), waits)
			first.how.NoReboot = true
			if err := first.runAllStages(t.Context(), connectedAlready); err != nil {
				t.Fatal(err)
			}
			u := onRAUC(t, r, boardtest.Connect(t, r.Program(), "AllowTcpForwarding no"), good)
			find := u.find
			u.find = func(ctx context.Context) (boardupdate.Engine, error) {
				e, err := find(ctx)
				return streamingEngine{e}, err
			}
			var asked, written bool
			u.how.Writing = func(SystemID) error { written = true; return nil }
			u.how.Confirm = func(question string) error {
				asked = strings.HasPrefix(question, "Compare ")
				installAnyway(t, r, other)
				return nil
			}
			err := u.runAllStages(t.Context(), connectedAlready)
			if !errors.Is(err, boardupdate.ErrRefused) || !strings.Contains(err.Error(), "it is not certain that this bundle is in it") || r.Booted() != "A" || u.outcome.Restarted || written {
				t.Errorf("run() = %v, %s, written %v; want a refusal", err, u.outcome, written)
			}
			if asked != (when == "after the question") {
				t.Errorf("the user was asked: %v", asked)
			}
		})
	}
}

// installAnyway installs a bundle, whatever waits for a restart.
func installAnyway(t *testing.T, r *boardtest.RAUC, bundle string) {
	t.Helper()
	u := onRAUC(t, r, boardtest.Connect(t), bundle)
	defer u.close()
	engine, err := u.find(t.Context())
	if err := errors.Join(err, u.loadInputs(t.Context())); err != nil {
		t.Fatal(err)
	}
	from, err := boardupdate.OfferBundle(t.Context(), u.conn, engine, u.bundle)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if err := engine.Install(t.Context(), from, func(int, string) {}); err != nil {
		t.Fatal(err)
	}
}
