package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"slipway/ci"
	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/container"
	"slipway/flash/boardssh/files"
	"slipway/layers/progress"
)

// attempt is one try to do the work of a run on one board.
type attempt struct {
	*fleetRun
	job  *job
	step *progress.Step
	conn *boardssh.Conn

	at      phase
	report  report.Report
	updated ci.Outcome
	answer  *Answer
	already bool // the board had it before
}

// runBoard makes one attempt on a board and writes its report. It returns the result (Changed, if
// an input changed), and the note that the next update needs about the board's system, or nil.
func (r *fleetRun) runBoard(ctx context.Context, j *job) (Result, *Note) {
	t := &attempt{fleetRun: r, job: j, step: progress.Start(ctx, j.host.Name, 0, "")}
	t.report = report.Report{Board: cmp.Or(r.spec.Board, j.host.Name), Target: j.host.Name, Started: time.Now().UTC()}
	limited, cancel := r.limit(ctx, j)
	defer cancel()
	err := t.runStages(limited)
	lost := t.closeConnection(limited, err)
	if limited.Err() != nil && ctx.Err() == nil && err != nil && !t.updated.Restarted && !errors.Is(err, errSlow) {
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	if err == nil || ctx.Err() == nil && !t.updated.Restarted {
		if changed := r.checkUnchanged(context.WithoutCancel(ctx)); changed != nil {
			err = kindError{Changed, changed}
		}
	}
	result := Result{Host: j.host.Name, Address: j.access.Host, Port: j.access.Port, Kind: kindOf(ctx, limited, err, t.at, lost), Canary: j.canary, Tries: j.tries}
	if err == nil && t.already && j.tries == 1 {
		result.Kind = Already
	}
	result.ElapsedMS = time.Since(t.report.Started).Milliseconds()
	n := t.report.Counts()
	result.Passed, result.Checks = n.Checks[report.Passed], n.TotalChecks()
	result.System, result.Version, result.SentBytes = t.updated.System, t.updated.Version, t.updated.SentBytes
	result.Answer = t.answer
	if err != nil {
		result.Saw = sawOf(err)
	}
	if failed := t.report.Failures(); result.Kind == Checks && len(failed) > 0 {
		result.Saw = oneLine(fmt.Sprintf("%s: %s: %s", failed[0].Where, failed[0].Name, failed[0].Saw))
		if more := len(failed) - 1; more > 0 {
			result.Saw += fmt.Sprintf("; and %d more", more)
		}
	}
	t.writeReport(&result, err)
	return result, t.noteAfter()
}

// closeConnection closes the connection to the board, if any, and returns whether it broke before.
func (t *attempt) closeConnection(ctx context.Context, err error) bool {
	if t.conn == nil {
		return false
	}
	defer t.conn.Close()
	return t.connectionBroken(ctx, err)
}

// connectionBroken reports whether the connection ended. After a failed command it runs a program
// on the board, because a command can fail before the connection notices its own end.
func (t *attempt) connectionBroken(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil || t.conn.Lost() {
		return t.conn.Lost()
	}
	return !suite.IsAlive(ctx, t.conn, 0)
}

// withBoardLimit returns a context that ends after the board's time limit for one attempt.
func withBoardLimit(ctx context.Context, j *job) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, j.limit, fmt.Errorf("%w (%s)", errSlow, j.limit))
}

// runStages locks the board for this machine, and runs and records the stages of an attempt in
// order, until one fails. Each stage returns at once if the request does not ask for it.
func (t *attempt) runStages(ctx context.Context) error {
	unlock, err := t.lockHost()
	if err != nil {
		return err
	}
	defer unlock()
	for _, stage := range []struct {
		name string
		at   phase
		do   func(context.Context) error
	}{{"connect", connecting, t.connect}, {"prove", proving, t.checkIdentity}, {"deploy", working, t.deploy}, {"update", working, t.installBundle}, {"run", working, t.runProgram}, {"smoke", working, t.runSuites}} {
		began := time.Now()
		t.at = stage.at
		if err := stage.do(ctx); err != nil {
			t.recordStage(stage.name, began, err)
			return err
		}
		t.recordStage(stage.name, began, nil)
	}
	return nil
}

