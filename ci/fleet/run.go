package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/ci"
	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	boardupdate "slipway/flash/boardssh/update"
	"slipway/flash/evidence"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Request is the work to do, and the boards to do it on.
type Request struct {
	OtherBoard bool // update with a bundle beside another board's artifact.json, too
	Inventory  string
	Limit      string // an Ansible pattern; "" for all hosts
	Failed     bool   // only those that failed or were not begun last time

	Deploy    bool   // what the artifact has for a running board
	File, To  string // instead of that: one local file, and its place on the board
	Rights    files.Rights
	Update    string   // instead of that: a bundle for the boards' engines
	Downgrade bool     // to an older version than the one that runs
	Program   []string // instead of that: a program to run, and its arguments
	Unproved  bool     // leave the suites out

	Gate
	Parallel   int
	BoardLimit time.Duration // time limit of one attempt
	DryRun     bool

	Confirm func(question string) error // asks the user before an update; nil: no question
	Now     <-chan struct{}             // closed when the run must not even wait for boards that restart
}

// The defaults and limits of Request.
const (
	defaultParallel   = 16
	defaultBoardLimit = 30 * time.Minute
	MaxParallel       = 512
	MaxRetries        = 100
)

// plan is a run whose request and inventory have been checked. No board has been contacted.
type plan struct {
	request  Request
	opt      images.Options
	spec     images.Spec
	artifact images.Artifact
	source   *files.Source
	bundle   *boardupdate.Bundle
	admitted evidence.Admitted
	jobs     []*job
	before   []Result        // of the run that this one continues
	noted    map[string]Note // of earlier updates, by host
	leftOut  []string        // hosts that --failed leaves out, as the last run did not have them

	work    Work
	files   []*sentFile
	suites  string // digest of the suites
	filesMu sync.Mutex

	limit  func(context.Context, *job) (context.Context, context.CancelFunc)
	update func(ctx context.Context, t *attempt, how ci.UpdateOptions) (ci.Outcome, error)
}

// job is one board of a plan.
type job struct {
	host        *Host
	access      Access
	limit       time.Duration
	canary      bool
	tries       int
	begunBefore bool // an earlier run with the same work made an attempt

	resolved boardssh.Address // the address that ssh reports
}

// Run does the work of a request on the boards of an inventory, and may ask the user first. It
// writes a summary to w, and journal and reports below build/<board>/fleet. If boards did not pass,
// the error has their number and a kind. Except for an update, a dry run only writes the plan.
func Run(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, request Request) (Outcome, error) {
	p, notes, err := newPlan(ctx, opt, spec, request)
	if err != nil {
		return Outcome{}, err
	}
	defer p.close()
	if !p.isPreview() {
		unlock, err := p.lockRun()
		if err != nil {
			return Outcome{}, err
		}
		defer unlock()
	}
	if err := p.prepareRun(ctx); err != nil {
		return Outcome{}, err
	}
	if n := len(p.leftOut); n > 0 {
		notes = append(notes, fmt.Sprintf("--failed leaves out hosts that the last run did not have (%d): %s", n, strings.Join(p.leftOut[:min(n, shownHosts)], ", ")))
	}
	writeNotes(w, notes)
	if p.isPreview() {
		p.writePreview(w)
		return Outcome{}, nil
	}
	if err := p.confirmUpdate(w); err != nil {
		return Outcome{}, err
	}
	if err := p.unlockKeys(ctx); err != nil {
		return Outcome{}, err
	}
	return p.runFleet(ctx, w)
}

// isPreview reports whether the run only prints its plan, as a dry run does except for an update.
func (p *plan) isPreview() bool { return p.request.DryRun && p.request.Update == "" }

// prepareRun opens what is sent and computes its digests, reads the notes of the last update,
// chooses the canaries, and removes boards that passed before, if the request has Failed.
func (p *plan) prepareRun(ctx context.Context) error {
	if err := p.openInputs(ctx); err != nil {
		return err
	}
	if err := p.readLastNotes(); err != nil {
		return err
	}
	return p.chooseJobs()
}

