package ci

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash"
	"slipway/flash/boardssh"
	boardupdate "slipway/flash/boardssh/update"
	"slipway/flash/evidence"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// UpdateOptions says how Update runs.
type UpdateOptions struct {
	DryRun    bool                        // check, and write nothing
	Downgrade bool                        // allow an older version than the one that runs
	NoReboot  bool                        // install without a restart
	Confirm   func(question string) error // nil: do not ask
	Out       io.Writer                   // messages for a person
	Metrics   suite.Option                // how metrics are kept
	Now       <-chan struct{}             // closed when the clean-up must end too

	Earlier    *Earlier                    // update of this board with this bundle; nil: there was none
	Writing    func(before SystemID) error // called once before a slot is written; an error keeps it from that
	OtherBoard bool                        // allow a bundle beside another board's artifact.json
}

// System says which of a board's systems runs: the one from before the update, or the new one.
type System string

// The values of System.
const (
	OldSystem     System = "old"
	NewSystem     System = "new"
	UnknownSystem System = "unknown"
)

// Outcome is the result of an update. Its System is set also if the update failed.
type Outcome struct {
	Board      string                `json:"board"`
	Host       string                `json:"host"`
	Engine     string                `json:"engine,omitempty"`
	Bundle     string                `json:"bundle"`
	System     System                `json:"system"`              // that runs now
	Slot       string                `json:"slot,omitempty"`      // of the system that runs
	Version    string                `json:"version,omitempty"`   // of the system that runs, if the engine knows it
	Installed  string                `json:"installed,omitempty"` // update.Slot's Installation of the system that runs
	Already    bool                  `json:"already,omitempty"`   // an earlier update installed the bundle, and this one installed nothing
	Committed  bool                  `json:"committed"`           // the new system is marked good
	Waiting    bool                  `json:"waiting,omitempty"`   // the new system starts with the next restart
	Restarted  bool                  `json:"restarted"`           // the board was told to start the new system
	Delivery   boardupdate.Delivery  `json:"way,omitempty"`
	SentBytes  int64                 `json:"sentBytes"` // of the bundle, to the board
	Findings   []boardupdate.Finding `json:"findings"`
	Why        string                `json:"why,omitempty"` // the error, if the update failed
	Report     report.Report         `json:"report"`
	OtherBoard []string              `json:"otherBoard,omitempty"` // what said that the bundle is another board's, and was allowed
}

// Update installs a bundle by the board's engine, restarts the board, runs the suites on the new
// system, and only then marks it good. After a failure it rolls back. If the board has a build
// folder, it writes a report, but not in a dry run or after a failure before it connects. It sets
// how.Metrics and how.Writing.
func Update(ctx context.Context, opt images.Options, spec images.Spec, host, bundle string, how UpdateOptions) (Outcome, error) {
	dir := opt.BoardDir(spec)
	artifact := images.NoArtifact(spec, dir)
	if a, err := images.ReadArtifact(dir); err == nil {
		artifact = a
	}
	reports := opt.ReportDir(spec)
	how.Metrics = suite.KeepMetrics(opt, spec)
	how.Writing = func(SystemID) error { return report.Remove(reports) }
	u := newUpdateRun(spec, artifact, how)
	u.initOutcome(host, bundle)
	err := u.runAllStages(ctx, func(ctx context.Context) (err error) {
		if err = u.loadInputs(ctx); err == nil { // before the board is contacted
			u.outcome.OtherBoard, err = flash.RefuseOther(spec, bundle, how.OtherBoard)
		}
		if err == nil {
			u.admitted, err = AdmitBundle(ctx, opt, spec, u.bundle)
		}
		if err != nil {
			return report.NotBegun(err)
		}
		u.conn, err = reach.Connect(ctx, opt, spec, host)
		return err
	})
	u.close()
	if errors.Is(err, report.ErrNotBegun) {
		u.outcome.Report, _ = report.Refused(spec, err)
	} else if _, none := os.Stat(dir); none == nil && !how.DryRun {
		err = errors.Join(err, report.Remove(reports), u.outcome.Report.WriteAndPrintPath(how.Out, reports))
	}
	return u.outcome, err
}

