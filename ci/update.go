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
	"slipway/flash/target"
	boardupdate "slipway/flash/target/update"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// UpdateOptions says how Update does its work.
type UpdateOptions struct {
	DryRun    bool                        // look, and write nothing
	Downgrade bool                        // allow an older version than the one that runs
	NoReboot  bool                        // install, and leave the restart to somebody else
	Confirm   func(question string) error // nil: nobody is asked
	Out       io.Writer                   // for what a person should read
	Now       <-chan struct{}             // closed when even the cleaning up shall end

	Earlier *Earlier               // update of this board with this bundle; nil: there was none
	Writing func(before Ran) error // called once before a slot is written; an error keeps it from that
}

// System is what runs on a board after an update.
type System string

// The systems.
const (
	OldSystem     System = "old"
	NewSystem     System = "new"
	UnknownSystem System = "unknown"
)

// Outcome is what came of an update. It tells what runs also where the update
// failed.
type Outcome struct {
	Board     string                `json:"board"`
	Host      string                `json:"host"`
	Engine    string                `json:"engine,omitempty"`
	Bundle    string                `json:"bundle"`
	System    System                `json:"system"`              // what runs now
	Slot      string                `json:"slot,omitempty"`      // where it lies
	Version   string                `json:"version,omitempty"`   // of it, where the engine knows
	Installed string                `json:"installed,omitempty"` // update.Slot's Installation of it
	Already   bool                  `json:"already,omitempty"`   // an earlier update installed it, and this one nothing
	Committed bool                  `json:"committed"`           // the new system is there to stay
	Waiting   bool                  `json:"waiting,omitempty"`   // the new system runs after the next restart
	Restarted bool                  `json:"restarted"`           // the board was told to start the new system
	Way       boardupdate.Way       `json:"way,omitempty"`
	SentBytes int64                 `json:"sentBytes"` // of the bundle, to the board
	Findings  []boardupdate.Finding `json:"findings"`
	Why       string                `json:"why,omitempty"` // the error, where there was one
	Report    report.Report         `json:"report"`
}

// Update has a board's own engine install a bundle, restarts the board, proves the
// new system by its smoke suites, and only then makes it the one that stays. What
// fails after the restart is rolled back to the old system. Whatever happens, the
// outcome says which system runs.
func Update(ctx context.Context, opt images.Options, spec images.Spec, host, bundle string, how UpdateOptions) (Outcome, error) {
	dir := opt.BoardDir(spec)
	if err := report.Remove(dir); err != nil {
		return Outcome{}, err
	}
	artifact := images.NoArtifact(spec, dir)
	if a, err := images.ReadArtifact(dir); err == nil {
		artifact = a
	}
	u := newUpdating(spec, artifact, how)
	u.begin(host, bundle)
	err := u.installBundle(ctx, func(ctx context.Context) (err error) {
		if err = u.lookHere(ctx); err == nil { // before the board is asked anything
			u.conn, err = reach.Reach(ctx, opt, spec, host)
		}
		return err
	})
	u.close()
	if _, none := os.Stat(dir); none == nil {
		err = errors.Join(err, u.outcome.Report.WriteAndSay(how.Out, dir))
	}
	return u.outcome, err
}

// UpdateOn is Update of one board of many: it is reached already, and the bundle is
// open for all of them. Both stay open, and no report is written.
func UpdateOn(ctx context.Context, conn *target.Conn, spec images.Spec, artifact images.Artifact, bundle *boardupdate.Bundle, how UpdateOptions) (Outcome, error) {
	u := newUpdating(spec, artifact, how)
	u.conn, u.bundle = conn, bundle
	u.begin(conn.Address().Host, bundle.File)
	err := u.installBundle(ctx, nil)
	return u.outcome, err
}

// restartLimit is how long a board may take to come back: also one under emulation
// whose new system fails three times before its boot loader goes back.
const restartLimit = 15 * time.Minute

// updating is one run of Update.
type updating struct {
	spec    images.Spec
	how     UpdateOptions
	pause   time.Duration // before a new connection, the second time; then twice that, and so on
	find    func(context.Context) (boardupdate.Engine, error)
	restart func(context.Context) error
	prove   func(context.Context) (report.Report, error)

	conn    *target.Conn
	engine  boardupdate.Engine
	bundle  *boardupdate.Bundle
	before  boardupdate.Status
	arrived headway             // of an earlier update
	judged  bool                // the engine has looked at the bundle
	told    bool                // how.Writing was called
	source  *boardupdate.Source // as it was offered last
	outcome Outcome
}

