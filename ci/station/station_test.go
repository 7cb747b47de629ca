package station

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/fleet"
	"slipway/ci/hub/access"
	"slipway/ci/hub/bookstest"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/localfile"
)

const longLease = 30 * time.Second

func TestJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10*longLease)
	b := w.newBench("bench-1", 2, 2)
	b.wish("b2", "fails", true)
	s := b.start()
	passes, fails := b.add("b1"), b.add("b2")
	if r := w.ended(passes.ID).Result; r.Kind != fleet.Passed || r.Checks != 3 || r.Attempts != 1 {
		t.Errorf("result = %+v; want 3 checks passed in attempt 1", r)
	}
	if r := w.ended(fails.ID).Result; r.Kind != fleet.Checks {
		t.Errorf("result = %+v; want %s", r, fleet.Checks)
	}
	b.checkLog(passes.ID)
	b.checkLog(fails.ID)
	w.until("the hub is told the last results", func() bool {
		list := w.boards()
		return len(list) == 2 && list[0].Last != nil && list[0].Last.Kind == fleet.Passed && list[0].Job == "" && list[1].Last != nil
	})
	s.end(t)
	w.until("the station is away, before its lease is over", func() bool { return !w.heard("bench-1") })
	kept := filepath.Join(b.state, "jobs", passes.ID, keptName)
	if err := os.Remove(kept); err != nil {
		t.Fatal(err)
	}
	b.start()
	w.until("the next run has sent the rest of the log", func() bool { return localfile.Exists(kept) })
	b.checkLog(passes.ID)
	w.keepBooks(b)
}

// A station goes away that did not wait for the answer to its last renewal.
func TestAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10*longLease)
	b := w.newBench("bench-1", 1, 1)
	c, err := b.id.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a := job.Alive{Instance: "PLACE-1", Epoch: 1}
	lease, err := access.Ask[job.Lease](t.Context(), c, job.VerbHello, job.Hello{Station: job.Station{V: job.Version, Name: "bench-1", Instance: a.Instance, Epoch: 1}})
	if err != nil {
		t.Fatal(err)
	}
	a.Revision, a.FreeBytes = lease.Revision, 7
	for range 2 { // the second with a revision that the first has replaced
		if _, err := access.Ask[job.Lease](t.Context(), c, job.VerbAlive, a); err != nil {
			t.Errorf("alive at revision %d = %v", a.Revision, err)
		}
	}
	w.until("the hub has the free space of the last renewal", func() bool {
		list := w.stations()
		return len(list) > 0 && list[0].FreeBytes == 7
	})
	other := job.Alive{Instance: "OTHER-2", Epoch: 2, Revision: lease.Revision}
	for _, verb := range []string{job.VerbAlive, job.VerbAway} {
		if _, err := access.Ask[struct{}](t.Context(), c, verb, other); !errors.Is(err, bus.ErrConflict) {
			t.Errorf("%s of another run = %v; want %v", verb, err, bus.ErrConflict)
		}
	}
	if _, err := access.Ask[struct{}](t.Context(), c, job.VerbAway, a); err != nil {
		t.Errorf("away at revision %d = %v", a.Revision, err)
	}
	w.until("the station is away", func() bool { return !w.heard("bench-1") })
}

// The points between the steps of a job at which a station is killed, and what it leaves.
func TestKilledAt(t *testing.T) {
	for _, point := range []string{"claimed", "ordered", "started", "done", "reported", "ended"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, longLease)
			b := w.newBench("bench-1", 1, 1)
			b.wish("b1", "hold", true)
			b.startProcess(point, unix.SIGKILL).until(t, b, func() {
				j := b.add("b1")
				if point == "started" {
					b.begun("b1", j.ID, 1)
				}
				b.wish("b1", "hold", false)
			})
			b.start()
			w.until("the job has ended", func() bool {
				all, err := access.Ask[job.Changes](t.Context(), w.admin, job.VerbJobList, struct{}{})
				return err == nil && len(all.Jobs) == 1 && all.Jobs[0].Job.State == job.Ended
			})
			all := b.events("b1")
			if n := count(all, all[0].Job, "begin"); n != 1 {
				t.Errorf("the board was begun %d times; want once", n)
			}
			if r := w.get(all[0].Job).Result; r.Kind != fleet.Passed {
				t.Errorf("result = %+v; want %s", r, fleet.Passed)
			}
			b.checkLog(all[0].Job)
			w.keepBooks(b)
		})
	}
}