// AdmitBundle checks that the policies allow the bundle, as a file of an artifact. Without a policy
// every bundle is allowed, and only the board's engine verifies the signature.
func AdmitBundle(ctx context.Context, opt images.Options, spec images.Spec, bundle *boardupdate.Bundle) (evidence.Admitted, error) {
	a, err := evidence.AdmitFile(ctx, spec, opt.BoardDir(spec), bundle.File, func() (string, error) { return bundle.SHA256, nil })
	return a, report.Because(ctx, flash.ErrImage, err)
}

// UpdateOn does the work of Update on a board to which the caller has connected, with a bundle that
// the caller has opened. The caller closes both. UpdateOn writes no report.
func UpdateOn(ctx context.Context, conn *boardssh.Conn, spec images.Spec, artifact images.Artifact, bundle *boardupdate.Bundle, how UpdateOptions) (Outcome, error) {
	u := newUpdateRun(spec, artifact, how)
	u.conn, u.bundle = conn, bundle
	u.initOutcome(conn.Address().Host, bundle.File)
	err := u.runAllStages(ctx, nil)
	return u.outcome, err
}

// restartLimit is how long a restart may take. An emulated board may fail to start its new system
// three times before the boot loader starts the old one.
const restartLimit = 15 * time.Minute

// updateRun is the state of one update.
type updateRun struct {
	spec    images.Spec
	how     UpdateOptions
	pause   time.Duration // before the second try to reconnect; twice that before the third, and so on
	idle    time.Duration // how long an installation of somebody else may take
	find    func(context.Context) (boardupdate.Engine, error)
	restart func(context.Context) error
	prove   func(context.Context) (report.Report, error)

	conn           *boardssh.Conn
	engine         boardupdate.Engine
	bundle         *boardupdate.Bundle
	admitted       evidence.Admitted // what policies say of it
	before         boardupdate.Status
	reached        updatePhase         // by an earlier update
	bundleChecked  bool                // the engine has looked at the bundle
	writeAnnounced bool                // how.Writing was called
	source         *boardupdate.Source // the last source that was offered to the engine
	outcome        Outcome
}

// newUpdateRun returns a run that works on u.conn, which callers set. Tests replace its functions.
func newUpdateRun(spec images.Spec, artifact images.Artifact, how UpdateOptions) *updateRun {
	u := &updateRun{spec: spec, how: how, pause: 2 * time.Second, idle: installationLimit}
	u.find = func(ctx context.Context) (boardupdate.Engine, error) {
		return boardupdate.FindEngine(ctx, u.conn, boardupdate.SystemBus)
	}
	u.restart = func(ctx context.Context) error { return u.conn.Reboot(ctx, restartLimit) }
	u.prove = func(ctx context.Context) (report.Report, error) {
		return suite.Run(ctx, u.conn, spec, artifact, suite.AllowReboots(false), how.Metrics)
	}
	return u
}

// initOutcome sets the outcome of a run that has not begun: no findings, and an unknown system.
func (u *updateRun) initOutcome(host, bundle string) {
	u.outcome = Outcome{
		Board: u.spec.Board, Host: host, Bundle: bundle, System: UnknownSystem,
		Findings: []boardupdate.Finding{}, Report: report.New(u.spec),
	}
}

// runAllStages runs an update's stages in order. After a failure on the new system it rolls back,
// unless ctx ended or an earlier update marked that system good. A nil connect means a connected
// board. The outcome gets the report, a failed system's logs, and the system that runs at the end.
func (u *updateRun) runAllStages(ctx context.Context, connect func(context.Context) error) error {
	record := &u.outcome.Report
	var err error
	if connect != nil {
		err = runStage(ctx, record, stage{"connect", func(ctx context.Context) (string, error) { return "", connect(ctx) }, "fix that, then run update again"})
	}
	if err == nil {
		defer reach.CloseOnInterrupt(u.conn, u.how.Now)()
	}
	err = u.runStages(ctx, err, []stage{
		{"preflight", u.runPreflight, "fix what was refused, then run update again"},
		{"install", u.installBundle, "the board stays on the system that runs; fix that, then run update again"},
	})
	if err == nil {
		var done func()
		ctx, done = u.deferInterrupt(ctx)
		defer done()
	}
	err = u.runStages(ctx, err, []stage{
		{"restart", u.bootNewSystem, "look at the logs of both systems in the report"},
		{"smoke", u.runSmoke, "each failed check says what to do"},
		{"commit", u.markGood, "on the board: look at the engine's own log, then mark the system good by hand"},
	})
	if err != nil && u.outcome.System == NewSystem && u.reached != phaseCommitted && ctx.Err() == nil {
		err = errors.Join(err, runStage(ctx, record, stage{"roll back", u.rollBack, "switch the board off and on; then look which slot runs"}))
	}
	if silent := errors.Is(err, boardssh.ErrSilent); silent {
		err = report.Because(ctx, report.ErrUnreachable, err)
	} else {
		u.queryAtEnd(ctx)
	}
	if err != nil {
		u.outcome.Why = plaintext.Clean(err.Error(), report.MaxSawBytes)
	}
	record.Reason = report.ReasonFor(err)
	record.ElapsedMS = time.Since(record.Started).Milliseconds()
	return err
}