// recordStage adds a stage to the board's report. It skips stages that were not asked for, and
// update and smoke, which report themselves.
func (t *attempt) recordStage(name string, began time.Time, err error) {
	s := report.Stage{Name: name, Status: report.Passed, ElapsedMS: time.Since(began).Milliseconds()}
	switch {
	case name == "update", name == "smoke":
		return
	case err != nil:
		s.Status = report.Failed
		s.Saw, s.Next = report.SplitNext(err, "")
	case name == "deploy" && !t.hasDeploy(), name == "run" && t.answer == nil:
		return
	}
	t.report.Stages = append(t.report.Stages, s)
}

// connect opens t.conn by SSH, and asks the user nothing. An unknown host key is of kind NewKey.
func (t *attempt) connect(ctx context.Context) error {
	t.step.Detail("connecting")
	var err error
	var unknown *boardssh.UnknownKey
	if t.conn, err = t.dial(ctx, t.job); errors.As(err, &unknown) { // the summary has the advice, once for all
		return kindError{NewKey, fmt.Errorf("nothing is known of %s, which shows %s", unknown.Machine(), unknown.Fingerprint())}
	}
	return err
}

// serialScript prints a mark, and then the board's serial if it has one. Output before the mark
// comes from login scripts. The script is the same for all boards.
const serialScript = `echo "$1"; for f in /sys/class/dmi/id/product_serial /proc/device-tree/serial-number; do
test -r "$f" && tr -d '\000' <"$f" && exit; done; exit 0`

const serialMark = "slipway-serial"

// How often an update checks a board's identity after its connection breaks, and how long it waits.
const (
	proveTries  = 5
	proveRedial = 5 * time.Minute
)

// checkIdentity calls checkSerial, before anything is written to the board. If the connection
// breaks before an update, it connects again, up to proveTries times.
func (t *attempt) checkIdentity(ctx context.Context) error {
	for try := 1; ; try++ {
		err := t.checkSerial(ctx)
		if err == nil || t.bundle == nil || try == proveTries || !t.connectionBroken(ctx, err) {
			return err
		}
		if failed := t.conn.Redial(ctx, proveRedial); failed != nil {
			return fmt.Errorf("%w; and then: %w", err, failed)
		}
	}
}

// checkSerial compares the board's serial with the inventory, if that has one. It also fails if the
// board's shell prints text of its own at login.
func (t *attempt) checkSerial(ctx context.Context) error {
	r, err := t.conn.Ask(ctx, "sh", "-c", serialScript, "sh", serialMark)
	if err != nil {
		return err
	}
	before, serial, found := strings.Cut(string(r.Stdout), serialMark+"\n")
	switch serial = strings.TrimSpace(serial); {
	case r.Truncated, !found, before != "", strings.Contains(serial, "\n"):
		return kindError{Noisy, fmt.Errorf("the board printed %d bytes where a few were asked for, such as: %s", len(r.Stdout), shortenOutput(string(r.Stdout)))}
	case t.job.access.Serial != "" && t.job.access.Serial != serial:
		return kindError{OtherBoard, fmt.Errorf("the board says that its serial is %q; the inventory has %q", shortenOutput(serial), t.job.access.Serial)}
	}
	return nil
}

// shortenOutput returns the first 120 bytes of a board's output in one printable line.
func shortenOutput(text string) string {
	text = oneLine(strings.ToValidUTF8(text[:min(len(text), 200)], ""))
	return strings.TrimSpace(text[:min(len(text), 120)])
}

func (t *attempt) hasDeploy() bool { return t.request.Deploy || t.source != nil }