// until does something while a process runs, and waits until it has killed itself.
func (r process) until(t *testing.T, b *bench, do func()) {
	t.Helper()
	do()
	r.wait()
	if status, ok := r.cmd.ProcessState.Sys().(interface{ Signaled() bool }); !ok || !status.Signaled() {
		t.Fatalf("the station ended with %v; want a SIGKILL", r.cmd.ProcessState)
	}
}

// The station and the child are killed in a step: the same job is begun again, but not for ever.
func TestChildKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 2, 2)
	b.wish("b1", "hold", true)
	b.wish("b2", "hold", true)
	s := b.startProcess("", 0)
	twice, never := b.add("b1"), b.add("b2")
	b.begun("b1", twice.ID, 1)
	b.begun("b2", never.ID, 1)
	_ = s.cmd.Process.Kill()
	s.wait()
	b.killChild(twice.ID)
	b.killChild(never.ID)
	b.start()
	b.begun("b1", twice.ID, 2)
	b.wish("b1", "hold", false)
	for attempt := 2; attempt <= 3; attempt++ {
		b.begun("b2", never.ID, attempt)
		b.killChildOnly(never.ID)
	}
	if r := w.ended(twice.ID).Result; r.Kind != fleet.Passed || r.Attempts != 2 {
		t.Errorf("result = %+v; want %s in attempt 2", r, fleet.Passed)
	}
	if r := w.ended(never.ID).Result; r.Kind != fleet.Unsure || r.Attempts != 3 {
		t.Errorf("result = %+v; want %s after 3 attempts", r, fleet.Unsure)
	}
	b.checkLog(twice.ID)
	w.keepBooks(b)
}

// killChildOnly kills a child while the station looks on.
func (b *bench) killChildOnly(id string) {
	b.w.t.Helper()
	_, pid, err := job.Folder(filepath.Join(b.state, "jobs", id)).State()
	if err != nil || pid == 0 || unix.Kill(pid, unix.SIGKILL) != nil {
		b.w.t.Fatalf("State = %v, %v; want a child", pid, err)
	}
}

// The hub is away, also while the job ends.
func TestHubAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	b.wish("b1", "hold", true)
	b.start()
	j := b.add("b1")
	b.begun("b1", j.ID, 1)
	w.stop()
	w.link.to("")
	b.wish("b1", "hold", false)
	f := job.Folder(filepath.Join(b.state, "jobs", j.ID))
	w.until("the job ends without a hub", func() bool { state, _, _ := f.State(); return state == job.Done })
	w.startHub()
	if r := w.ended(j.ID).Result; r.Kind != fleet.Passed || r.Attempts != 1 {
		t.Errorf("result = %+v; want %s in attempt 1", r, fleet.Passed)
	}
	b.checkLog(j.ID)
	w.keepBooks(b)
}

// The hub's engine is lost, and with it all jobs. Its keys stay.
func TestHubLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 2, 2)
	b.wish("b1", "hold", true)
	b.start()
	before, runs := b.add("b2"), job.Job{}
	w.ended(before.ID)
	b.checkLog(before.ID)
	runs = b.add("b1")
	b.begun("b1", runs.ID, 1)
	w.stop()
	if err := os.RemoveAll(filepath.Join(w.dir, "hub", "engine")); err != nil {
		t.Fatal(err)
	}
	w.startHub()
	w.until("the job is restored", func() bool { j := w.get(runs.ID); return j.State == job.Running && j.Restored })
	b.wish("b1", "hold", false)
	if r := w.ended(runs.ID).Result; r.Kind != fleet.Passed || r.Attempts != 1 {
		t.Errorf("result = %+v; want %s in attempt 1", r, fleet.Passed)
	}
	if restored := bookstest.Accepted(w.audit(), job.VerbRestore); len(restored) != 1 || restored[0].Job.ID != runs.ID {
		t.Errorf("the audit has restored jobs %+v; want %s alone", restored, runs.ID)
	}
	b.checkLog(runs.ID)
	if j := w.get(before.ID); j.ID != "" {
		t.Errorf("job %s, which had ended, is %s; want it lost", j.ID, j.State)
	}
	after := b.add("b2")
	w.ended(after.ID)
	for name := range 2 { // what the hub forgot is in no books
		b.forget(b.names[name], before.ID)
	}
	w.keepBooks(b)
}

