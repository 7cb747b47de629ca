package station

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/flash/fetch"
	"slipway/layers/bus"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// key is what the hub's key of a job says.
type key string

// The states of a key.
const (
	unknown   key = "unknown" // the hub was not asked yet
	queued    key = "queued"
	running   key = "running"   // claimed by a run of this state folder
	elsewhere key = "elsewhere" // claimed by a run of another one, whose child may live
	missing   key = "missing"
	ended     key = "ended"
)

// deed is what the station does with a job. It reports whether nothing is left to do.
type deed func(w *work, ctx context.Context) (finished bool, err error)

// next says what is to be done with a job, after any stop of any program. current means that the
// folder's order is of the claim in the key.
func next(folder job.FolderState, k key, current bool) deed {
	switch {
	case k == missing && folder == job.None: // it was never ours, or nobody knows of it any more
		return (*work).forget
	case k == missing: // the engine lost its data
		return (*work).restore
	case folder == job.Held: // the child lives
		return (*work).attend
	case k == unknown: // the hub is away
		return (*work).wait
	case k == ended: // the admin abandoned it
		return (*work).giveUp
	case k == queued: // new, or the engine lost the claim
		return (*work).claim
	case folder == job.Done: // done, not reported
		return (*work).report
	case k == elsewhere: // the state folder was copied or lost, and the child may live where it was
		return (*work).outwait
	case folder == job.Broken && current: // the child died too
		return (*work).again
	default: // killed between claim and order: no child of this attempt ever ran
		return (*work).begin
	}
}

// Limits of a job.
const (
	attempts    = 3                   // of a job whose child was killed with the station
	longest     = 30 * 24 * time.Hour // of a limit
	logPatience = 5 * time.Second     // an end waits so long for the log: state passes first
)

// The station's own files in a job's folder.
const (
	endedName = "ended" // the hub acknowledged the end
	keptName  = "kept"  // the hub has the whole log
)

// work is one job of this station.
type work struct {
	s      *station
	id     string
	name   string // of its board
	folder job.Folder
	since  time.Duration // by the boot clock
	news   chan struct{} // holds one: the key was heard of

	tail    tail
	logOnce sync.Once
	final   atomic.Bool   // the log is complete
	whole   chan struct{} // holds one: final was set
	logged  chan struct{} // closed when the hub has the log

	mu       sync.Mutex
	key      key
	job      job.Job
	revision uint64
}

func (s *station) newWork(c job.Change, k key) *work {
	folder := job.Folder(filepath.Join(s.State, "jobs", c.Job.ID))
	return &work{
		s: s, id: c.Job.ID, name: c.Job.Name, folder: folder, since: job.BootTime(), key: k, job: c.Job,
		news: make(chan struct{}, 1), whole: make(chan struct{}, 1), logged: make(chan struct{}), tail: tail{name: folder.Progress(), newest: map[string]event{}},
	}
}

// learn takes what the hub says of the job, unless something newer is known.
func (w *work) learn(c job.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.Revision < w.revision {
		return
	}
	w.job, w.revision = c.Job, c.Revision
	switch {
	case c.Job.State == job.Queued:
		w.key = queued
	case c.Job.State == job.Ended:
		w.key = ended
	case c.Job.Claim != nil && strings.HasPrefix(c.Job.Claim.Instance, w.s.record.Place+"-"):
		w.key = running
	default:
		w.key = elsewhere
	}
	notify(w.news)
}

// miss notes that the hub, which knows all up to a revision, does not list the job.
func (w *work) miss(until uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.revision <= until && w.key != ended {
		w.key = missing
		notify(w.news)
	}
}

// doubt notes that the key is not as it was known here.
func (w *work) doubt() {
	w.mu.Lock()
	w.key = unknown
	w.mu.Unlock()
	w.s.listAgain()
}

func (w *work) forgetRevision() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision = 0
}

// change returns the job as a request about it has it.
func (w *work) change() job.Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	return job.Change{Job: w.job, Revision: w.revision, Instance: w.s.record.instance()}
}

func (w *work) state() key {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.key
}

// pause waits for a value, at most for a time.
func pause(ctx context.Context, news <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-news:
	case <-timer.C:
	}
}

// run does what is to be done until the job has ended, or ctx.
func (w *work) run(ctx context.Context) {
	for ctx.Err() == nil {
		folder, _, err := w.folder.State()
		finished := false
		if err == nil {
			finished, err = next(folder, w.state(), w.isCurrent())(w, ctx)
		}
		w.s.sayError(ctx, "job "+w.id, err)
		if finished {
			break
		}
		if err != nil {
			pause(ctx, w.news, 10*w.s.tick)
		}
	}
	w.s.release(w, 0)
}