// runFleet does the work on all boards, and writes the journal, the reports and the summary. Except
// in a dry run, it first records what the policy admitted.
func (p *plan) runFleet(ctx context.Context, w io.Writer) (Outcome, error) {
	if !p.request.DryRun {
		if err := p.admitted.Record(); err != nil {
			return Outcome{}, err
		}
	}
	r, err := newRun(p)
	if err != nil {
		return Outcome{}, fmt.Errorf("no board was asked, as the record of the run cannot be written: %w", err)
	}
	if len(p.jobs) == 0 {
		fmt.Fprintln(w, "nothing is left to do: of these hosts, those of the last run passed")
	} else {
		r.runAll(ctx)
	}
	err = r.finishRecord()
	next := "repeat the line with --failed  # after correcting what is said above"
	if !slices.ContainsFunc(p.jobs, func(j *job) bool { return !r.outcome.Results[r.at[j.host.Name]].Kind.Done() }) {
		next = plaintext.Either(p.request.Limit == "", "repeat the line without --failed  # the inventory no longer has the boards that did not pass", "repeat the line without --limit  # it leaves out the boards that did not pass")
	}
	summary := func() string { return r.outcome.markdown(p.outputDir()) }
	return r.outcome, errors.Join(err, r.outcome.WriteSummary(w, p.outputDir()), report.AddSummary(summary), r.outcome.Err(ctx, next))
}

// commandName returns the request's command, which also names the output folder: preflight, update,
// run, deploy or smoke.
func (a Request) commandName() string {
	switch {
	case a.Update != "" && a.DryRun:
		return "preflight"
	case a.Update != "":
		return "update"
	case len(a.Program) > 0:
		return "run"
	case a.Deploy || a.File != "":
		return "deploy"
	}
	return "smoke"
}

// describeWork returns the work as text, as the outcome stores it.
func (a Request) describeWork() string {
	if a.File != "" {
		return fmt.Sprintf("deploy %s to %s", a.File, a.To)
	}
	if a.Update != "" {
		return a.commandName() + " " + a.Update
	}
	return strings.TrimSpace(a.commandName() + " " + suite.ShellLine(a.Program))
}

// writeNotes writes each note as a line with "warning: ".
func writeNotes(w io.Writer, notes []string) {
	for _, note := range notes {
		fmt.Fprintln(w, "warning: "+oneLine(note))
	}
}

// withDefaults returns the request with defaults for zero values. It refuses invalid values.
func (a Request) withDefaults() (Request, error) {
	a.Rights.Mode = cmp.Or(a.Rights.Mode, 0o644)
	a.Parallel, a.BoardLimit = cmp.Or(a.Parallel, defaultParallel), cmp.Or(a.BoardLimit, defaultBoardLimit)
	switch {
	case a.Parallel < 1 || a.Parallel > MaxParallel:
		return a, fmt.Errorf("--parallel=%d: want 1 to %d", a.Parallel, MaxParallel)
	case a.Canary < 0 || a.StopAfter < 0 || a.Retries < 0 || a.Retries > MaxRetries:
		return a, errors.New("--canary, --stop-after and --retries are numbers from 0, --retries up to 100")
	case a.BoardLimit < 0:
		return a, fmt.Errorf("--board-limit=%s is no time", a.BoardLimit)
	case (a.File == "") != (a.To == ""):
		return a, errors.New("--file and --to belong together: a file here, and its place on the boards")
	case a.To != "" && (!path.IsAbs(a.To) || strings.HasSuffix(a.To, "/")):
		return a, fmt.Errorf("--to=%s: want the file's whole path on the board", a.To)
	}
	return a, a.Rights.Check()
}