// forget removes a job from a board's file.
func (b *bench) forget(board, id string) {
	b.w.t.Helper()
	name := filepath.Join(b.boards, board, "file")
	data, err := os.ReadFile(name)
	if err != nil {
		b.w.t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(data), "\n"), func(line string) bool { return strings.Contains(line, id) })
	if err := os.WriteFile(name, []byte(strings.Join(lines, "")), 0o600); err != nil {
		b.w.t.Fatal(err)
	}
}

func TestTwoOfOneName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2*time.Second)
	b := w.newBench("bench-1", 1, 1)
	b.start()
	w.ended(b.add("b1").ID)
	if err := b.start().stopped(); err == nil || !strings.Contains(err.Error(), "state folder") || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("Run on the same state = %v; want an error that names the process", err)
	}
	other := *b
	other.state = filepath.Join(w.dir, "other")
	machine, _ := os.Hostname()
	if err := other.start().stopped(); err == nil || !strings.Contains(err.Error(), "bench-1 runs on the machine "+machine) {
		t.Errorf("Run with the same name = %v; want an error that names the machine %s", err, machine)
	}
	w.keepBooks(b)
}

// A station's machine is lost, and another one takes its place before its lease is over.
func TestMachineReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6*time.Second)
	b := w.newBench("bench-1", 1, 1)
	first := b.startProcess("", 0)
	w.until("the first has the lease", func() bool { return strings.Contains(first.log.String(), "has the lease") })
	_ = first.cmd.Process.Kill()
	first.wait()
	other := *b
	other.state = filepath.Join(w.dir, "other")
	second := other.start()
	w.until("the second waits", func() bool {
		return strings.Contains(second.log.String(), "this station waits: bench-1 runs on the machine")
	})
	if !second.leased() {
		t.Errorf("Run = %v; want that it gets the lease once that of the first is over", second.stopped())
	}
	if r := w.ended(other.add("b1").ID).Result; r.Kind != fleet.Passed {
		t.Errorf("result = %+v; want %s", r, fleet.Passed)
	}
	w.keepBooks(b)
}

// stopped waits until a station has ended by itself.
func (r process) stopped() error {
	select {
	case err := <-r.ended:
		return err
	case <-time.After(patience):
		return errors.New("it does not end")
	}
}

// The state folder is copied while a job runs. The copy begins nothing while the first is heard, and
// leaves the board of that job alone when the first is cut off.
func TestStateCopied(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2*time.Second)
	b := w.newBench("bench-1", 2, 2)
	b.wish("b1", "hold", true)
	first := b.start()
	runs := b.add("b1")
	b.begun("b1", runs.ID, 1)
	c := b.copyState("copy")
	if err := c.start().stopped(); err == nil || !strings.Contains(err.Error(), "bench-1 runs on the machine") {
		t.Errorf("Run of the copy = %v; want an error that names the first", err)
	}
	b.link.to("")
	var second process
	w.until("the copy gets the lease", func() bool { second = c.start(); return second.leased() })
	queued := b.add("b2")
	b.link.to(w.link.address())
	w.until("the first has lost its lease", func() bool { return strings.Contains(first.log.String(), "the lease was lost") })
	if r := w.ended(queued.ID); r.Claim.Instance == w.get(runs.ID).Claim.Instance {
		t.Errorf("job %s was begun by the first, %s", queued.ID, r.Claim.Instance)
	}
	next := b.add("b1")
	w.until("the copy leaves the board alone", func() bool { return strings.Contains(second.log.String(), "is left alone: job ") })
	b.wish("b1", "hold", false)
	f := job.Folder(filepath.Join(b.state, "jobs", runs.ID))
	w.until("the first's job is done", func() bool { state, _, _ := f.State(); return state == job.Done })
	second.end(t)
	if r := w.ended(runs.ID); r.Result.Kind != fleet.Passed || r.Result.Attempts != 1 {
		t.Errorf("result = %+v; want %s in attempt 1", r.Result, fleet.Passed)
	}
	w.ended(next.ID)
	w.keepBooks(b)
}

