package bitbake

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

// Job is what one run builds, and how.
type Job struct {
	Board    string
	Machine  string
	Commits  []Commit // what the checkouts are at
	Targets  []string
	Task     string
	Continue bool // after a failed task, as far as the others do not need it
	DryRun   bool // say what would run
	Parse    bool // read all recipes, no more
	// Now is closed when tasks that run are not to be waited for once the context has
	// ended. Where it is nil they have a second.
	Now <-chan struct{}
}

// arguments are bitbake's. A target that looks like an option is not one.
func (j Job) arguments(t Tree) []string {
	argv := []string{t.program("bitbake"), "-c", j.Task}
	for _, flag := range []struct {
		set  bool
		name string
	}{{j.Continue, "-k"}, {j.DryRun, "-n"}, {j.Parse, "-p"}} {
		if flag.set {
			argv = append(argv, flag.name)
		}
	}
	for _, file := range t.Post {
		argv = append(argv, "-R", file)
	}
	return slices.Concat(argv, []string{"--"}, j.Targets)
}

// Run builds the job's targets and records what came of it, whatever that is.
// Where ctx ends first, bitbake finishes the tasks that run, unless the job's Now
// says not to; no process of it is left then.
func (t Tree) Run(ctx context.Context, j Job) (Record, error) {
	if err := t.clear(ctx); err != nil {
		return Record{}, err
	}
	rec := t.record(j)
	if err := remove(filepath.Join(t.Dir, lookRecordName), filepath.Join(t.Dir, lookPageName), filepath.Join(t.Dir, lookLogName)); err != nil {
		return rec, err
	}
	if err := rec.save(t.Dir); err != nil {
		return rec, err
	}
	if err := remove(t.eventLog()); err != nil { // bitbake appends to it
		return rec, err
	}
	times := openForecast(t.Dir)
	err := t.watched(ctx, j, &rec, times)
	if ctx.Err() != nil {
		err = errors.Join(err, t.stop(t.left()))
	}
	rec.close(ctx, t, err)
	err = rec.explain(err)
	return rec, errors.Join(err, times.save(t.Dir, rec), rec.save(t.Dir))
}

func (t Tree) record(j Job) Record {
	return Record{
		Board: j.Board, Machine: j.Machine, Targets: j.Targets, Task: j.Task, DryRun: j.DryRun, Parse: j.Parse,
		Commits: j.Commits, Version: t.Version(), Log: t.logOf(j), Source: "events",
		State: Running, Started: time.Now().UTC(), Exit: -1, Tasks: []Task{},
		Disk: Disk{FreeBytesBefore: freeBytes(t.Build)},
	}
}

// watched runs bitbake and follows it. The console is the program's own output;
// the event log is read beside it.
func (t Tree) watched(ctx context.Context, j Job, rec *Record, times forecast) error {
	w := newWatch(ctx, rec, times)
	log := &logReader{event: w.event, bad: w.bad, tick: w.tick}
	ended, read := make(chan struct{}), make(chan error, 1)
	go func() { read <- log.follow(t.eventLog(), ended) }()
	err := run.Run(ctx, run.Command{
		Argv: j.arguments(t), Dir: t.Build, Env: append(t.Environment(), "BBEVENTLOG="+t.eventLog()),
		Stop: j.stop(w, ended), Log: rec.Log, Line: w.line,
	})
	close(ended)
	if broken := <-read; broken != nil {
		w.bad(broken)
	}
	w.end(err)
	return err
}

// stop asks bitbake to end: once to finish the tasks that run, twice to break them
// off. One that does neither is killed.
func (j Job) stop(w *watch, ended <-chan struct{}) func(*os.Process) error {
	return func(p *os.Process) error {
		err := p.Signal(os.Interrupt)
		w.stopping(j.Now != nil)
		go func() {
			j.patience(ended)
			_ = p.Signal(os.Interrupt) // it may have ended
			select {
			case <-ended:
			case <-time.After(toEnd):
				_ = p.Kill()
			}
		}()
		return err
	}
}

func (j Job) patience(ended <-chan struct{}) {
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

// close says how the run ended.
func (r *Record) close(ctx context.Context, t Tree, err error) {
	r.Ended = time.Now().UTC()
	r.Disk.FreeBytesAfter = freeBytes(t.Build)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		r.State = Interrupted
	case err == nil:
		r.State, r.Exit = Succeeded, 0
	default:
		r.State = Failed
		if errors.As(err, &exit) {
			r.Exit = exit.ExitCode()
		}
	}
}

// freeBytes is the space that is left where dir is; 0 where that is not known.
func freeBytes(dir string) int64 {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0
	}
	return int64(s.Bavail) * s.Bsize
}

// Took is how long the build lasted.
func (r Record) Took() time.Duration {
	if r.Ended.IsZero() {
		return 0
	}
	return r.Ended.Sub(r.Started)
}
