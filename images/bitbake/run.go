package bitbake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/run"
)

// Job describes what one run of bitbake builds, and how.
type Job struct {
	Board    string
	Machine  string
	Commits  []Commit // what the checkouts are at
	Targets  []string
	Task     string
	Continue bool // after a failed task, as far as the others do not need it
	DryRun   bool // say what would run
	Parse    bool // read all recipes, no more
	// Now closes when running tasks get no more time after ctx. nil: they have a second.
	Now <-chan struct{}
}

// bitbakeArgs returns bitbake's command line. No target can be an option: all follow "--".
func (j Job) bitbakeArgs(t Tree) []string {
	argv := []string{t.programPath("bitbake"), "-c", j.Task}
	for _, flag := range []struct {
		set  bool
		name string
	}{{j.Continue, "-k"}, {j.DryRun, "-n"}, {j.Parse, "-p"}} {
		if flag.set {
			argv = append(argv, flag.name)
		}
	}
	return slices.Concat(argv, []string{"--"}, j.Targets)
}

// Run runs bitbake for the job, and saves a record even if that fails. First it ends what a killed
// build left (processes, mounts, sockets) and removes the files of the last dry run. If ctx ends,
// bitbake finishes running tasks, unless j.Now closes. A full disk ends it too. No process remains.
func (t Tree) Run(ctx context.Context, j Job) (Record, error) {
	if err := t.stopLeftovers(ctx); err != nil {
		return Record{}, err
	}
	if err := t.releaseMounts(ctx); err != nil {
		return Record{}, err
	}
	rec := t.newRecord(j)
	if err := localfile.Remove(filepath.Join(t.Dir, dryRunRecordName), filepath.Join(t.Dir, dryRunPageName), filepath.Join(t.Dir, dryRunLogName)); err != nil {
		return rec, err
	}
	if err := rec.save(t.Dir); err != nil {
		return rec, err
	}
	if err := localfile.Remove(t.eventLogPath()); err != nil { // bitbake appends to it
		return rec, err
	}
	times := loadForecast(t.Dir)
	broken := &brokenOff{}
	asked := ctx
	ctx, ended := endWhenFull(asked, t.Build, fullEvery, fullBytes)
	j.Now = endNow(asked, ctx, j.Now)
	err := t.runAndFollow(ctx, j, &rec, times, broken)
	if ctx.Err() != nil {
		left := append(t.leftoverProcesses(), broken.stillRunning()...)
		err = errors.Join(err, t.stopProcesses(left), t.releaseMounts(ctx))
	}
	if ended() {
		rec.noteFull()
	}
	rec.setOutcome(asked, t, err)
	if err = rec.explainFailure(err); asked.Err() != nil && err != nil {
		err = fmt.Errorf("%w\nnext: repeat the line  # it continues", err)
	}
	return rec, errors.Join(err, times.saveDurations(t.Dir, rec), rec.save(t.Dir))
}

// newRecord returns the record of a run that starts now.
func (t Tree) newRecord(j Job) Record {
	free, _ := localfile.FreeBytes(t.Build)
	return Record{
		Board: j.Board, Machine: j.Machine, Targets: j.Targets, Task: j.Task, DryRun: j.DryRun, Parse: j.Parse,
		Commits: j.Commits, Version: t.Version(), Log: t.logPath(j),
		State: Running, Started: time.Now().UTC(), Exit: -1, Tasks: []Task{},
		Disk: Disk{FreeBytesBefore: free},
	}
}

// runAndFollow runs bitbake, and fills rec from its console, its event log and the machine's load.
// A bad event log is only a warning. A second interrupt first adds the running processes to broken.
func (t Tree) runAndFollow(ctx context.Context, j Job, rec *Record, times forecast, broken *brokenOff) error {
	w := newWatch(ctx, rec, times)
	log := &logReader{onEvent: w.handleEvent, onBadLine: w.noteBadLine}
	ended, read := make(chan struct{}), make(chan error, 1)
	go func() { read <- log.followLog(t.eventLogPath(), ended) }()
	sampled, stopSampling := context.WithCancel(context.WithoutCancel(ctx))
	load := startLoad(sampled, rec.Started, loadEvery)
	err := run.Run(ctx, run.Command{
		Argv: j.bitbakeArgs(t), Dir: t.Build, Env: append(t.Environment(), "BBEVENTLOG="+t.eventLogPath()),
		Stop: j.stopFunc(w, ended, func() { broken.remember(t.leftoverProcesses()) }), Log: rec.Log, Line: w.readConsoleLine,
	})
	close(ended)
	stopSampling()
	rec.Load = load()
	if badLine := <-read; badLine != nil {
		w.noteBadLine(badLine)
	}
	w.finishBuild(err)
	return err
}

// stopFunc returns a function that ends bitbake and returns at once. Its first interrupt lets the
// running tasks finish. After waitForTasks, also if bitbake has ended by then, it calls breaking
// and sends a second one, which breaks them off. It kills a bitbake that ignores both.
func (j Job) stopFunc(w *watch, ended <-chan struct{}, breaking func()) func(*os.Process) error {
	return func(p *os.Process) error {
		err := p.Signal(os.Interrupt)
		w.tellStopping(j.Now != nil)
		go func() {
			j.waitForTasks(ended)
			breaking()
			_ = p.Signal(os.Interrupt) // it may have ended
			select {
			case <-ended:
			case <-time.After(termTimeout):
				_ = p.Kill()
			}
		}()
		return err
	}
}

// waitForTasks waits until bitbake has ended or the job's Now closes, or without Now a second.
func (j Job) waitForTasks(ended <-chan struct{}) {
	var second <-chan time.Time
	if j.Now == nil {
		second = time.After(time.Second)
	}
	select {
	case <-ended:
	case <-j.Now:
	case <-second:
	}
}

// setOutcome records the end of the run: its time, state, exit status and the free space. ctx is
// the user's context: if it has ended, the run was interrupted.
func (r *Record) setOutcome(ctx context.Context, t Tree, err error) {
	r.Ended = time.Now().UTC()
	r.Disk.FreeBytesAfter, _ = localfile.FreeBytes(t.Build)
	switch {
	case ctx.Err() != nil:
		r.State = Interrupted
	case err == nil:
		r.State, r.Exit = Succeeded, 0
	default:
		r.State = Failed
		if exit, is := errors.AsType[*exec.ExitError](err); is {
			r.Exit = exit.ExitCode()
		}
	}
}

// Took returns how long the build lasted, 0 if it has not ended.
func (r Record) Took() time.Duration {
	if r.Ended.IsZero() {
		return 0
	}
	return r.Ended.Sub(r.Started)
}