// leased waits until a station has the lease, or has ended.
func (r process) leased() bool {
	for !strings.Contains(r.log.String(), "has the lease") {
		select {
		case <-r.ended:
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
	return true
}

// A station that slept longer than its lease, in the middle of a job and before one, begins nothing
// while another one has the lease.
func TestStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2*time.Second)
	b := w.newBench("bench-1", 2, 2)
	b.wish("b1", "hold", true)
	first := b.startProcess("", 0)
	runs := b.add("b1")
	b.begun("b1", runs.ID, 1)
	if err := first.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w.until("the lease is over", func() bool { return !w.heard("bench-1") })
	other := *b
	other.state = filepath.Join(w.dir, "other")
	second := other.start()
	queued := other.add("b2")
	if j := w.ended(queued.ID); j.Claim.Instance == w.get(runs.ID).Claim.Instance {
		t.Errorf("the first began job %s", queued.ID)
	}
	late := other.add("b2")
	if err := first.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.until("the first has lost its lease", func() bool { return strings.Contains(first.log.String(), "the lease was lost") })
	if j := w.ended(late.ID); j.Claim.Instance == w.get(runs.ID).Claim.Instance {
		t.Errorf("the first began job %s", late.ID)
	}
	second.end(t)
	b.wish("b1", "hold", false)
	if r := w.ended(runs.ID).Result; r.Kind != fleet.Passed {
		t.Errorf("result = %+v; want %s", r, fleet.Passed)
	}
	w.keepBooks(b)
}

// A station sleeps longer than its lease when it has claimed a job, or is about to start its child. It
// begins the job only when no other one has the lease.
func TestStoppedAt(t *testing.T) {
	for _, point := range []string{"claimed", "ordered"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2*time.Second)
			b := w.newBench("bench-1", 1, 1)
			first := b.startProcess(point, unix.SIGSTOP)
			j := b.add("b1")
			w.until("the job is claimed", func() bool { return w.get(j.ID).State == job.Running })
			w.until("the lease is over", func() bool { return !w.heard("bench-1") })
			other := *b
			other.state = filepath.Join(w.dir, "other")
			second := other.start()
			w.until("the second leaves the board alone", func() bool { return strings.Contains(second.log.String(), "is left alone: job ") })
			if err := first.cmd.Process.Signal(unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			w.until("the first has lost its lease", func() bool { return strings.Contains(first.log.String(), "the lease was lost") })
			if point == "ordered" {
				f := job.Folder(filepath.Join(b.state, "jobs", j.ID))
				w.until("the child has refused", func() bool {
					said, _ := os.ReadFile(f.Log())
					return strings.Contains(string(said), "the lease of the station was over")
				})
			}
			if n := len(b.events("b1")); n > 0 {
				t.Error("the first began the job while the second had the lease")
			}
			second.end(t)
			if r := w.ended(j.ID).Result; r.Kind != fleet.Passed {
				t.Errorf("result = %+v; want %s", r, fleet.Passed)
			}
			w.keepBooks(b)
		})
	}
}

// The state folder is lost in the middle of a job. Its child ends by its limit, and only then the board
// is free. What it has is not known.
func TestStateLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2*time.Second)
	b := w.newBench("bench-1", 1, 1)
	b.wish("b1", "hold", true)
	b.limitMS = 2000
	s := b.start()
	j := b.add("b1")
	b.begun("b1", j.ID, 1)
	s.end(t)
	lost := *b
	lost.state, lost.overtime = filepath.Join(w.dir, "lost"), time.Second
	next := b.add("b1") // which the limit ends, too
	w.until("the new state folder has the lease", func() bool { return lost.start().leased() })
	w.until("the board says what is waited for", func() bool {
		list := w.boards()
		return len(list) > 0 && strings.Contains(list[0].Note, "slipway job abandon "+j.ID+" bench-1")
	})
	if r := w.ended(j.ID).Result; r.Kind != fleet.Unsure || !strings.Contains(r.Saw, "another state folder") {
		t.Errorf("result = %+v; want %s", r, fleet.Unsure)
	}
	w.ended(next.ID)
	all := b.events("b1")
	if i := slices.IndexFunc(all, func(e bookstest.Event) bool { return e.Job == next.ID }); count(all[:i], j.ID, "end") != 1 {
		t.Errorf("the next job was begun before the child had ended: %+v", all)
	}
}

