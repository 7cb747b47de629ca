package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/images"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// stationOf returns the station in a key.
func stationOf(key string) string { return bus.Name(firstToken(key)) }

// findJob returns the job with an ID, and its key's entry.
func (h *Hub) findJob(id string) (j job.Job, e entry, err error) {
	key, found := h.index.find(id)
	if !found {
		return j, e, fmt.Errorf("no job %q: the hub keeps ended jobs for 7 days, and what nobody had claimed is lost with the hub's disk\nnext: slipway job list", id)
	}
	j, e, known := get[job.Job](h.index, "jobs", key)
	if !known {
		err = fmt.Errorf("the job %s is of a newer Slipway than this hub", id)
	}
	return j, e, err
}

// refuseIDTwice returns an error if another board's job has a job's ID.
func (h *Hub) refuseIDTwice(j job.Job) error {
	if key, found := h.index.find(j.ID); found && key != j.Key() {
		return fmt.Errorf("the ID %s is another job's", j.ID)
	}
	return nil
}

// addJob queues a job. An ID that is there already is refused, but the same request twice is one job.
func (h *Hub) addJob(ctx context.Context, who string, j job.Job) (job.Change, error) {
	j.V, j.By, j.State, j.Stop, j.StopBy, j.Claim, j.Result, j.Restored, j.Before = job.Version, who, job.Queued, "", "", nil, nil, false, nil
	j.Rollout, j.Wave = "", 0
	if j.ID == "" {
		j.ID = job.NewID()
	}
	if j.Name == job.Builder {
		j.Station = ""
	}
	if err := errors.Join(j.Check(), h.boardDoes(j)); err != nil {
		return job.Change{}, err
	}
	if err := cmp.Or(h.refuseIDTwice(j), h.refusePlaceTwice(j)); err != nil {
		return job.Change{}, err
	}
	now, revision, err := create(ctx, h, h.jobs, j.Key(), j)
	if errors.Is(err, bus.ErrConflict) {
		err = fmt.Errorf("the ID %s is another job's: %w", j.ID, err)
		if now.By == who && reflect.DeepEqual(now.Steps, j.Steps) {
			err = nil
		}
	}
	return job.Change{Job: now, Revision: revision}, err
}

// boardDoes returns an error unless a station has announced the job's board, and takes all its steps.
func (h *Hub) boardDoes(j job.Job) error {
	if j.Name == job.Builder {
		return h.hasBuilder(j.Arch)
	}
	b, e, known := get[job.Board](h.index, "boards", bus.Key(j.Station, j.Name))
	switch {
	case e.key == "" || e.gone:
		return fmt.Errorf("the station %s has no board %s\nnext: slipway station list", j.Station, j.Name)
	case !known:
		return fmt.Errorf("%s of %s is of a newer Slipway than this hub", j.Name, j.Station)
	case b.Board != j.Board:
		return fmt.Errorf("%s of %s is a %s, not a %s", j.Name, j.Station, b.Board, j.Board)
	}
	for _, s := range j.Steps {
		if !slices.Contains(b.Does, s.Do) {
			return fmt.Errorf("%s of %s does not take %q; it does %v%s\nnext: \"does\" in station.yml on %s", j.Name, j.Station, s.Do, b.Does, plaintext.Either(b.Note != "", ": "+b.Note, ""), j.Station)
		}
	}
	return nil
}

// hasBuilder returns an error unless a station of an architecture takes builds.
func (h *Hub) hasBuilder(arch string) error {
	if all := list[job.Station](h.index, "stations", ""); slices.ContainsFunc(all, func(s record[job.Station]) bool { return builds(s.form, arch) }) {
		return nil
	}
	return fmt.Errorf("no station of %s takes builds\nnext: station list  # then write \"does: [build]\" into station.yml on one, and restart it", arch)
}

// builds reports whether a station takes builds for an architecture.
func builds(s job.Station, arch string) bool { return s.Builds && s.Arch == arch }

// station returns what a station says of itself, and nothing if this hub does not know it or cannot read it.
func (h *Hub) station(name string) job.Station {
	s, _, _ := get[job.Station](h.index, "stations", bus.Key(name))
	return s
}

// maxOpenBytes limits the jobs that a station is told of, the oldest first. Those that run are few, and
// it is told of all.
const maxOpenBytes = 4 << 20