// runStages runs stages. It records as skipped those of skipsStage, and all after an error or err.
func (u *updateRun) runStages(ctx context.Context, err error, all []stage) error {
	record := &u.outcome.Report
	for _, s := range all {
		if err != nil || u.skipsStage(s.name) {
			record.Stages = append(record.Stages, report.Stage{Name: s.name, Status: report.Skipped})
			continue
		}
		if err = runStage(ctx, record, s); errors.Is(err, boardupdate.ErrBusy) && ctx.Err() == nil {
			record.Stages[len(record.Stages)-1].Next = "wait until that installation has ended (with RAUC, on the board: rauc status), then run update again"
		}
	}
	return err
}

// deferInterrupt returns a context for the stages from the restart on. When ctx ends (by a first
// Ctrl-C), it only prints a message. When how.Now is closed (by a second one), that context ends.
// Without how.Now it returns ctx. The caller calls done.
func (u *updateRun) deferInterrupt(ctx context.Context) (_ context.Context, done func()) {
	if u.how.Now == nil {
		return ctx, func() {}
	}
	patient, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() {
		select {
		case <-patient.Done():
			return
		case <-ctx.Done():
		}
		step := progress.Start(patient, "stop", 0, "")
		step.Detail("when it is known which system runs and stays; a second Ctrl-C leaves the board as it is")
		select {
		case <-patient.Done():
		case <-u.how.Now:
			cancel(errors.New("a second Ctrl-C"))
		}
		step.End("", nil)
	})
	return patient, func() {
		cancel(nil)
		all.Wait()
	}
}

// skipsStage reports whether options or an earlier update of the board make a stage unnecessary.
func (u *updateRun) skipsStage(stage string) bool {
	switch stage {
	case "install":
		return u.how.DryRun || u.reached > phaseNone
	case "restart":
		return u.how.DryRun || u.how.NoReboot || u.reached > phaseInstalled
	case "smoke":
		return u.how.DryRun || u.how.NoReboot
	case "commit":
		return u.how.DryRun || u.how.NoReboot || u.reached == phaseCommitted
	}
	return false
}

// runPreflight checks the board and the bundle, prints the findings, and asks the user to confirm,
// but not in a dry run or after an earlier update. Its text names the engine.
func (u *updateRun) runPreflight(ctx context.Context) (string, error) {
	if err := u.loadInputs(ctx); err != nil {
		return "", err
	}
	err := u.retryOnBreak(ctx, redialLimit, func(ctx context.Context) error { return boardssh.Asking(ctx, u.askBoard) }) // up to the first silence
	for _, f := range u.outcome.Findings {
		fmt.Fprintf(u.how.Out, "%-14s  %-25s  %s\n", f.Verdict, f.Name, plaintext.Clean(f.Saw, report.MaxFactBytes))
	}
	if err != nil || u.how.DryRun || u.how.Confirm == nil || u.reached > phaseNone {
		return u.summarizePreflight(), err
	}
	slot, _ := u.before.OtherSlot()
	question := "Write %s to %s of %s, and restart it?"
	if u.before.WaitsForRestart() {
		question = "Compare %s with %s of %s, and if they are the same restart it?"
	}
	return u.outcome.Engine, report.NotBegun(u.how.Confirm(fmt.Sprintf(question, u.outcome.Bundle, cmp.Or(slot.Name, "the other system"), u.outcome.Host)))
}

// loadInputs checks that the suites can be loaded, if the board is to restart, and opens the
// bundle, if the caller has not. It needs no board.
func (u *updateRun) loadInputs(ctx context.Context) (err error) {
	if !u.how.NoReboot {
		if _, err := suite.LoadAll(u.spec); err != nil { // the suites must load before anything is written
			return report.Because(ctx, report.ErrWrong, err)
		}
	}
	if u.bundle == nil {
		u.bundle, err = boardupdate.OpenBundle(ctx, u.outcome.Bundle)
	}
	return err
}