// newPlan checks the request, loads the inventory, and selects the boards. It contacts no board.
// notes are warnings about the inventory.
func newPlan(ctx context.Context, opt images.Options, spec images.Spec, request Request) (_ *plan, notes []string, err error) {
	if request, err = request.withDefaults(); err != nil {
		return nil, nil, err
	}
	p := &plan{request: request, opt: opt, spec: spec, limit: withBoardLimit, update: updateBoard, noted: map[string]Note{}}
	inv, err := Load(request.Inventory)
	if err != nil {
		return nil, nil, err
	}
	if inv.become, err = boardssh.BecomeUser(ctx); err != nil {
		return nil, nil, err
	}
	hosts, err := inv.Select(request.Limit)
	if err != nil {
		return nil, nil, err
	}
	if err := p.addJobs(inv, hosts); err != nil {
		return nil, nil, err
	}
	return p, inv.WarningsFor(hosts), context.Cause(ctx)
}

// readLastNotes sets p.noted from the journal of the last update: which boards may have the new
// system. It does nothing if the request is no update or there is no journal.
func (p *plan) readLastNotes() error {
	if p.request.Update == "" {
		return nil
	}
	dir := p.opt.FleetDir(p.spec, "update")
	last, err := readHistory(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("which boards were updated before is not known: %w\nnext: look on the boards which system runs, then remove that file", err)
	}
	p.noted = renameNotes(last.notes, p.jobs)
	return nil
}

// renameNotes returns a copy in which each note is under the host that has its address now. It does
// not move notes that share an address, or to hosts behind jump hosts, which may share one.
func renameNotes(notes map[string]Note, jobs []*job) map[string]Note {
	now := maps.Clone(notes)
	for _, j := range jobs {
		names := slices.DeleteFunc(slices.Collect(maps.Keys(notes)), func(name string) bool { return !notes[name].isFor(j) })
		if len(names) != 1 || names[0] == j.host.Name || len(j.access.Jump) > 0 {
			continue
		}
		now[j.host.Name] = notes[names[0]]
		if now[names[0]] == notes[names[0]] {
			delete(now, names[0])
		}
	}
	return now
}

// chooseJobs chooses the canaries. For a request with Failed, it first sets p.before, and removes
// boards that passed in the last run or were not in it. Without a last run of this work it fails.
func (p *plan) chooseJobs() error {
	if !p.request.Failed {
		p.chooseCanaries()
		return nil
	}
	last, err := readHistory(p.outputDir())
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--failed needs the record of an earlier run, and there is none in %s\nnext: repeat the line without --failed", p.outputDir())
	}
	if err != nil {
		return fmt.Errorf("--failed needs the record of an earlier run: %w\nnext: repeat the line without --failed", err)
	}
	if why := p.work.Difference(last.outcome.Did); why != "" {
		return fmt.Errorf("--failed needs the same work as the last run: %s (%s)\nnext: repeat the line without --failed", why, filepath.Join(p.outputDir(), journalName))
	}
	p.before = last.outcome.Results
	chosen := len(p.jobs)
	p.jobs = slices.DeleteFunc(p.jobs, func(j *job) bool {
		i, known := last.at[j.host.Name]
		if !known {
			p.leftOut = append(p.leftOut, j.host.Name)
			return true
		}
		r := last.outcome.Results[i]
		same := r.Address == j.access.Host && r.Port == j.access.Port // if not, another board has the name now
		j.begunBefore = same && r.Tries > 0
		return same && r.Kind.Done()
	})
	if n := len(p.leftOut); n > 0 && n == chosen {
		return fmt.Errorf("--failed leaves no board: the last run had none of the chosen hosts (%d, such as %s; %s)\nnext: repeat the line without --failed", n, oneLine(p.leftOut[0]), p.outputDir())
	}
	p.chooseCanaries()
	return nil
}

// chooseCanaries marks the first jobs as canaries, as many as the gate has.
func (p *plan) chooseCanaries() {
	for _, j := range p.jobs[:p.request.ForBoards(len(p.jobs)).Canary] {
		j.canary = true
	}
}