// jobsOf returns a station's jobs that have not ended, and for a builder the builds that wait, once one
// differs from what it knows. Queued jobs of a rollout that does not go on are left out, as each claim
// of one would be refused. A rollout that goes on again is news.
func (h *Hub) jobsOf(ctx context.Context, who string, in job.Wait) (job.Changes, error) {
	prefixes := []string{bus.Key(who) + "."}
	for _, arch := range images.Arches {
		if builds(h.station(who), arch) {
			prefixes = append(prefixes, bus.Key(job.Builder, arch)+".")
		}
	}
	var all job.Changes
	var rollouts uint64
	told, _ := h.told.Load(who)
	heard, _ := told.(uint64) // 0 if this hub told it nothing yet
	h.index.wait(ctx, func() bool {
		rollouts = h.index.revision("rollouts")
		newer, resumed := false, false
		all, newer = h.changes(prefixes, in, func(j *job.Job) bool {
			if j.State != job.Queued || j.Rollout == "" {
				return j.State == job.Queued || j.State == job.Running && j.Station == who
			}
			r, e, _ := get[job.Rollout](h.index, "rollouts", bus.Key(j.Rollout))
			resumed = resumed || r.Wish == job.Go && e.revision > heard && rollouts > heard
			return r.Wish == job.Go
		})
		return newer || resumed
	}, "jobs", "rollouts")
	h.told.Store(who, rollouts)
	left, last := maxOpenBytes, ""
	for _, c := range slices.SortedFunc(slices.Values(all.Jobs), func(a, b job.Change) int { return cmp.Compare(a.Job.ID, b.Job.ID) }) {
		data, _ := json.Marshal(c) // never fails
		if left -= len(data); left < 0 {
			break
		}
		last = c.Job.ID
	}
	all.Jobs = slices.DeleteFunc(all.Jobs, func(c job.Change) bool { return c.Job.State == job.Queued && c.Job.ID > last })
	return all, nil
}

// listJobs returns a part of the jobs.
func (h *Hub) listJobs(_ context.Context, _ string, in job.ListWish) (out job.Changes, _ error) {
	some, next := part(h.index, "jobs", in.After, func(j *job.Job) bool {
		return (in.Station == "" || in.Station == j.Station) && (in.Board == "" || in.Board == j.Name || in.Board == j.Board) &&
			!(in.Open && j.State == job.Ended) && !(in.Failed && (j.Result == nil || !j.Result.Kind.Failed()))
	})
	for _, j := range some {
		out.Jobs = append(out.Jobs, job.Change{Job: j.form, Revision: j.revision, At: j.at})
	}
	out.Next = next
	return out, nil
}

// changes returns the jobs under prefixes that fit, and whether the engine has told of a newer key there
// than what is known.
func (h *Hub) changes(prefixes []string, in job.Wait, fits func(*job.Job) bool) (all job.Changes, newer bool) {
	entries, until := h.index.list("jobs", prefixes...)
	all.Until, newer = until, in.Since == 0 && !in.Known
	for _, e := range entries {
		newer = newer || e.revision > in.Since && until > in.Since
		if j, known := e.holds.(*job.Job); known && fits(j) {
			all.Jobs = append(all.Jobs, job.Change{Job: *j, Revision: e.revision, At: e.at})
		}
	}
	return all, newer
}

// waitForJob returns a job once it differs from the revision that the caller knows.
func (h *Hub) waitForJob(ctx context.Context, _ string, in job.Wait) (c job.Change, err error) {
	h.index.wait(ctx, func() bool {
		var e entry
		c.Job, e, err = h.findJob(in.ID)
		c.Revision = e.revision
		return err != nil || e.revision > in.Since
	}, "jobs")
	return c, err
}

