package fleet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"slipway/ci"
	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash/target"
	"slipway/flash/target/container"
	"slipway/flash/target/files"
	"slipway/layers/progress"
)

// turn is what is done with one board.
type turn struct {
	*fleetRun
	job  *job
	step *progress.Step
	conn *target.Conn

	at      phase
	report  report.Report
	updated ci.Outcome
	already bool // the board had it before
}

// runBoard gives a board its turn and returns what came of it, and for the next update what
// is known of its system.
func (r *fleetRun) runBoard(ctx context.Context, j *job) (Result, *Note) {
	t := &turn{fleetRun: r, job: j, step: progress.Start(ctx, j.host.Name, 0, "")}
	t.report = report.Report{Board: r.spec.Board, Target: j.host.Name, Started: time.Now().UTC()}
	limited, cancel := r.limit(ctx, j)
	defer cancel()
	err := t.all(limited)
	lost := t.lost(limited, err)
	if limited.Err() != nil && ctx.Err() == nil && err != nil && !t.updated.Restarted && !errors.Is(err, errSlow) {
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	if err == nil || ctx.Err() == nil && !t.updated.Restarted {
		if changed := r.unchanged(context.WithoutCancel(ctx)); changed != nil {
			err = kinded{Changed, changed}
		}
	}
	result := Result{Host: j.host.Name, Address: j.access.Host, Port: j.access.Port, Kind: kindOf(ctx, limited, err, t.at, lost), Canary: j.canary, Tries: j.tries}
	if err == nil && t.already && j.tries == 1 {
		result.Kind = Already
	}
	result.ElapsedMS = time.Since(t.report.Started).Milliseconds()
	result.Passed, result.Checks = tally(t.report)
	result.System, result.Version, result.SentBytes = t.updated.System, t.updated.Version, t.updated.SentBytes
	if err != nil {
		result.Saw = oneLine(err)
	}
	t.finish(&result, err)
	return result, t.noteAfter()
}

// lost ends the connection, and says whether it had ended by itself. What fails
// then can be told before the connection knows of its end, so that is asked first.
func (t *turn) lost(ctx context.Context, err error) bool {
	if t.conn == nil {
		return false
	}
	defer t.conn.Close()
	return t.broken(ctx, err)
}

func (t *turn) broken(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil || t.conn.Lost() {
		return t.conn.Lost()
	}
	return !suite.IsAlive(ctx, t.conn, 0)
}

// limited is a board's time, from its connection to its last check.
func limited(ctx context.Context, j *job) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, j.limit, fmt.Errorf("%w (%s)", errSlow, j.limit))
}

// all is the turn, in order.
func (t *turn) all(ctx context.Context) error {
	unlock, err := t.lock()
	if err != nil {
		return err
	}
	defer unlock()
	for _, stage := range []struct {
		name string
		at   phase
		do   func(context.Context) error
	}{{"connect", connecting, t.connect}, {"prove", proving, t.prove}, {"deploy", working, t.deploy}, {"update", working, t.bundled}, {"smoke", working, t.smoke}} {
		began := time.Now()
		t.at = stage.at
		if err := stage.do(ctx); err != nil {
			t.note(stage.name, began, err)
			return err
		}
		t.note(stage.name, began, nil)
	}
	return nil
}

// note adds a stage to the report. The suites tell of smoke themselves, where they ran,
// and an update of its own stages.
func (t *turn) note(name string, began time.Time, err error) {
	if name == "update" || name == "smoke" && len(t.report.Suites) > 0 {
		return
	}
	s := report.Stage{Name: name, Status: report.Passed, ElapsedMS: time.Since(began).Milliseconds()}
	switch {
	case err != nil:
		s.Status, s.Saw = report.Failed, err.Error()
	case name == "smoke", name == "deploy" && !t.deploys():
		return
	}
	t.report.Stages = append(t.report.Stages, s)
}

func (t *turn) connect(ctx context.Context) error {
	t.step.Detail("connecting")
	a, err := t.address(ctx, t.job)
	if err != nil {
		return err
	}
	t.conn, err = target.DialUnattended(ctx, a)
	return firstContact(err)
}

// firstContact makes one line of the advice that a single board's error has. What to do
// about many is told once, with the kind.
func firstContact(err error) error {
	var unknown *target.UnknownKey
	if !errors.As(err, &unknown) {
		return err
	}
	return kinded{NewKey, fmt.Errorf("nothing is known of %s, which shows %s", unknown.Machine(), unknown.Fingerprint())}
}

// serialScript is fixed text. It prints nothing of its own on a board that has no
// serial; what comes before the mark is the work of login scripts.
const serialScript = `echo "$1"; for f in /sys/class/dmi/id/product_serial /proc/device-tree/serial-number; do
test -r "$f" && tr -d '\000' <"$f" && exit; done; exit 0`

const serialMark = "slipway-serial"

// How often an update asks a board who it is whose connection breaks, and how long that
// may take to be there again.
const (
	proveTries  = 5
	proveRedial = 5 * time.Minute
)