// addJobs adds a job for each host, without hosts of another slipway_board. It returns one error
// for all unusable hosts, and an error if no host is left. Two names of one board are such an
// error, for smoke and run a warning.
func (p *plan) addJobs(inv *Inventory, hosts []*Host) error {
	var problems []error
	others := 0
	boards := map[string]string{} // host names, by address and by serial
	var twice []string
	next := ""
	for _, h := range hosts {
		a, err := inv.ResolveAccess(h)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if a.Board != "" && p.spec.Board != "" && a.Board != p.spec.Board {
			others++
			continue
		}
		switch err := recordBoard(inv, h, a, boards); {
		case err == nil:
		case slices.Contains([]string{"smoke", "run"}, p.request.commandName()):
			twice = append(twice, h.Name)
		default:
			problems, next = append(problems, err), "\nnext: fleet list "+plaintext.Quote(inv.File)+"  # shows their addresses"
		}
		p.jobs = append(p.jobs, &job{host: h, access: a, limit: cmp.Or(a.Limit, p.request.BoardLimit)})
	}
	if n := len(problems); n > 0 {
		more := ""
		if n > 5 {
			more = fmt.Sprintf("\n  and %d more", n-5)
		}
		return fmt.Errorf("no board was asked, because of %d %s: %w%s%s", n, plaintext.Either(n == 1, "host", "hosts"), errors.Join(problems[:min(n, 5)]...), more, next)
	}
	if n := len(twice); n > 0 {
		inv.addWarning(0, "Slipway asks boards with two names twice, at once: keep one name, or leave the other out by --limit (%d, such as %s)", n, strings.Join(twice[:min(n, shownHosts)], ", "))
	}
	if others > 0 {
		inv.addWarning(0, "%d %s left out: slipway_board is not %s", others, plaintext.Either(others == 1, "host is", "hosts are"), p.spec.Board)
	}
	if len(p.jobs) == 0 {
		return fmt.Errorf("%s: every host's slipway_board is another than %s\nnext: fleet list %s", inv.File, p.spec.Board, plaintext.Quote(inv.File))
	}
	return nil
}

// recordBoard adds a host's address, with port and jump hosts, and serial to boards. It fails if
// another host has one: two attempts would write to one board at once, and a second update would
// replace the only old system.
func recordBoard(inv *Inventory, h *Host, a Access, boards map[string]string) error {
	address := fmt.Sprintf("the address %s, port %d", strings.ToLower(a.Host), cmp.Or(a.Port, 22))
	marks := []string{strings.Join(append([]string{address}, a.Jump...), " through ")}
	if a.Serial != "" {
		marks = append(marks, "the serial "+a.Serial)
	}
	for _, mark := range marks {
		if first := boards[mark]; first != "" {
			return inv.errorAt(0, "%s and %s have %s: keep one name of this board, or leave one out by --limit", first, h.Name, oneLine(mark))
		}
		boards[mark] = h.Name
	}
	return nil
}

// close closes the bundle and the file that boards get.
func (p *plan) close() {
	if p.bundle != nil {
		p.bundle.Close()
	}
	if p.source != nil {
		p.source.Close()
	}
}

// outputDir returns the folder of the journal and the reports. Each command has its own folder: a
// board that passed smoke has not yet passed a deploy.
func (p *plan) outputDir() string {
	return p.opt.FleetDir(p.spec, p.request.commandName())
}

func (p *plan) hostDir(j *job) string { return filepath.Join(p.outputDir(), j.host.Name) }

// writePreview writes the work and the boards of the run.
func (p *plan) writePreview(w io.Writer) {
	what := "prove " + p.spec.Board
	switch {
	case len(p.request.Program) > 0:
		what = "run " + suite.ShellLine(p.request.Program)
	case p.bundle != nil:
		what = fmt.Sprintf("update with %s (%s, %.1f MiB)", p.request.Update, oneLine(strings.TrimSpace(string(p.bundle.Kind)+" "+p.bundle.Version)), float64(p.bundle.SizeBytes)/(1<<20))
	case p.source != nil:
		what = fmt.Sprintf("send %s (%.1f MiB) to %s", p.request.File, float64(p.source.Size())/(1<<20), p.request.To)
	case p.request.Deploy:
		what = "deploy " + p.spec.Board
	}
	fmt.Fprintf(w, "would %s on %s, %d at a time\n", what, report.Boards(len(p.jobs)), min(p.request.Parallel, len(p.jobs)))
	for _, j := range p.jobs {
		mark := plaintext.Either(j.canary, "  canary", "")
		fmt.Fprintf(w, "  %s  %s%s\n", oneLine(j.host.Name), oneLine(j.access.Host), mark)
	}
}