// isCurrent reports whether the folder's order is of the key's claim.
func (w *work) isCurrent() bool {
	o, err := w.folder.Order()
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // of a newer Slipway, perhaps: its child may have run
	}
	return reflect.DeepEqual(o.Job.Claim, w.change().Job.Claim)
}

func (w *work) forget(context.Context) (bool, error) { return true, nil }

func (w *work) wait(ctx context.Context) (bool, error) {
	pause(ctx, w.news, time.Minute)
	return false, nil
}

// claim makes a queued job this station's. One that was refused is forgotten until it is listed again.
func (w *work) claim(ctx context.Context) (bool, error) {
	err := w.claimAs(ctx, 1)
	if err == nil {
		return false, nil
	}
	notify(w.s.reconnected) // the lease may be over, or this station drained
	_ = run.Sleep(ctx, 2*w.s.tick)
	if errors.Is(err, bus.ErrConflict) {
		err = nil
	}
	return true, err
}

func (w *work) claimAs(ctx context.Context, attempt int) error {
	if !w.s.lease.Load().holds() {
		return errors.New("the lease is over")
	}
	c := w.change()
	c.Job.Claim = &job.Claim{Instance: c.Instance, Epoch: w.s.record.Epoch, Attempt: attempt}
	c, err := ask[job.Change](ctx, w.s, job.VerbClaim, c)
	if err != nil {
		return err
	}
	w.learn(c)
	w.s.reached("claimed")
	return nil
}

// again begins the next attempt of a job whose child was killed. The commands are made to be repeated.
func (w *work) again(ctx context.Context) (bool, error) {
	c := w.change()
	if c.Job.Stop != "" {
		return w.end(ctx, job.Result{Result: fleet.Result{Kind: fleet.Unsure, Saw: "its process was killed, and " + c.Job.StopBy + " had stopped it"}})
	}
	if n := c.Job.Claim.Attempt; n < attempts {
		err := w.claimAs(ctx, n+1)
		if errors.Is(err, bus.ErrConflict) {
			w.doubt()
			return false, nil
		}
		return false, err
	}
	return w.end(ctx, job.Result{Result: fleet.Result{Kind: fleet.Unsure, Saw: fmt.Sprintf("its process was killed in each of %d attempts", attempts)}})
}

// begin writes the order and starts the child, while no other run can have the lease.
func (w *work) begin(ctx context.Context) (bool, error) {
	c, l := w.change(), w.s.lease.Load() // which may be lost meanwhile
	if !l.holds() {
		pause(ctx, w.news, w.s.tick)
		return false, nil
	}
	if c.Job.Stop != "" {
		switch folder, _, _ := w.folder.State(); {
		case folder == job.None && c.Job.Claim.Attempt > 1:
			return w.again(ctx)
		case folder == job.None:
			return w.end(ctx, job.Result{Result: fleet.Result{Kind: fleet.Stopped, Saw: "stopped by " + c.Job.StopBy + " before it began"}})
		}
	}
	how, err := w.how(ctx, c.Job)
	if fetch.IsNetworkError(err) {
		return false, err // it is tried again
	}
	if err == nil {
		err = w.folder.Begin(job.Order{Job: c.Job, Revision: c.Revision, How: how, BeginBy: l.end()})
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return w.end(ctx, job.Result{Result: fleet.Result{Kind: fleet.Full, Saw: "the station's: " + err.Error()}})
	case err != nil:
		return w.end(ctx, job.Result{Result: fleet.Result{Kind: fleet.Other, Saw: err.Error()}})
	}
	w.s.reached("ordered")
	err = job.Start(ctx, w.folder, w.s.Program)
	w.s.reached("started")
	return false, err
}

// how says how the job's board is reached now.
func (w *work) how(ctx context.Context, j job.Job) (how job.How, err error) {
	b, known := w.s.board(j.Name)
	how = b.how
	if !known && j.Name != job.Builder {
		return how, fmt.Errorf("this station has no board %s any more", j.Name)
	}
	if j.Name == job.Builder {
		how.Clone = w.s.config.Clone
	}
	if j.Project != "" {
		dir := w.s.projectOf(j)
		if err := w.s.Identity.FetchProject(ctx, j.Project, dir); err != nil {
			return how, err
		}
		_ = os.Chtimes(dir, time.Time{}, time.Now()) // it was used now
		how.Boards = filepath.Join(dir, "boards")
	}
	if j.Artifact != "" {
		how.Artifact = w.s.artifactOf(j)
		_ = os.Chtimes(how.Artifact, time.Time{}, time.Now()) // one that is there was used now
	}
	return how, nil
}