// deploy sends the request's file or artifact to the board, if it has one. If an earlier attempt
// left the same file on the board, deploy sends nothing and sets t.already.
func (t *attempt) deploy(ctx context.Context) error {
	if !t.hasDeploy() {
		return nil
	}
	ctx = t.withBoardProgress(ctx, "deploying")
	if t.source != nil && (t.job.begunBefore || t.job.tries > 1) {
		digest, err := files.Digest(ctx, t.conn, t.request.To)
		if t.already = err == nil && digest == t.source.SHA256(); t.already {
			return nil
		}
	}
	if t.source != nil {
		_, err := files.Send(ctx, t.conn, t.source, t.request.To, t.request.Rights)
		return err
	}
	_, err := container.DeployArtifact(ctx, t.conn, t.spec, t.artifact)
	return err
}

// runSuites runs the board's suites, unless the request is an update or has Unproved set.
func (t *attempt) runSuites(ctx context.Context) error {
	if t.request.Unproved || t.bundle != nil {
		return nil
	}
	r, err := suite.Run(t.withBoardProgress(ctx, "smoke"), t.conn, t.spec, t.artifact, suite.KeepMetrics(t.opt, t.spec))
	t.mergeReport(r)
	return err
}

// mergeReport replaces the attempt's report by r, and puts the earlier stages before those of r.
func (t *attempt) mergeReport(r report.Report) {
	r.Target, r.Stages, r.Started = t.job.host.Name, append(t.report.Stages, r.Stages...), t.report.Started
	t.report = r
}

// withBoardProgress returns a context whose progress is shown on the board's own line.
func (t *attempt) withBoardProgress(ctx context.Context, doing string) context.Context {
	t.step.Detail(doing)
	return progress.With(ctx, progress.New(&boardProgress{t.step, doing}))
}

// boardProgress shows the steps of the work on one board as details of that board's line.
type boardProgress struct {
	step  *progress.Step
	doing string
}

// Event shows a running step as the detail of the board's line, with its percentage or count.
func (l *boardProgress) Event(e progress.Event) {
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

func (*boardProgress) Close() {}

// writeReport writes a report with stages to the board's folder, sets r.Report, and ends the
// progress line. A failed last stage gets r.Kind's next step. If a write fails, the run stops.
func (t *attempt) writeReport(r *Result, err error) {
	t.report.ElapsedMS = r.ElapsedMS
	if n := len(t.report.Stages); n > 0 && err != nil && t.report.Stages[n-1].Status == report.Failed {
		if last := &t.report.Stages[n-1]; r.Kind != Other || last.Next == "" {
			last.Next = strings.TrimSuffix(r.Kind.Next(), seeReport) // which this is
		}
	}
	if len(t.report.Stages) > 0 || len(t.report.Suites) > 0 {
		r.Report = filepath.Join(r.Host, "report.html")
		if werr := t.report.Write(t.hostDir(t.job)); werr != nil {
			r.Report = ""
			t.stopRun(fmt.Errorf("the report of %s cannot be written: %w", r.Host, werr))
		}
	}
	words := r.summaryLine() // the summary has the words of a last failure
	if t.gate.MayRetry(r.Kind, t.job.tries) {
		words += ": " + r.Saw + "; it is tried again after the others"
	}
	t.step.End(words, r.asError(words))
}

// sawOf returns an error in one line, without its next step. Of a refused login it returns the first
// line: the board's report has the keys.
func sawOf(err error) string {
	saw, _ := report.SplitNext(err, "")
	if errors.Is(err, boardssh.ErrLogin) {
		saw, _, _ = strings.Cut(saw, "\n")
	}
	return oneLine(saw)
}

// summaryLine describes a result in one short line.
func (r Result) summaryLine() string {
	text := string(r.Kind)
	if r.Checks > 0 {
		text += fmt.Sprintf(", %d of %d checks", r.Passed, r.Checks)
	}
	if r.Version != "" {
		text += ", version " + oneLine(r.Version)
	}
	return text
}

// asError returns words as an error, or nil if the board has what the run deploys.
func (r Result) asError(words string) error {
	if r.Kind.Done() {
		return nil
	}
	return errors.New(words)
}