// confirmUpdate shows the boards of an update and asks the user. It does nothing in a dry run, and
// without an update or request.Confirm.
func (p *plan) confirmUpdate(w io.Writer) error {
	if p.bundle == nil || p.request.DryRun || p.request.Confirm == nil {
		return nil
	}
	p.writePreview(w)
	return p.request.Confirm(fmt.Sprintf("Update and restart these %d boards?", len(p.jobs)))
}

// fleetRun is the state of a run on many boards.
type fleetRun struct {
	*plan
	history
	gate    Gate
	total   *progress.Step
	journal *journal

	mu       sync.Mutex // protects the history too
	failing  int
	stop     string // why no further attempt begins
	atWork   int
	finished int // jobs that are not tried again
}

// newRun creates a run's state, with the results in p.before. Its journal replaces the last run's,
// whose reports it removes.
func newRun(p *plan) (*fleetRun, error) {
	r := &fleetRun{plan: p, gate: p.request.ForBoards(len(p.jobs)), history: history{at: map[string]int{}, notes: p.noted}}
	if p.request.DryRun { // there is nothing to protect
		r.gate.Canary = 0
	}
	r.outcome = Outcome{Board: p.spec.Board, Work: p.request.describeWork(), Inventory: p.request.Inventory, Started: time.Now().UTC(), Did: p.work}
	r.outcome.Results = slices.Clone(p.before)
	for i, b := range p.before {
		r.at[b.Host] = i
	}
	for _, j := range p.jobs {
		fresh := Result{Host: j.host.Name, Address: j.access.Host, Port: j.access.Port, Kind: NotBegun, Canary: j.canary}
		if i, ok := r.at[j.host.Name]; ok {
			fresh.Tries = min(r.outcome.Results[i].Tries, 1) // the board may have part of this work
			r.outcome.Results[i] = fresh
			continue
		}
		r.at[j.host.Name] = len(r.outcome.Results)
		r.outcome.Results = append(r.outcome.Results, fresh)
	}
	var err error
	r.journal, err = newJournal(p.outputDir(), r.journalEntries(), func() error { return removeOld(p.outputDir()) })
	return r, err
}

// removeOld removes the reports of the last run, which were made from its journal.
func removeOld(dir string) error {
	return localfile.Remove(filepath.Join(dir, outcomeName), filepath.Join(dir, junitName), filepath.Join(dir, pageName))
}

// finishRecord appends the end to the journal, closes it and writes the reports. If the journal
// could not be written before, it first tries to write a new one with all results.
func (r *fleetRun) finishRecord() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.journal.appendEntry(entry{End: &runEnd{r.outcome.ElapsedMS, r.outcome.Stopped}})
	if r.journal.hasFailed() { // the disk may have free space again
		var fresh *journal
		if fresh, err = newJournal(r.outputDir(), r.journalEntries(), func() error { return nil }); err == nil {
			r.journal.close()
			r.journal = fresh
			err = r.journal.appendEntry(entry{End: &runEnd{r.outcome.ElapsedMS, r.outcome.Stopped}})
		}
	}
	if err != nil {
		err = fmt.Errorf("the record of the run is not whole: %w", err)
	}
	return errors.Join(err, r.journal.close(), r.outcome.Write(r.outputDir(), r.outcome.readReports(r.outputDir())))
}

// runAll does the work on the canaries, then on the others if none failed. Dry runs lack canaries.
func (r *fleetRun) runAll(ctx context.Context) {
	r.total = progress.Start(ctx, "fleet", int64(len(r.jobs)), progress.Tasks)
	r.runBatch(ctx, r.jobs[:r.gate.Canary])
	if ctx.Err() == nil {
		r.passGate(r.failing)
	}
	r.runBatch(ctx, r.jobs[r.gate.Canary:])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome.ElapsedMS = time.Since(r.outcome.Started).Milliseconds()
	r.outcome.Stopped = r.stop
	if ctx.Err() != nil && r.stop == "" {
		r.outcome.Stopped = context.Cause(ctx).Error()
	}
	words := r.outcome.countKinds().String()
	var err error
	if r.outcome.worstKind() != Passed {
		err = errors.New(words)
	}
	r.total.End(words, err)
}