// An admin abandons a job that another state folder began. Its board is free at once.
func TestAbandonedElsewhere(t *testing.T) {
	s := stationOf(t, `boards: {b1: {board: pi, host: "10.0.0.1"}}`)
	s.State, s.works, s.done, s.tick = t.TempDir(), map[string]*work{}, map[string]uint64{}, time.Hour
	s.lease.Store(noLease(longLease))
	j := job.Job{ID: job.NewID(), Name: "b1", Board: "pi", State: job.Running, LimitMS: 1e9, Claim: &job.Claim{Instance: "LOST-1", Attempt: 1}}
	s.take(t.Context(), job.Changes{Jobs: []job.Change{{Job: j, Revision: 1}}, Until: 1})
	(&world{t: t}).until("the board says what is waited for", func() bool {
		b, _ := s.board("b1")
		return strings.Contains(b.Note, "slipway job abandon "+j.ID)
	})
	s.take(t.Context(), job.Changes{Until: 2})
	(&world{t: t}).until("no job has the board", func() bool { return len(s.busy()) == 0 })
	if b, _ := s.board("b1"); b.Note != "" || len(s.busy()) > 0 {
		t.Errorf("the board has the note %q and the jobs %v; want it free", b.Note, s.busy())
	}
}

// The state folder is lost in the middle of a job, and an admin abandons the job while the station is
// heard. The board is free at once.
func TestAbandonedOfLostState(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2*time.Second)
	b := w.newBench("bench-1", 1, 1)
	b.wish("b1", "hold", true)
	b.limitMS = time.Hour.Milliseconds()
	s := b.start()
	j := b.add("b1")
	b.begun("b1", j.ID, 1)
	s.end(t)
	b.killChild(j.ID)
	lost := *b
	lost.state = filepath.Join(w.dir, "lost")
	lost.start()
	w.until("the board says what is waited for", func() bool {
		list := w.boards()
		return len(list) > 0 && strings.Contains(list[0].Note, "slipway job abandon "+j.ID+" bench-1")
	})
	if _, err := access.Ask[job.Change](t.Context(), w.admin, job.VerbAbandon, job.StopWish{ID: j.ID, Station: "bench-1"}); err != nil {
		t.Fatal(err)
	}
	b.wish("b1", "hold", false)
	if r := w.ended(lost.add("b1").ID).Result; r.Kind != fleet.Passed {
		t.Errorf("result of the next job = %+v; want %s", r, fleet.Passed)
	}
	w.keepBooks(b)
}

// A child that cannot be started costs no attempt.
func TestChildDoesNotStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	b.program = filepath.Join(w.dir, "slipway")
	s := b.start()
	j := b.add("b1")
	w.until("the station says why", func() bool { return strings.Contains(s.log.String(), "slipway: no such file") })
	time.Sleep(20 * testTick) // it is tried again
	program, err := os.Executable()
	if err == nil {
		err = os.Symlink(program, b.program)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := w.ended(j.ID).Result; r.Kind != fleet.Passed || r.Attempts != 1 {
		t.Errorf("result = %+v; want %s in attempt 1", r, fleet.Passed)
	}
	w.keepBooks(b)
}

func (w *world) heard(station string) bool {
	w.t.Helper()
	return slices.ContainsFunc(w.stations(), func(s job.HubStation) bool { return s.Name == station && s.Heard })
}

func (w *world) stopJob(id string, how job.Stop) {
	w.t.Helper()
	if _, err := access.Ask[job.Change](w.t.Context(), w.admin, job.VerbJobStop, job.StopWish{ID: id, How: how}); err != nil {
		w.t.Fatal(err)
	}
}