// claim lets a station begin a queued job, or begin one of its own again as the next attempt. A claim
// that cannot hold is not in the audit, as stations repeat it.
func (h *Hub) claim(ctx context.Context, who string, in job.Change) (job.Change, error) {
	err := h.check(ctx) // else a pause that another hub answered would come too late
	if err != nil {
		return job.Change{}, err
	}
	j, err := h.own(who, in)
	if err == nil {
		err = h.mayBegin(j)
	}
	if errors.Is(err, bus.ErrConflict) {
		return job.Change{}, err
	}
	request, _ := json.Marshal(in) // never fails
	if noted := h.audit(ctx, Record{Who: who, Role: job.AStation, Verb: job.VerbClaim, What: shorten(request)}); noted != nil {
		return job.Change{}, fmt.Errorf("write the audit: %w", noted)
	}
	if err == nil {
		in, err = h.begin(ctx, who, j, in)
	}
	if err != nil {
		err = h.refuse(ctx, job.AStation, who, job.VerbClaim, request, err)
	}
	return in, err
}

// begin writes a station's claim of a job that may begin.
func (h *Hub) begin(ctx context.Context, who string, j job.Job, in job.Change) (_ job.Change, err error) {
	if j.Name == job.Builder {
		if err := h.mayBuild(who, j); err != nil {
			return job.Change{}, err
		}
		j.Station = who
	}
	attempt := 1
	if j.State == job.Queued && h.station(who).Draining {
		return job.Change{}, fmt.Errorf("the station %s is drained, and takes no more jobs", who)
	}
	if j.State == job.Running {
		attempt = j.Claim.Attempt + 1
	} else {
		b, _, _ := get[job.Board](h.index, "boards", bus.Key(who, j.Name))
		j.Before = b.Has
	}
	if in.Job.Claim == nil || in.Job.Claim.Attempt != attempt || in.Job.Claim.Instance != in.Instance {
		return job.Change{}, fmt.Errorf("the job %s is to be claimed as attempt %d by the station's own run: %w", j.ID, attempt, bus.ErrConflict)
	}
	j.State, j.Claim = job.Running, in.Job.Claim
	in.Job = j
	in.Revision, err = h.write(ctx, h.jobs, j.Key(), j, in.Revision)
	return in, err
}

// mayBuild returns an error unless a station is a builder for a build, and works on no other one.
func (h *Hub) mayBuild(who string, j job.Job) error {
	if !builds(h.station(who), j.Arch) {
		return fmt.Errorf("the station %s takes no builds for %s", who, j.Arch)
	}
	all := list[job.Job](h.index, "jobs", bus.Key(job.Builder)+".")
	for _, r := range all {
		if other := r.form; other.State == job.Running && other.Station == who && other.ID != j.ID {
			return fmt.Errorf("the station %s builds for the job %s: %w", who, other.ID, bus.ErrConflict)
		}
	}
	return nil
}

// own returns the job that a station's request is about, as the hub knows it, if it is at the request's
// revision and has not ended.
func (h *Hub) own(who string, in job.Change) (job.Job, error) {
	if err := h.holdsLease(who, in.Instance); err != nil {
		return job.Job{}, err
	}
	if in.Job.Name != job.Builder {
		in.Job.Station = who
	}
	j, e, known := get[job.Job](h.index, "jobs", in.Job.Key())
	if !known || e.revision != in.Revision || j.Station != who && j.State != job.Queued {
		return job.Job{}, fmt.Errorf("the job %s: %w", in.Job.ID, bus.ErrConflict)
	}
	if j.State == job.Ended {
		return job.Job{}, fmt.Errorf("the job %s has ended: %w", in.Job.ID, bus.ErrConflict)
	}
	return j, nil
}

// end ends a job with the station's result. The same result twice is one.
func (h *Hub) end(ctx context.Context, who string, in job.Change) (job.Change, error) {
	j, err := h.own(who, in)
	if old, e, findErr := h.findJob(in.Job.ID); err != nil && findErr == nil && old.Station == who && old.Result != nil && reflect.DeepEqual(old.Result, in.Job.Result) {
		return job.Change{Job: old, Revision: e.revision}, nil
	}
	if err != nil {
		return job.Change{}, err
	}
	if j.State != job.Running || !reflect.DeepEqual(j.Claim, in.Job.Claim) || in.Job.Result == nil || !in.Job.Result.Kind.Known() {
		return job.Change{}, fmt.Errorf("the end of job %s needs its own claim, and a result of a known kind: %w", j.ID, bus.ErrConflict)
	}
	j.State, j.Result = job.Ended, in.Job.Result
	if err := h.noteHad(ctx, j); err != nil { // first: the station repeats what is not acknowledged
		return job.Change{}, err
	}
	in.Job = j
	in.Revision, err = h.write(ctx, h.jobs, j.Key(), j, in.Revision)
	return in, err
}