func newUpdating(spec images.Spec, artifact images.Artifact, how UpdateOptions) *updating {
	u := &updating{spec: spec, how: how, pause: 2 * time.Second}
	u.find = func(ctx context.Context) (boardupdate.Engine, error) {
		return boardupdate.Find(ctx, u.conn, boardupdate.SystemBus)
	}
	u.restart = func(ctx context.Context) error { return u.conn.Reboot(ctx, restartLimit) }
	u.prove = func(ctx context.Context) (report.Report, error) {
		return suite.Run(ctx, u.conn, spec, artifact, suite.Reboots(false))
	}
	return u
}

func (u *updating) begin(host, bundle string) {
	u.outcome = Outcome{
		Board: u.spec.Board, Host: host, Bundle: bundle, System: UnknownSystem,
		Findings: []boardupdate.Finding{}, Report: report.New(u.spec),
	}
}

// installBundle goes through the stages; without connect, the board is reached already. The
// record gets all of them, and the logs of a system that failed.
func (u *updating) installBundle(ctx context.Context, connect func(context.Context) error) error {
	record := &u.outcome.Report
	var err error
	if connect != nil {
		err = runStage(ctx, record, stage{"connect", func(ctx context.Context) (string, error) { return "", connect(ctx) }, "fix that, then run update again"})
	}
	if err == nil {
		defer reach.Hurry(u.conn, u.how.Now)()
	}
	err = u.stages(ctx, err, []stage{
		{"preflight", u.preflight, "fix what was refused, then run update again"},
		{"install", u.install, "the board stays on the system that runs; fix that, then run update again"},
	})
	if err == nil {
		var done func()
		ctx, done = u.patient(ctx)
		defer done()
	}
	err = u.stages(ctx, err, []stage{
		{"restart", u.startNew, "look at the logs of both systems in the report"},
		{"smoke", u.smoke, "each failed check says what to do"},
		{"commit", u.commit, "on the board: look at the engine's own log, then mark the system good by hand"},
	})
	if err != nil && u.outcome.System == NewSystem && u.arrived != stays && ctx.Err() == nil {
		err = errors.Join(err, runStage(ctx, record, stage{"roll back", u.rollBack, "switch the board off and on; then look which slot runs"}))
	}
	u.askLast(ctx)
	if err != nil {
		u.outcome.Why = plaintext.Clean(err.Error(), report.MaxSawBytes)
	}
	record.Reason = report.ReasonFor(err)
	record.ElapsedMS = time.Since(record.Started).Milliseconds()
	return err
}

// stages goes through stages, and skips what is not wanted and what follows on a failure.
func (u *updating) stages(ctx context.Context, err error, all []stage) error {
	record := &u.outcome.Report
	for _, s := range all {
		if err != nil || u.ends(s.name) {
			record.Stages = append(record.Stages, report.Stage{Name: s.name, Status: report.Skipped})
			continue
		}
		if err = runStage(ctx, record, s); errors.Is(err, boardupdate.ErrBusy) && ctx.Err() == nil {
			record.Stages[len(record.Stages)-1].Next = "wait until that installation has ended (with RAUC, on the board: rauc status), then run update again"
		}
	}
	return err
}