func TestStop(t *testing.T) {
	for name, how := range map[string]func(t *testing.T, w *world, b *bench, j job.Job){
		"gently": func(t *testing.T, w *world, b *bench, j job.Job) { w.stopJob(j.ID, job.Gently) },
		"twice": func(t *testing.T, w *world, b *bench, j job.Job) {
			b.wish("b1", "stubborn", true)
			w.stopJob(j.ID, job.Gently)
			w.until("the board hears of it", func() bool { return count(b.events("b1"), j.ID, "sigint") == 1 })
			w.stopJob(j.ID, job.Gently) // the same wish again is the same
			w.stopJob(j.ID, job.Now)
		},
		"now": func(t *testing.T, w *world, b *bench, j job.Job) {
			b.wish("b1", "stubborn", true)
			w.stopJob(j.ID, job.Now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, longLease)
			b := w.newBench("bench-1", 2, 3)
			b.wish("b1", "hold", true)
			b.start()
			runs := b.add("b1")
			b.begun("b1", runs.ID, 1)
			queued := b.add("b1")
			w.ended(b.add("b2").ID) // the station has read all jobs, and one board is busy
			w.stopJob(queued.ID, job.Gently)
			how(t, w, b, runs)
			want := 1
			if name != "gently" {
				want = 2
			}
			if r := w.ended(runs.ID).Result; r.Kind != fleet.Stopped {
				t.Errorf("result = %+v; want %s", r, fleet.Stopped)
			}
			if n := count(b.events("b1"), runs.ID, "sigint"); n != want {
				t.Errorf("the board got %d SIGINTs; want %d", n, want)
			}
			if r := w.ended(queued.ID).Result; r.Kind != fleet.Stopped || count(b.events("b1"), queued.ID, "begin") > 0 {
				t.Errorf("result of the queued job = %+v; want %s, and no begin", r, fleet.Stopped)
			}
			w.keepBooks(b)
		})
	}
}

// A job is stopped when its station was killed between claim and order.
func TestStopBeforeBegin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	s := b.startProcess("claimed", unix.SIGKILL)
	j := b.add("b1")
	s.wait()
	w.stopJob(j.ID, job.Gently)
	b.start()
	if r := w.ended(j.ID).Result; r.Kind != fleet.Stopped || r.Saw != "stopped by alice before it began" || len(b.events("b1")) > 0 {
		t.Errorf("result = %+v, events %v; want %s, and no begin", r, b.events("b1"), fleet.Stopped)
	}
	w.keepBooks(b)
}

// A job whose process was killed is not begun again if somebody stopped it meanwhile.
func TestStopAfterChildKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	b.wish("b1", "hold", true)
	s := b.startProcess("", 0)
	j := b.add("b1")
	b.begun("b1", j.ID, 1)
	_ = s.cmd.Process.Kill()
	s.wait()
	b.killChild(j.ID)
	w.stopJob(j.ID, job.Gently)
	b.start()
	if r := w.ended(j.ID).Result; r.Kind != fleet.Unsure || !strings.Contains(r.Saw, "alice had stopped it") || count(b.events("b1"), j.ID, "begin") != 1 {
		t.Errorf("result = %+v, events %v; want %s, and one begin", r, b.events("b1"), fleet.Unsure)
	}
	w.keepBooks(b)
}

// A job is stopped while the station is away. After that the child gets each wish once, also if the
// station starts again.
func TestStopWhileAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 2, 2)
	b.wish("b1", "hold", true)
	b.wish("b1", "stubborn", true)
	s := b.start()
	j := b.add("b1")
	b.begun("b1", j.ID, 1)
	s.end(t)
	w.stopJob(j.ID, job.Gently)
	s = b.start()
	w.until("the board hears of it", func() bool { return count(b.events("b1"), j.ID, "sigint") == 1 })
	s.end(t)
	b.start()
	w.ended(b.add("b2").ID) // so the station has read what the hub says of all jobs
	if n := count(b.events("b1"), j.ID, "sigint"); n != 1 {
		t.Errorf("the board got %d SIGINTs; want 1", n)
	}
	w.stopJob(j.ID, job.Now)
	if r := w.ended(j.ID).Result; r.Kind != fleet.Stopped {
		t.Errorf("result = %+v; want %s", r, fleet.Stopped)
	}
	if n := count(b.events("b1"), j.ID, "sigint"); n != 2 {
		t.Errorf("the board got %d SIGINTs; want 2", n)
	}
	w.keepBooks(b)
}

// The admin gave a job up while its station was away. Its child goes on, and its result is late.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	b.wish("b1", "hold", true)
	s := b.start()
	j := b.add("b1")
	b.begun("b1", j.ID, 1)
	s.end(t)
	if _, err := access.Ask[job.Change](t.Context(), w.admin, job.VerbAbandon, job.StopWish{ID: j.ID, Station: "bench-1"}); err != nil {
		t.Fatal(err)
	}
	s = b.start()
	next := b.add("b1")
	b.wish("b1", "hold", false)
	w.until("the late result is in the station's log", func() bool {
		return strings.Contains(s.log.String(), "job "+j.ID+" has ended without this station: its late result is passed")
	})
	if r := w.ended(j.ID).Result; r.Kind != fleet.Unsure {
		t.Errorf("result = %+v; want %s", r, fleet.Unsure)
	}
	w.ended(next.ID)
	all := b.events("b1")
	if n := count(all, j.ID, "begin"); n != 1 {
		t.Errorf("the job was begun %d times; want once", n)
	}
	first := slices.IndexFunc(all, func(e bookstest.Event) bool { return e.Job == next.ID })
	if first >= 0 && slices.ContainsFunc(all[first:], func(e bookstest.Event) bool { return e.Job == j.ID }) {
		t.Error("the next job was begun before the child of the abandoned one had ended")
	}
}