// askBoard finds the board's engine, waits until it is idle, resumes an earlier update if there was
// one, and else runs all checks before an installation. A finding may refuse the update.
func (u *updateRun) askBoard(ctx context.Context) (err error) {
	if u.engine, err = u.find(ctx); err != nil {
		return err
	}
	u.outcome.Engine = u.engine.Name()
	if err := u.awaitIdle(ctx); err != nil {
		return err
	}
	if u.how.Earlier != nil {
		if err := u.resumeEarlier(ctx, *u.how.Earlier); err != nil || u.reached > phaseNone {
			return err
		}
	}
	u.outcome.Findings, u.before, err = boardupdate.Preflight(ctx, u.conn, u.engine, u.bundle, u.how.Downgrade)
	if err != nil {
		return err
	}
	u.recordSystem(u.before)
	err = boardupdate.RefusedError(u.outcome.Findings)
	if way, _ := u.engine.ChooseDelivery(ctx, u.bundle); err == nil && way == boardupdate.Streamed {
		err = u.checkBundleEarly(ctx)
	}
	return err
}

// awaitIdle waits until the engine runs no installation, and fails after u.idle. After a killed
// update the engine notices only after a while that nobody serves the bundle any more.
func (u *updateRun) awaitIdle(ctx context.Context) error {
	busy := fmt.Errorf("%w: it has not ended within %s", boardupdate.ErrBusy, u.idle)
	limited, cancel := context.WithTimeoutCause(ctx, u.idle, busy)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- u.engine.WaitUntilIdle(limited) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(u.pause):
	}
	return progress.Run(ctx, "wait", func(s *progress.Step) (string, error) {
		s.Detail(fmt.Sprintf("%v; waiting for its end, at most %s", boardupdate.ErrBusy, u.idle))
		return "it has ended", <-ended
	})
}

// checkBundleEarly lets the engine check a streamable bundle, without a copy on the board, before
// the user is asked. It refuses if a system that may not be the bundle's waits for a restart.
func (u *updateRun) checkBundleEarly(ctx context.Context) error {
	from, err := boardupdate.OfferBundle(ctx, u.conn, u.engine, u.bundle)
	if err != nil {
		return err
	}
	defer from.Close()
	if err = u.checkBundle(ctx, from); err == nil {
		err = boardupdate.CheckWaiting(ctx, u.engine, from, u.before)
	}
	return err
}

// checkBundle lets the engine check the bundle's signature and version, adds the findings to the
// outcome, and sets u.bundleChecked. It refuses what a finding refuses.
func (u *updateRun) checkBundle(ctx context.Context, from *boardupdate.Source) error {
	judged, err := boardupdate.CheckSignature(ctx, u.engine, from, u.before, u.how.Downgrade)
	if err != nil {
		return err
	}
	err = boardupdate.RefusedError(judged)
	if err != nil && u.isUnreachable(ctx, err) { // the engine did not refuse it: the connection broke
		return err
	}
	u.bundleChecked = true
	u.outcome.Findings = append(u.outcome.Findings, judged...)
	return err
}

// Limits for boards whose connection breaks during the installation.
const (
	installTries      = 5
	breakTries        = 5
	redialLimit       = 5 * time.Minute
	installationLimit = 30 * time.Minute
)

// installBundle lets the engine install the bundle, shows progress, and returns the sent size as
// text. If the connection breaks, it connects again, asks for the result, and repeats a failed
// installation, in up to installTries tries. Some engines continue with what they have written.
func (u *updateRun) installBundle(ctx context.Context) (saw string, err error) {
	step := progress.Start(ctx, "install", 100, progress.Tasks)
	defer func() { step.End(saw, err) }()
	var broken connectionBreaks
	for try := 1; ; try++ {
		if err = u.installOnce(ctx, step); !broken.noteBreak(ctx, u, err) {
			err = broken.explainError(err)
			break
		}
		step.Detail("the connection broke; connecting again")
		var done bool
		if done, err = u.reconnectAndCheck(ctx, &broken); done || err != nil {
			break
		}
		if try == installTries {
			err = broken.lostAfterTries(ctx)
			break
		}
	}
	saw = fmt.Sprintf("%s, %.1f MiB to the board", u.outcome.Delivery, float64(u.outcome.SentBytes)/(1<<20))
	if broken.n > 0 {
		saw += "; " + broken.String()
	}
	if waits := u.before.WaitsForRestart(); waits && err == nil {
		saw = u.before.Primary + " has this bundle already; " + saw
	} else if !waits && err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w; the board stays on the system that runs, and the slot that was to be written is not started", err)
	}
	u.outcome.Waiting = err == nil
	return saw, err
}