// patient is a context for what begins with the restart, and is not to be left half
// done: a first Ctrl-C, which ends ctx, is told to wait, and how.Now ends it.
func (u *updating) patient(ctx context.Context) (_ context.Context, done func()) {
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

// ends says that a stage is not wanted.
func (u *updating) ends(stage string) bool {
	switch stage {
	case "install":
		return u.how.DryRun || u.arrived > newWork
	case "restart":
		return u.how.DryRun || u.how.NoReboot || u.arrived > installed
	case "smoke":
		return u.how.DryRun || u.how.NoReboot
	case "commit":
		return u.how.DryRun || u.how.NoReboot || u.arrived == stays
	}
	return false
}

func (u *updating) preflight(ctx context.Context) (string, error) {
	if err := u.lookHere(ctx); err != nil {
		return "", err
	}
	err := u.overBreaks(ctx, redialLimit, u.examine)
	u.show()
	if err != nil || u.how.DryRun || u.how.Confirm == nil || u.arrived > newWork {
		return u.preflightWords(), err
	}
	slot, _ := u.before.Other()
	return u.outcome.Engine, u.how.Confirm(fmt.Sprintf("Write %s to %s of %s, and restart it?", u.outcome.Bundle, cmp.Or(slot.Name, "the other system"), u.outcome.Host))
}

// lookHere reads what is on this machine: the suites and the bundle.
func (u *updating) lookHere(ctx context.Context) (err error) {
	if !u.how.NoReboot {
		if _, err := suite.LoadAll(u.spec); err != nil { // or the new system could not be proved
			return report.Because(ctx, report.ErrWrong, err)
		}
	}
	if u.bundle == nil {
		u.bundle, err = boardupdate.Open(u.outcome.Bundle)
	}
	return err
}

// examine looks at the board and the bundle. The error is the refusal too.
func (u *updating) examine(ctx context.Context) (err error) {
	if u.engine, err = u.find(ctx); err != nil {
		return err
	}
	u.outcome.Engine = u.engine.Name()
	if u.how.Earlier != nil {
		if err := u.goOn(ctx, *u.how.Earlier); err != nil || u.arrived > newWork {
			return err
		}
	}
	u.outcome.Findings, u.before, err = boardupdate.Preflight(ctx, u.conn, u.engine, u.bundle, boardupdate.Rules{Downgrade: u.how.Downgrade})
	if err != nil {
		return err
	}
	u.runs(u.before)
	err = boardupdate.Refusal(u.outcome.Findings)
	if way, _ := u.engine.Way(ctx, u.bundle); err == nil && way == boardupdate.Streamed {
		err = u.judgeNow(ctx)
	}
	return err
}

// judgeNow has the engine judge a bundle before anybody is asked, which costs the
// board nothing where it streams.
func (u *updating) judgeNow(ctx context.Context) error {
	from, err := boardupdate.Offer(ctx, u.conn, u.engine, u.bundle)
	if err != nil {
		return err
	}
	defer from.Close()
	return u.checkBundle(ctx, from)
}

func (u *updating) checkBundle(ctx context.Context, from *boardupdate.Source) error {
	judged, err := boardupdate.Judge(ctx, u.engine, from, u.before, boardupdate.Rules{Downgrade: u.how.Downgrade})
	if err != nil {
		return err
	}
	err = boardupdate.Refusal(judged)
	if err != nil && u.lost(ctx, err) { // it was not the engine that refused it
		return err
	}
	u.judged = true
	u.outcome.Findings = append(u.outcome.Findings, judged...)
	return err
}

// show lists what was found, for a person.
func (u *updating) show() {
	for _, f := range u.outcome.Findings {
		fmt.Fprintf(u.how.Out, "%-14s  %-25s  %s\n", f.Verdict, f.Name, plaintext.Clean(f.Saw, report.MaxFactBytes))
	}
}

// Bounds on boards whose connection breaks while they install.
const (
	installTries = 5
	breakTries   = 5
	redialLimit  = 5 * time.Minute
	settleLimit  = 30 * time.Minute
)

// install has the engine install. A connection that breaks takes our server with
// it, so what came of the installation is asked on a new one, and it is begun again
// where it failed for that. Nothing is lost by that: the engine keeps what is
// written already, where it knows how to.
func (u *updating) install(ctx context.Context) (saw string, err error) {
	step := progress.Start(ctx, "install", 100, progress.Tasks)
	defer func() { step.End(saw, err) }()
	var broken breaks
	for try := 1; ; try++ {
		if err = u.installOnce(ctx, step); !broken.note(ctx, u, err) {
			err = broken.explain(err)
			break
		}
		step.Detail("the connection broke; connecting again")
		var done bool
		if done, err = u.resume(ctx, &broken); done || err != nil {
			break
		}
		if try == installTries {
			err = broken.exhausted(ctx)
			break
		}
	}
	saw = fmt.Sprintf("%s, %.1f MiB to the board", u.outcome.Way, float64(u.outcome.SentBytes)/(1<<20))
	if broken.n > 0 {
		saw += "; " + broken.String()
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w; the board stays on the system that runs, and the slot that was to be written is not started", err)
	}
	u.outcome.Waiting = err == nil
	return saw, err
}

func (u *updating) installOnce(ctx context.Context, step *progress.Step) error {
	from, err := boardupdate.Offer(ctx, u.conn, u.engine, u.bundle)
	if err != nil {
		return err
	}
	defer func() {
		from.Close()
		u.outcome.SentBytes += from.Served()
	}()
	u.source, u.outcome.Way = from, from.Way
	if from.Why != "" {
		step.Detail(fmt.Sprintf("%s: %s", from.Way, from.Why))
	}
	if !u.judged {
		if err := u.checkBundle(ctx, from); err != nil {
			return err
		}
	}
	if err := u.writes(); err != nil {
		return err
	}
	return u.engine.Install(ctx, from, telling(step))
}

// telling shows how far an installation is. One that is done again begins at 0 again.
func telling(step *progress.Step) func(percent int, text string) {
	return func(percent int, text string) {
		step.Set(int64(percent))
		step.Detail(text)
	}
}

// lost says whether something failed because the board is out of reach, or was: Smoke
// connects again itself.
func (u *updating) lost(ctx context.Context, err error) bool {
	return errors.Is(err, boardupdate.ErrLost) || errors.Is(err, report.ErrUnreachable) || !suite.Answers(ctx, u.conn, 0)
}

// resume connects again and asks the engine whether it got to its end without us, also
// where that breaks.
func (u *updating) resume(ctx context.Context, broken *breaks) (done bool, err error) {
	for try := 1; ; try++ {
		if err := u.redial(ctx, redialLimit, try); err != nil {
			return false, broken.explain(err)
		}
		if done, err = u.settled(ctx); !broken.note(ctx, u, err) {
			return done, broken.explain(err)
		}
		if try == breakTries {
			return false, broken.exhausted(ctx)
		}
	}
}

// settled waits for the end of an installation, and says whether it was the good one.
func (u *updating) settled(ctx context.Context) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if err := u.engine.Settle(limited); err != nil {
		return false, err
	}
	if u.source != nil { // it may have broken before there was one
		u.source.Close() // a file on the board outlived the connection
	}
	status, err := u.engine.Status(ctx)
	return err == nil && status.Waiting(), err
}