// The next job of a board waits for the one before it, and all for a place among three.
func TestParallel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 8, 3)
	for _, name := range b.names {
		b.wish(name, "hold", true)
	}
	s := b.start()
	w.until("the boards are known", func() bool {
		list := w.boards()
		return len(list) == 8
	})
	s.end(t)
	var jobs []job.Job
	for _, name := range append(b.names, "b1") {
		jobs = append(jobs, b.add(name))
	}
	b.start()
	for _, j := range jobs[:3] { // the oldest
		b.begun(j.Name, j.ID, 1)
	}
	most := 0
	for _, name := range b.names {
		b.wish(name, "hold", false)
	}
	w.until("all have ended", func() bool {
		all, err := access.Ask[job.Changes](t.Context(), w.admin, job.VerbJobList, struct{}{})
		running, ended := 0, 0
		for _, c := range all.Jobs {
			switch c.Job.State {
			case job.Running:
				running++
			case job.Ended:
				ended++
			}
		}
		most = max(most, running)
		return err == nil && ended == len(jobs)
	})
	if most != 3 {
		t.Errorf("%d jobs ran at once; want 3", most)
	}
	w.keepBooks(b)
}

// The station's disk is full: nothing is begun.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	if err := os.MkdirAll(b.state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", b.state, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("a tmpfs cannot be mounted: %v: run the tests as root", err)
	}
	t.Cleanup(func() {
		err := unix.Unmount(b.state, 0)
		for end := time.Now().Add(10 * time.Second); errors.Is(err, unix.EBUSY) && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			err = unix.Unmount(b.state, 0) // once the job's process has ended, which it has said already
		}
		if err != nil {
			t.Error(err)
		}
	})
	b.start()
	w.until("the station is there", func() bool { return w.heard("bench-1") })
	fill := filepath.Join(b.state, "fill")
	if err := fillDisk(fill); err != nil {
		t.Fatal(err)
	}
	j := b.add("b1")
	if r := w.ended(j.ID).Result; r.Kind != fleet.Full || !strings.Contains(r.Saw, "no space left") {
		t.Errorf("result = %+v; want %s", r, fleet.Full)
	}
	if n := len(b.events("b1")); n > 0 {
		t.Errorf("the board was begun")
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	j = b.add("b1")
	if r := w.ended(j.ID).Result; r.Kind != fleet.Passed {
		t.Errorf("result with space = %+v; want %s", r, fleet.Passed)
	}
	w.keepBooks(b)
}

func fillDisk(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return nil
		}
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6*time.Second)
	b := w.newBench("bench-1", 2, 2)
	b.wish("b1", "hold", true)
	b.start()
	runs := b.add("b1")
	b.begun("b1", runs.ID, 1)
	drained := make(chan error, 1)
	go func() { drained <- Drain(t.Context(), w.admin, "bench-1", false) }()
	w.until("the hub knows of it", func() bool {
		list := w.stations()
		return len(list) > 0 && list[0].Draining
	})
	queued := b.add("b2")
	select {
	case err := <-drained:
		t.Fatalf("Drain = %v before the job has ended", err)
	default:
	}
	b.wish("b1", "hold", false)
	if err := <-drained; err != nil {
		t.Errorf("Drain = %v", err)
	}
	if j := w.get(runs.ID); j.State != job.Ended {
		t.Errorf("after Drain, job %s is %s", j.ID, j.State)
	}
	if j := w.get(queued.ID); j.State != job.Queued {
		t.Errorf("a drained station has job %s as %s", j.ID, j.State)
	}
	if err := Drain(t.Context(), w.admin, "bench-1", true); err != nil {
		t.Errorf("Drain back = %v", err)
	}
	w.ended(queued.ID)
	w.keepBooks(b)
}