// installOnce offers the bundle to the engine, checks it if that was not done before, announces the
// write, and installs it. It does not install if the other slot already has this bundle.
func (u *updateRun) installOnce(ctx context.Context, step *progress.Step) error {
	from, err := boardupdate.OfferBundle(ctx, u.conn, u.engine, u.bundle)
	if err != nil {
		return err
	}
	defer func() {
		from.Close()
		u.outcome.SentBytes += from.ServedBytes()
	}()
	u.source, u.outcome.Delivery = from, from.Delivery
	if from.Why != "" {
		step.Detail(fmt.Sprintf("%s: %s", from.Delivery, from.Why))
	}
	if !u.bundleChecked {
		if err := u.checkBundle(ctx, from); err != nil {
			return err
		}
	}
	if err := boardupdate.CheckWaiting(ctx, u.engine, from, u.before); err != nil { // after the question to the user
		return err
	}
	if err := u.announceWrite(); err != nil || u.before.WaitsForRestart() {
		return err
	}
	return u.engine.Install(ctx, from, reportProgress(step))
}

// reportProgress returns a function that shows an installation's progress on step.
func reportProgress(step *progress.Step) func(percent int, text string) {
	return func(percent int, text string) {
		step.Set(int64(percent))
		step.Detail(text)
	}
}

// isUnreachable reports whether the connection broke. If err does not tell, it runs a program.
func (u *updateRun) isUnreachable(ctx context.Context, err error) bool {
	return errors.Is(err, boardupdate.ErrLost) || errors.Is(err, boardssh.ErrSilent) || errors.Is(err, report.ErrUnreachable) || !suite.IsAlive(ctx, u.conn, 0)
}

// reconnectAndCheck connects again, waits for the installation, and reports whether it succeeded.
// If the new connection breaks, it tries again, up to breakTries times in all.
func (u *updateRun) reconnectAndCheck(ctx context.Context, broken *connectionBreaks) (done bool, err error) {
	for try := 1; ; try++ {
		if err := u.redialAfterPause(ctx, redialLimit, try); err != nil {
			return false, broken.explainError(err)
		}
		if done, err = u.waitForInstallation(ctx); !broken.noteBreak(ctx, u, err) {
			return done, broken.explainError(err)
		}
		if try == breakTries {
			return false, broken.lostAfterTries(ctx)
		}
	}
}

// waitForInstallation waits, at most installationLimit, until the engine is idle. It removes the
// board's copy of the bundle, and reports whether the new system newly waits for a restart.
func (u *updateRun) waitForInstallation(ctx context.Context) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, installationLimit)
	defer cancel()
	if err := u.engine.WaitUntilIdle(limited); err != nil {
		return false, err
	}
	if u.source != nil { // nil if the connection broke before the bundle was offered
		u.source.Close() // removes a file on the board, which outlives the connection
	}
	status, err := u.engine.Status(ctx)
	return err == nil && status.WaitsForRestart() && !u.before.WaitsForRestart(), err
}

// bootNewSystem restarts the board, and returns the new slot as text. If the boot loader started
// the old system again, it collects the logs of the failed boot and returns an error.
func (u *updateRun) bootNewSystem(ctx context.Context) (saw string, err error) {
	step := progress.Start(ctx, "restart", 0, "")
	defer func() { step.End(saw, err) }()
	u.outcome.System, u.outcome.Waiting, u.outcome.Restarted = UnknownSystem, false, true
	if err := u.rebootAndQuery(ctx); err != nil {
		return "", err
	}
	if u.outcome.System != NewSystem {
		u.collectLogs(ctx, "the system before", "-1")
		return "", fmt.Errorf("the new system did not come up; the boot loader went back to the old one, in %s", u.outcome.Slot)
	}
	return u.outcome.Slot + " runs", nil
}