// restore creates a job again that a station holds and the engine lost. If the engine has the job, the
// answer is what that says.
func (h *Hub) restore(ctx context.Context, who string, in job.Change) (job.Change, error) {
	if err := errors.Join(h.holdsLease(who, in.Instance), in.Job.Check()); err != nil {
		return job.Change{}, err
	}
	if in.Job.Station != who || in.Job.Claim == nil || in.Job.State != job.Running || in.Job.Result != nil {
		return job.Change{}, fmt.Errorf("%s can restore only running jobs of its own", who)
	}
	if in.Job.Name == job.Builder && !builds(h.station(who), in.Job.Arch) {
		return job.Change{}, fmt.Errorf("the station %s takes no builds for %s", who, in.Job.Arch)
	}
	if err := h.refuseIDTwice(in.Job); err != nil {
		return job.Change{}, err
	}
	in.Job.Restored, in.Job.Before = true, nil
	now, revision, err := create(ctx, h, h.jobs, in.Job.Key(), in.Job)
	if errors.Is(err, bus.ErrConflict) {
		err = nil
	}
	return job.Change{Job: now, Revision: revision}, err
}

// stopJob ends a queued job, or asks the station to end a running one.
func (h *Hub) stopJob(ctx context.Context, who string, in job.StopWish) (job.Change, error) {
	return h.change(ctx, in.ID, func(j *job.Job) error {
		switch {
		case j.State == job.Ended:
			return fmt.Errorf("the job %s has ended\nnext: slipway job show %s", j.ID, j.ID)
		case j.State == job.Queued:
			endUnbegun(j, fleet.Stopped, "stopped by "+who)
		case in.How != job.Gently && in.How != job.Now:
			return fmt.Errorf("a job is stopped %q or %q", job.Gently, job.Now)
		case j.Stop == job.Now: // there is nothing more to ask for
			return nil
		}
		j.Stop, j.StopBy = in.How, who
		return nil
	})
}

// abandonJob ends a running job of a station that is not heard, or that lost its state folder and with it
// the job. What the board has is not known.
func (h *Hub) abandonJob(ctx context.Context, who string, in job.StopWish) (job.Change, error) {
	return h.change(ctx, in.ID, func(j *job.Job) error {
		lease, _, heard := h.leaseOf(j.Station)
		switch {
		case j.State != job.Running:
			return fmt.Errorf("the job %s is %s, not running\nnext: slipway job stop %s", j.ID, j.State, j.ID)
		case in.Station != j.Station:
			return fmt.Errorf("the job %s is at the station %s; it is abandoned by typing that name", j.ID, j.Station)
		case heard && job.PlaceOf(lease.Instance) == job.PlaceOf(j.Claim.Instance):
			return fmt.Errorf("the station %s is heard, and ends the job itself\nnext: slipway job stop %s --now", j.Station, j.ID)
		}
		endUnbegun(j, fleet.Unsure, "abandoned by "+who+", while its station "+plaintext.Either(heard, "had another state folder", "was not heard"))
		return nil
	})
}

// endUnbegun ends a job with a result that no station gave.
func endUnbegun(j *job.Job, kind fleet.Kind, saw string) {
	j.State, j.Result = job.Ended, &job.Result{Result: fleet.Result{Host: j.Name, Kind: kind, Saw: saw}}
}

// endJobAt ends a job with a result that no station gave, if its key is as it was known.
func (h *Hub) endJobAt(ctx context.Context, r record[job.Job], kind fleet.Kind, saw string) error {
	endUnbegun(&r.form, kind, saw)
	_, err := h.write(ctx, h.jobs, r.key, r.form, r.revision)
	return err
}

// change changes a job, also if a station changes it meanwhile.
func (h *Hub) change(ctx context.Context, id string, change func(*job.Job) error) (job.Change, error) {
	key, _ := h.index.find(id)
	j, revision, err := edit(ctx, h, h.jobs, key, func(j *job.Job, known bool) (err error) {
		if !known {
			_, _, err = h.findJob(id)
			return err
		}
		if err = change(j); err == nil && j.State == job.Ended {
			err = h.noteHad(ctx, *j)
		}
		return err
	})
	return job.Change{Job: j, Revision: revision}, err
}