// prove finds out, before anything is written, whether this is the board that the
// inventory means. An update connects again where that breaks, as it does later.
func (t *turn) prove(ctx context.Context) error {
	for try := 1; ; try++ {
		err := t.askSerial(ctx)
		if err == nil || t.bundle == nil || try == proveTries || !t.broken(ctx, err) {
			return err
		}
		if failed := t.conn.Redial(ctx, proveRedial); failed != nil {
			return fmt.Errorf("%w; and then: %w", err, failed)
		}
	}
}

// askSerial also finds out whether the board's answers are what was asked for.
func (t *turn) askSerial(ctx context.Context) error {
	r, err := t.conn.Run(ctx, "sh", "-c", serialScript, "sh", serialMark)
	if err != nil {
		return err
	}
	before, serial, found := strings.Cut(string(r.Stdout), serialMark+"\n")
	switch serial = strings.TrimSpace(serial); {
	case r.Truncated, !found, before != "", strings.Contains(serial, "\n"):
		return kinded{Noisy, fmt.Errorf("the board printed %d bytes where a few were asked for, such as: %s", len(r.Stdout), excerpt(string(r.Stdout)))}
	case t.job.access.Serial != "" && t.job.access.Serial != serial:
		return kinded{OtherBoard, fmt.Errorf("the board says that its serial is %q; the inventory has %q", excerpt(serial), t.job.access.Serial)}
	}
	return nil
}

// excerpt is the beginning of what a board said, for a person.
func excerpt(text string) string {
	text = oneLine(strings.ToValidUTF8(text[:min(len(text), 200)], ""))
	return strings.TrimSpace(text[:min(len(text), 120)])
}

func (t *turn) deploys() bool { return t.ask.Deploy || t.source != nil }

func (t *turn) deploy(ctx context.Context) error {
	if !t.deploys() {
		return nil
	}
	ctx = t.watched(ctx, "deploying")
	if t.source != nil && (t.job.again || t.job.tries > 1) {
		digest, err := files.Digest(ctx, t.conn, t.ask.To)
		if t.already = err == nil && digest == t.source.SHA256(); t.already {
			return nil
		}
	}
	if t.source != nil {
		_, err := files.Send(ctx, t.conn, t.source, t.ask.To, t.ask.Rights)
		return err
	}
	_, err := container.DeployArtifact(ctx, t.conn, t.spec, t.artifact)
	return err
}

func (t *turn) smoke(ctx context.Context) error {
	if t.ask.Unproved || t.bundle != nil {
		return nil
	}
	r, err := suite.Run(t.watched(ctx, "smoke"), t.conn, t.spec, t.artifact)
	t.add(r)
	return err
}

// add takes over a report, behind the stages that were before it.
func (t *turn) add(r report.Report) {
	r.Target, r.Stages, r.Started = t.job.host.Name, append(t.report.Stages, r.Stages...), t.report.Started
	t.report = r
}

// watched is a context in which what is done shows on the board's own line.
func (t *turn) watched(ctx context.Context, doing string) context.Context {
	t.step.Detail(doing)
	return progress.With(ctx, progress.New(&lineOf{t.step, doing}))
}

// lineOf puts the steps of one board's work on the board's line.
type lineOf struct {
	step  *progress.Step
	doing string
}

func (l *lineOf) Event(e progress.Event) {
	switch {
	case e.State != progress.Running:
	case e.Unit == progress.Bytes && e.Total > 0:
		l.step.Detail(fmt.Sprintf("%s %d %%", l.doing, 100*e.Count/e.Total))
	case e.Total > 0:
		l.step.Detail(fmt.Sprintf("%s, %d of %d", e.Step, e.Count, e.Total))
	default:
		l.step.Detail(l.doing + ": " + e.Step)
	}
}

func (*lineOf) Close() {}

// finish writes the board's report and ends its line.
func (t *turn) finish(r *Result, err error) {
	t.report.ElapsedMS = r.ElapsedMS
	if n := len(t.report.Stages); n > 0 && err != nil && t.report.Stages[n-1].Status == report.Failed {
		t.report.Stages[n-1].Next = kinds[r.Kind.rank()].next
	}
	if len(t.report.Stages) > 0 || len(t.report.Suites) > 0 {
		r.Report = filepath.Join(r.Host, "report.html")
		if werr := t.report.Write(t.dir(t.job)); werr != nil {
			r.Report = ""
			t.halt(fmt.Errorf("the report of %s cannot be written: %w", r.Host, werr))
		}
	}
	words := r.words()
	if t.triedAgain(t.job, r.Kind) {
		words += "; it is tried again after the others"
	}
	t.step.End(words, r.err(words))
}

func tally(r report.Report) (passed, all int) {
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			all++
			if c.Status == report.Passed {
				passed++
			}
		}
	}
	return passed, all
}

// words are a result in one line.
func (r Result) words() string {
	text := string(r.Kind)
	if r.Checks > 0 {
		text += fmt.Sprintf(", %d of %d checks", r.Passed, r.Checks)
	}
	if r.Version != "" {
		text += ", version " + oneLine(r.Version)
	}
	if r.Saw != "" {
		text += ": " + r.Saw
	}
	return text
}

func (r Result) err(words string) error {
	if r.Kind.done() {
		return nil
	}
	return errors.New(words)
}