// startNew restarts the board and looks which system came up.
func (u *updating) startNew(ctx context.Context) (string, error) {
	step := progress.Start(ctx, "restart", 0, "")
	saw, err := u.restarted(ctx)
	step.End(saw, err)
	return saw, err
}

func (u *updating) restarted(ctx context.Context) (string, error) {
	u.outcome.System, u.outcome.Waiting, u.outcome.Restarted = UnknownSystem, false, true
	if err := u.reboot(ctx); err != nil {
		return "", err
	}
	if u.outcome.System != NewSystem {
		u.logs(ctx, "the system before", "-1")
		return "", fmt.Errorf("the new system did not come up; the boot loader went back to the old one, in %s", u.outcome.Slot)
	}
	return u.outcome.Slot + " runs", nil
}

// reboot restarts the board and looks what runs then.
func (u *updating) reboot(ctx context.Context) error {
	err := u.overBreaks(ctx, restartLimit, u.restart)
	if err == nil {
		err = u.overBreaks(ctx, restartLimit, u.look)
	}
	return err
}

// look asks which system runs.
func (u *updating) look(ctx context.Context) error {
	status, err := u.engine.Status(ctx)
	if err == nil {
		u.runs(status)
	}
	return err
}

// overBreaks does something again, on a new connection, where the old one broke. limit is
// how long the board may take to be there again.
func (u *updating) overBreaks(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	var broken breaks
	for try := 1; ; try++ {
		err := do(ctx)
		if !broken.note(ctx, u, err) {
			return broken.explain(err)
		}
		if try == breakTries {
			return broken.exhausted(ctx)
		}
		if err := u.redial(ctx, limit, try); err != nil {
			return broken.explain(err)
		}
	}
}

// redial connects again. An engine that ended is given longer to start, the more often
// that was tried.
func (u *updating) redial(ctx context.Context, limit time.Duration, try int) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(time.Duration(try-1) * u.pause):
	}
	return report.Because(ctx, report.ErrUnreachable, u.conn.Redial(ctx, limit))
}