// attend looks after a child until it has ended, or the key is to be looked after.
func (w *work) attend(ctx context.Context) (bool, error) {
	w.sendLog(ctx)
	for ctx.Err() == nil {
		folder, _, err := w.folder.State()
		w.tail.publish(w)
		if err != nil || folder != job.Held || w.state() == missing {
			return false, err
		}
		if how := w.change().Job.Stop; how != "" {
			if err := w.folder.Stop(how); err != nil {
				return false, err
			}
		}
		pause(ctx, w.news, w.s.tick)
	}
	return false, nil
}

// report sends what a job left, and its result last.
func (w *work) report(ctx context.Context) (bool, error) {
	w.s.reached("done")
	r, err := w.folder.Result()
	if err != nil {
		r = job.Result{Result: fleet.Result{Kind: fleet.Unsure, Saw: err.Error()}}
	}
	if err := w.sendReport(ctx, r); err != nil {
		return false, err
	}
	w.endLog(ctx)
	select {
	case <-w.logged:
	case <-ctx.Done():
	case <-time.After(logPatience):
	}
	w.s.reached("reported")
	return w.end(ctx, r)
}

// end ends the job. If its key is not as it was known here, the key is asked for.
func (w *work) end(ctx context.Context, r job.Result) (bool, error) {
	c := w.change()
	if r.Host = c.Job.Name; !r.Kind.Known() {
		r.Kind, r.Saw = fleet.Other, fmt.Sprintf("%s: %s", r.Kind, r.Saw)
	}
	r.Attempts, r.Saw = c.Job.Claim.Attempt, w.hider()(r.Saw)
	c.Job.Result = &r
	answer, err := ask[job.Change](ctx, w.s, job.VerbEnd, c)
	if errors.Is(err, bus.ErrConflict) {
		w.doubt()
		return false, fmt.Errorf("report its end: %w", err)
	}
	if err != nil {
		return false, err
	}
	w.s.reached("ended")
	return true, w.finish(ctx, answer)
}

// outwait waits until a child of another state folder must have ended by its limit. What the board
// has is not known then.
func (w *work) outwait(ctx context.Context) (bool, error) {
	c := w.change()
	limit := min(time.Duration(c.Job.LimitMS)*time.Millisecond, longest) + w.s.overtime
	if left := w.since + limit - job.BootTime(); left > 0 {
		note := fmt.Sprintf("job %s was begun with another state folder (%s), and its process may live until %s;", w.id, c.Job.Claim.Instance, time.Now().Add(left).Format("15:04"))
		note += fmt.Sprintf(" next: slipway job abandon %s %s  # if none works on this board any more", w.id, w.s.Identity.Name)
		w.s.sayError(ctx, w.name+" is left alone", errors.New(note))
		w.s.setNote(w.name, note)
		defer w.s.setNote(w.name, "")
		pause(ctx, w.news, left)
		return false, nil
	}
	return w.end(ctx, job.Result{Result: fleet.Result{Kind: fleet.Unsure, Saw: "a run of another state folder of the station had begun it"}})
}

// restore creates a key again that the hub lost. The hub answers with what it has.
func (w *work) restore(ctx context.Context) (bool, error) {
	o, err := w.folder.Order()
	if err != nil {
		return false, err
	}
	c := w.change()
	c.Job = o.Job
	if c, err = ask[job.Change](ctx, w.s, job.VerbRestore, c); err == nil {
		w.forgetRevision()
		w.learn(c)
	}
	return false, err
}

// giveUp ends the work on a job that the hub says has ended: by this result, or without one.
func (w *work) giveUp(ctx context.Context) (bool, error) {
	c := w.change()
	r, err := w.folder.Result()
	if err == nil && (c.Job.Result == nil || c.Job.Result.Kind != r.Kind) { // else it is this one
		w.s.say("job %s has ended without this station: its late result is %s: %s", w.id, r.Kind, r.Saw)
	}
	return true, w.finish(ctx, c)
}

// finish notes that the hub has the end, and frees the board. The rest of the log may follow.
func (w *work) finish(ctx context.Context, c job.Change) error {
	if c.Job.Result != nil {
		w.s.noteResult(c.Job, *c.Job.Result, time.Now())
	}
	folder, _, err := w.folder.State()
	if err == nil && folder != job.None {
		err = localfile.Replace(filepath.Join(string(w.folder), endedName), nil)
	}
	w.s.release(w, c.Revision)
	if folder != job.None {
		w.endLog(ctx)
		select {
		case <-w.logged:
		case <-ctx.Done():
		}
	}
	return err
}