// noteHad keeps what a job that has ended left on its board.
func (h *Hub) noteHad(ctx context.Context, j job.Job) error {
	if j.Claim == nil || !j.ChangesBoard() {
		return nil
	}
	_, _, err := edit(ctx, h, h.boards, bus.Key(j.Station, j.Name), func(b *job.Board, known bool) error {
		if !known || reflect.DeepEqual(b.Has, j.Leaves()) {
			return errSame
		}
		b.Has = j.Leaves()
		return nil
	})
	return err
}

// expireJobs ends jobs that no station began in time, by the engine's clock, until ctx ends.
func (h *Hub) expireJobs(ctx context.Context) error {
	for run.Sleep(ctx, h.lease/3) == nil {
		now, err := h.engineTime(ctx)
		if err != nil {
			continue // no engine, so no time
		}
		all := list[job.Job](h.index, "jobs", "")
		for _, r := range all {
			if r.form.State == job.Queued && !r.at.IsZero() && now.Sub(r.at) >= time.Duration(r.form.StartWithinMS)*time.Millisecond {
				_ = h.endJobAt(ctx, r, fleet.NotBegun, "its station did not begin it in time") // or it began it just now
			}
		}
	}
	return nil
}

// engineTime returns the time of the engine's clock.
func (h *Hub) engineTime(ctx context.Context) (time.Time, error) {
	info, err := h.logs.Info(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return info.TimeStamp, nil
}

// logTo is a header of a log's piece: where it ends in the station's file.
const logTo = "Slipway-To"

// logPatience is how long a piece of a log waits for the engine. Its station sends it again.
const logPatience = 2 * time.Second

// keepLog keeps a piece of a job's log if it begins where the last one ended. It answers where the
// next one begins.
func (h *Hub) keepLog(ctx context.Context, who string, in job.Log) (job.Log, error) {
	ctx, cancel := context.WithTimeout(ctx, logPatience) // else logs that wait for their stream hold up all else
	defer cancel()
	if len(in.Text) > maxLogBytes {
		return job.Log{}, fmt.Errorf("a piece of a log has at most %d bytes", maxLogBytes)
	}
	j, _, err := h.findJob(in.ID)
	if err != nil && h.check(ctx) == nil { // another hub may have answered the claim just now
		j, _, err = h.findJob(in.ID)
	}
	switch {
	case err != nil: // nobody can read it. The station would send it for ever, if it was refused
		return job.Log{ID: in.ID, N: in.To}, nil
	case j.Station != who:
		return job.Log{}, fmt.Errorf("the job %s is not one of %s", in.ID, who)
	}
	subject := "log." + bus.Key(who, in.ID)
	last, err := lastOf(ctx, h.logs, subject)
	if err != nil {
		return job.Log{}, err
	}
	have, _ := strconv.ParseUint(last.Header.Get(logTo), 10, 64) // none is 0
	if in.N != have || in.Text == "" {
		return job.Log{ID: in.ID, N: have}, nil
	}
	m := &nats.Msg{Subject: subject, Data: []byte(in.Text), Header: nats.Header{logTo: {strconv.FormatUint(in.To, 10)}}}
	_, err = h.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(last.Sequence))
	return job.Log{ID: in.ID, N: in.To}, err
}

const maxLogBytes = 32 << 10

// readLog returns the first piece of a job's log from a number on, and waits for it while the job
// runs.
func (h *Hub) readLog(ctx context.Context, _ string, in job.LogWish) (job.Log, error) {
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		j, _, err := h.findJob(in.ID)
		if err != nil {
			return job.Log{}, err
		}
		m, err := readFrom(ctx, h.logs, max(in.N, 1), "log."+bus.Key(j.Station, j.ID))
		switch {
		case err == nil:
			return job.Log{ID: j.ID, N: m.Sequence + 1, Text: string(m.Data), More: true}, nil
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return job.Log{}, err
		case in.Now || j.State == job.Ended || run.Sleep(wait, 200*time.Millisecond) != nil:
			return job.Log{ID: j.ID, N: in.N, More: j.State != job.Ended}, nil
		}
	}
}