// onNew is overBreaks for what is done to the new system alone: a connection also breaks
// where a board restarts by itself, and then the old one may run.
func (u *updating) onNew(ctx context.Context, do func(context.Context) error) error {
	sure := true
	return u.overBreaks(ctx, restartLimit, func(ctx context.Context) error {
		if !sure {
			if err := u.look(ctx); err != nil {
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

// runs notes which system runs.
func (u *updating) runs(status boardupdate.Status) {
	was, known := u.before.Booted()
	is, ok := status.Booted()
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

func (u *updating) smoke(ctx context.Context) (string, error) {
	var proved report.Report
	err := u.onNew(ctx, func(ctx context.Context) (err error) {
		proved, err = u.prove(ctx)
		return err
	})
	r := &u.outcome.Report
	r.Identity, r.Suites, r.Logs = proved.Identity, proved.Suites, append(r.Logs, proved.Logs...)
	return report.CountWords(proved.Counts().Checks), err
}

func (u *updating) commit(ctx context.Context) (string, error) {
	if err := u.onNew(ctx, u.engine.MarkGood); err != nil {
		return "", err
	}
	u.outcome.Committed = true
	return u.outcome.Slot + " stays", nil
}

// rollBack has the old system started, and proves that it runs.
func (u *updating) rollBack(ctx context.Context) (string, error) {
	u.logs(ctx, "the new system", "0")
	err := u.onNew(ctx, u.engine.MarkBad)
	if u.outcome.System == OldSystem { // the boot loader was faster
		return u.outcome.Slot + " runs again", nil
	}
	if err != nil {
		return "", err
	}
	step := progress.Start(ctx, "roll back", 0, "")
	err = u.reboot(ctx)
	if err != nil {
		u.outcome.System = UnknownSystem
		step.End("", err)
		return "", err
	}
	if u.outcome.System != OldSystem {
		err = fmt.Errorf("%s still runs, though it was marked bad", u.outcome.Slot)
	}
	u.logs(ctx, "the old system", "0")
	step.End(u.outcome.Slot+" runs again", err)
	return u.outcome.Slot + " runs again", err
}

// logs keeps what a system has to say: the last of its journal, and its kernel's
// messages where it is the one that runs. boot is journalctl's count.
func (u *updating) logs(ctx context.Context, system, boot string) {
	ctx, cancel := context.WithTimeout(ctx, suite.DefaultTimeout)
	defer cancel()
	asked := map[string][]string{
		system + ": journal": {"journalctl", "--boot=" + boot, "--no-pager", "--quiet", "--lines=300", "--output=short-monotonic"},
	}
	if boot == "0" {
		asked[system+": kernel messages"] = []string{"sh", "-c", "dmesg | tail -n 200"}
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		r, err := u.conn.Run(ctx, asked[name]...)
		if err == nil && r.Status == 0 && len(r.Stdout) > 0 {
			u.outcome.Report.Logs = append(u.outcome.Report.Logs, report.Log{Name: name, Text: plaintext.CleanTail(string(r.Stdout), report.MaxLogBytes)})
		}
	}
}

// askLast asks once more what runs, where that is not sure.
func (u *updating) askLast(ctx context.Context) {
	if u.engine == nil || u.outcome.System != UnknownSystem && ctx.Err() == nil {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), suite.Alive)
	defer cancel()
	status, err := u.engine.Status(limited)
	if err != nil && ctx.Err() == nil && u.conn.Redial(ctx, suite.Alive) == nil {
		status, err = u.engine.Status(ctx)
	}
	if err == nil {
		u.runs(status)
		u.outcome.Waiting = status.Waiting()
	}
}

// close closes what Update opened.
func (u *updating) close() {
	if u.bundle != nil {
		u.bundle.Close()
	}
	if u.conn != nil {
		u.conn.Close()
	}
}

// String is the outcome in one line.
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

// ShowUpdate writes an outcome for a person or for a script.
func ShowUpdate(w io.Writer, o Outcome, asJSON bool) error {
	if asJSON {
		o.Report = o.Report.Tidy()
		return plaintext.WriteJSON(w, o)
	}
	o.Report.Summary(w)
	_, err := fmt.Fprintln(w, o)
	return err
}

// AskYes asks a person a question that only "yes" answers, before something is written.
func AskYes(in io.Reader, out io.Writer) func(question string) error {
	return Ask(in, out, "not confirmed, and nothing was written; give -yes where nobody can be asked")
}

// Ask is AskYes with words of its own for any other answer.
func Ask(in io.Reader, out io.Writer, refusal string) func(question string) error {
	lines := bufio.NewReader(io.LimitReader(in, 4096))
	return func(question string) error {
		fmt.Fprintf(out, "%s Type yes to go on: ", question)
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if strings.TrimSpace(line) != "yes" {
			return errors.New(refusal)
		}
		return nil
	}
}