// rebootAndQuery restarts the board and asks the engine which system runs.
func (u *updateRun) rebootAndQuery(ctx context.Context) error {
	err := u.retryOnBreak(ctx, restartLimit, u.restart)
	if err == nil {
		err = u.retryOnBreak(ctx, restartLimit, u.querySystem)
	}
	return err
}

// querySystem asks the engine which system runs, and records it in the outcome.
func (u *updateRun) querySystem(ctx context.Context) error {
	status, err := u.engine.Status(ctx)
	if err == nil {
		u.recordSystem(status)
	}
	return err
}

// retryOnBreak calls do up to breakTries times: again on a new connection after each break. limit
// is how long the board may take to be reachable again.
func (u *updateRun) retryOnBreak(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	var broken connectionBreaks
	for try := 1; ; try++ {
		err := do(ctx)
		if !broken.noteBreak(ctx, u, err) {
			return broken.explainError(err)
		}
		if try == breakTries {
			return broken.lostAfterTries(ctx)
		}
		if err := u.redialAfterPause(ctx, limit, try); err != nil {
			return broken.explainError(err)
		}
	}
}

// redialAfterPause waits, and connects again within limit. The pause is 0 at try 1, and grows with
// each, because an engine that crashed needs time to start.
func (u *updateRun) redialAfterPause(ctx context.Context, limit time.Duration, try int) error {
	if err := run.Sleep(ctx, time.Duration(try-1)*u.pause); err != nil {
		return err
	}
	return report.Because(ctx, report.ErrUnreachable, u.conn.Redial(ctx, limit))
}

// onNewSystem calls do like retryOnBreak. Before each repetition it checks that the new system
// still runs: the connection may have broken because the board restarted into the old system.
func (u *updateRun) onNewSystem(ctx context.Context, do func(context.Context) error) error {
	sure := true
	return u.retryOnBreak(ctx, restartLimit, func(ctx context.Context) error {
		if !sure {
			if err := u.querySystem(ctx); err != nil {
				return err
			}
			if u.outcome.System != NewSystem {
				return fmt.Errorf("the board restarted by itself, and the boot loader went back to the old system, in %s", u.outcome.Slot)
			}
		}
		sure = false
		return do(ctx)
	})
}

// recordSystem compares the engine's status with that before the update, and records in the outcome
// which system runs, with its slot, version and installation.
func (u *updateRun) recordSystem(status boardupdate.Status) {
	was, known := u.before.BootedSlot()
	is, ok := status.BootedSlot()
	switch {
	case !ok:
		u.outcome.System = UnknownSystem
	case !known, is.Name == was.Name: // before the preflight has ended, nothing was restarted
		u.outcome.System = OldSystem
	default:
		u.outcome.System = NewSystem
	}
	u.outcome.Slot, u.outcome.Version, u.outcome.Installed = is.Name, is.Version, is.Installation
}

// runSmoke runs suites on the new system, copies results to the report, and returns counts as text.
func (u *updateRun) runSmoke(ctx context.Context) (string, error) {
	var proved report.Report
	err := u.onNewSystem(ctx, func(ctx context.Context) (err error) {
		proved, err = u.prove(ctx)
		return err
	})
	r := &u.outcome.Report
	r.Identity, r.Suites, r.Logs = proved.Identity, proved.Suites, append(r.Logs, proved.Logs...)
	return report.CountWords(proved.Counts().Checks), err
}

// markGood marks the new system good, so that later restarts start it too. Its text names the slot.
func (u *updateRun) markGood(ctx context.Context) (string, error) {
	if err := u.onNewSystem(ctx, u.engine.MarkGood); err != nil {
		return "", err
	}
	u.outcome.Committed = true
	return u.outcome.Slot + " stays", nil
}

// rollBack collects the new system's logs, marks it bad, and restarts, unless the boot loader has
// rolled back. It checks that the old system runs, collects its logs, and returns its slot as text.
func (u *updateRun) rollBack(ctx context.Context) (string, error) {
	u.collectLogs(ctx, "the new system", "0")
	err := u.onNewSystem(ctx, u.engine.MarkBad)
	if u.outcome.System == OldSystem { // the boot loader has rolled back already
		return u.outcome.Slot + " runs again", nil
	}
	if err != nil {
		return "", err
	}
	step := progress.Start(ctx, "roll back", 0, "")
	err = u.rebootAndQuery(ctx)
	if err != nil {
		u.outcome.System = UnknownSystem
		step.End("", err)
		return "", err
	}
	if u.outcome.System != OldSystem {
		err = fmt.Errorf("%s still runs, though it was marked bad", u.outcome.Slot)
	}
	u.collectLogs(ctx, fmt.Sprintf("the %s system", u.outcome.System), "0")
	step.End(u.outcome.Slot+" runs again", err)
	return u.outcome.Slot + " runs again", err
}