// runBatch makes an attempt on every board, several at a time. Up to Retries times it then repeats
// those that another attempt can help. So a board that hangs does not delay the others.
func (r *fleetRun) runBatch(ctx context.Context, jobs []*job) {
	for range 1 + r.gate.Retries {
		forEachJob(ctx, r.request.Parallel, jobs, func(j *job) { r.runJob(ctx, j) })
		jobs = r.jobsToRetry(jobs)
	}
}

// jobsToRetry returns the jobs that the gate lets begin again.
func (r *fleetRun) jobsToRetry(jobs []*job) []*job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool {
		return !r.gate.MayRetry(r.outcome.Results[r.at[j.host.Name]].Kind, j.tries)
	})
}

// forEachJob calls do for each job, parallel at a time, until ctx ends, and waits for all calls.
func forEachJob(ctx context.Context, parallel int, jobs []*job, do func(*job)) {
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, j := range jobs {
		group.Go(func() error {
			if ctx.Err() == nil {
				do(j)
			}
			return nil
		})
	}
	_ = group.Wait()
}

// runJob makes one attempt on a board and records it, unless the run was stopped.
func (r *fleetRun) runJob(ctx context.Context, j *job) {
	if !r.beginAttempt(ctx, j) {
		return
	}
	result, note := r.runBoard(ctx, j)
	r.endAttempt(j, result, note)
}

// beginAttempt checks that the inputs are unchanged and records in the journal that an attempt
// begins. If one of them fails, it stops the run. It returns false if no attempt may begin.
func (r *fleetRun) beginAttempt(ctx context.Context, j *job) bool {
	if !r.passGate(0) || ctx.Err() != nil {
		return false
	}
	if err := r.checkUnchanged(ctx); err != nil {
		r.mu.Lock()
		r.outcome.Changed = true
		r.mu.Unlock()
		r.stopRun(err)
		return false
	}
	if err := r.journal.appendEntry(entry{Host: j.host.Name, Begun: j.tries + 1}); err != nil {
		r.stopRun(fmt.Errorf("the record of the run cannot be written: %w", err))
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.tries > 0 {
		r.failing-- // endAttempt counts it again if it fails again
	}
	j.tries++
	r.atWork++
	r.showProgress()
	return true
}

// passGate reports whether the run continues. It stops the run if the gate says so.
func (r *fleetRun) passGate(canariesFailed int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop = cmp.Or(r.stop, r.gate.Stop(r.failing, canariesFailed))
	return r.stop == ""
}

// stopRun prevents further attempts and keeps the first reason. Running attempts continue.
func (r *fleetRun) stopRun(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop == "" {
		r.stop = why.Error()
	}
}

// endAttempt records an attempt's result and note in the journal, the outcome and the progress. If
// the journal cannot be written, it stops the run.
func (r *fleetRun) endAttempt(j *job, result Result, note *Note) {
	err := r.journal.appendEntry(entry{Host: j.host.Name, Result: &result, Note: note})
	if err != nil {
		r.stopRun(fmt.Errorf("the record of the run cannot be written: %w", err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.atWork--
	if !r.gate.MayRetry(result.Kind, j.tries) {
		r.finished++
		r.total.Add(1)
	}
	if result.Kind.Failed() {
		r.failing++
	}
	r.outcome.Results[r.at[j.host.Name]] = result
	delete(r.notes, j.host.Name)
	if note != nil {
		r.notes[j.host.Name] = *note
	}
	r.showProgress()
}

func (r *fleetRun) showProgress() {
	n := r.outcome.countKinds()
	r.total.Detail(fmt.Sprintf("%d passed, %d failed, %d at work, %d waiting", n[Passed]+n[Already], r.failing, r.atWork, len(r.jobs)-r.finished-r.atWork))
}