// collectLogs adds the end of a journal to the report, as that of system, if it can get it. boot is
// an offset as in journalctl --boot. For "0", the running system, it also adds kernel messages.
func (u *updateRun) collectLogs(ctx context.Context, system, boot string) {
	ctx, cancel := context.WithTimeout(ctx, suite.DefaultTimeout)
	defer cancel()
	commands := map[string][]string{
		system + ": journal": {"journalctl", "--boot=" + boot, "--no-pager", "--quiet", "--lines=300", "--output=short-monotonic"},
	}
	if boot == "0" {
		commands[system+": kernel messages"] = []string{"sh", "-c", "dmesg | tail -n 200"}
	}
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		r, err := u.conn.Ask(ctx, commands[name]...)
		if errors.Is(err, boardssh.ErrSilent) {
			return
		}
		if err == nil && r.Status == 0 && len(r.Stdout) > 0 {
			u.outcome.Report.Logs = append(u.outcome.Report.Logs, report.Log{Name: name, Text: plaintext.CleanTail(string(r.Stdout), report.MaxLogBytes)})
		}
	}
}

// queryAtEnd asks the engine once more which system runs, if that is unknown or the run was
// stopped, and records it. Unless ctx ended, it connects again once if the engine does not answer.
func (u *updateRun) queryAtEnd(ctx context.Context) {
	if u.engine == nil || u.outcome.System != UnknownSystem && ctx.Err() == nil {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), suite.AliveTimeout)
	defer cancel()
	status, err := u.engine.Status(limited)
	if err != nil && ctx.Err() == nil && u.conn.Redial(ctx, suite.AliveTimeout) == nil {
		status, err = u.engine.Status(ctx)
	}
	if err == nil {
		u.recordSystem(status)
		u.outcome.Waiting = status.WaitsForRestart()
	}
}

// close closes the bundle and the connection.
func (u *updateRun) close() {
	if u.bundle != nil {
		u.bundle.Close()
	}
	if u.conn != nil {
		u.conn.Close()
	}
}

// String returns in one line which system of the host runs, and whether it stays.
func (o Outcome) String() string {
	text := fmt.Sprintf("%s: the %s system runs", o.Host, o.System)
	switch {
	case o.System == UnknownSystem && !o.Restarted:
		text = o.Host + ": nothing was written, and what ran before still runs"
	case o.System == UnknownSystem:
		text = fmt.Sprintf("%s: which system runs is not known; switch it off and on, then look which slot runs", o.Host)
	}
	if o.Slot != "" {
		text += " in " + o.Slot
	}
	if o.Version != "" {
		text += ", version " + o.Version
	}
	switch {
	case o.Committed:
		text += "; it passed its checks and stays"
	case o.Waiting:
		text += "; the new one was installed and starts with the next restart. Then: smoke, and mark it good"
	case o.System == NewSystem:
		text += "; it is not marked good, and a later restart may roll back to the old one"
	}
	return plaintext.Clean(text, report.MaxSawBytes)
}

// ShowUpdate writes an outcome with its report, as text or JSON.
func ShowUpdate(w io.Writer, o Outcome, asJSON bool) error {
	if asJSON {
		o.Report = o.Report.Tidy()
		return plaintext.WriteJSON(w, o)
	}
	o.Report.Summary(w)
	_, err := fmt.Fprintln(w, o)
	return err
}

// AskYes returns a function that asks on out, and fails with refusal unless in answers "yes".
func AskYes(in io.Reader, out io.Writer, refusal string) func(question string) error {
	lines := bufio.NewReader(io.LimitReader(in, 4096))
	return func(question string) error {
		fmt.Fprintf(out, "%s Type yes to go on: ", question)
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !strings.HasSuffix(line, "\n") {
			fmt.Fprintln(out)
		}
		if strings.TrimSpace(line) != "yes" {
			return errors.New(refusal)
		}
		return nil
	}
}
