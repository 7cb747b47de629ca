package station

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci/job"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// attach takes up the jobs of the state folder that have not ended.
func (s *station) attach(ctx context.Context) error {
	folders, err := job.Folders(filepath.Join(s.State, "jobs"))
	if err != nil {
		return err
	}
	for _, f := range folders {
		order, err := f.Order()
		switch _, ended := endOf(f); {
		case errors.Is(err, fs.ErrNotExist): // nothing was begun
			err = os.RemoveAll(string(f))
		case err == nil && ended:
			s.recall(ctx, f, order.Job)
		case err == nil:
			s.mu.Lock()
			s.begin(ctx, job.Change{Job: order.Job})
			s.mu.Unlock()
		}
		if err != nil {
			s.say("%s is left as it is: %v", f, err)
		}
	}
	return nil
}

// recall takes the result of a job that has ended, and the rest of its log.
func (s *station) recall(ctx context.Context, f job.Folder, j job.Job) {
	r, err := f.Result()
	at, _ := endOf(f)
	if err == nil {
		s.noteResult(j, r, at)
	}
	if !localfile.Exists(filepath.Join(string(f), keptName)) {
		w := s.newWork(job.Change{Job: j}, ended)
		s.running.Go(func() { w.endLog(ctx); <-w.logged })
	}
}

// poll asks the hub for the jobs of this station, and waits there for changes, until ctx ends.
func (s *station) poll(ctx context.Context) error {
	for known := (job.Wait{}); ctx.Err() == nil; {
		round, cancel := context.WithCancel(ctx)
		if s.setPoll(cancel) {
			known = job.Wait{}
		}
		all, err := ask[job.Changes](round, s, job.VerbMine, known)
		again := round.Err() != nil
		cancel()
		switch {
		case err == nil:
			s.take(ctx, all)
			known = job.Wait{Since: all.Until, Known: true}
		case isRefused(err):
			return err
		case !again:
			known = job.Wait{}
			_ = run.Sleep(ctx, s.tick)
		}
	}
	return nil
}

// setPoll keeps what ends the wait for changes, and reports whether all jobs are to be listed.
func (s *station) setPoll(cancel context.CancelFunc) (all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, s.cancelPoll, s.listAll = s.listAll, cancel, false
	return all
}

// listAgain asks the hub at once for all jobs of this station.
func (s *station) listAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listAll = true; s.cancelPoll != nil {
		s.cancelPoll()
	}
}

// forgetRevisions is for a hub that may have lost what it knew, and counts from 0.
func (s *station) forgetRevisions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.done)
	for _, w := range s.works {
		w.forgetRevision()
	}
}

// take learns what the hub says of all jobs of this station that have not ended, and begins those
// that it may, the oldest first.
func (s *station) take(ctx context.Context, all job.Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(all.Jobs, func(a, b job.Change) int { return cmp.Compare(a.Job.ID, b.Job.ID) })
	listed := map[string]bool{}
	for _, c := range all.Jobs {
		w := s.works[c.Job.ID]
		switch listed[c.Job.ID] = true; {
		case w != nil:
			w.learn(c)
		case c.Revision < s.done[c.Job.ID]: // listed before it ended
		case c.Job.State == job.Running || s.mayBegin(c.Job):
			s.begin(ctx, c)
		}
	}
	for id, w := range s.works {
		if !listed[id] {
			w.miss(all.Until)
		}
	}
	maps.DeleteFunc(s.done, func(_ string, revision uint64) bool { return revision <= all.Until })
}

// mayBegin reports whether a queued job is to be claimed. The caller has the mutex.
func (s *station) mayBegin(j job.Job) bool {
	boards := 0 // at work; a place runs for days, and takes no turn of theirs
	for _, w := range s.works {
		if _, place := s.config.Places[w.name]; !place {
			boards++
		}
		if w.name == j.Name {
			return false
		}
	}
	l := s.lease.Load()
	if _, place := s.config.Places[j.Name]; boards >= s.Parallel && !place || l.Draining || !l.holds() {
		return false
	}
	if j.Name == job.Builder { // the hub lists those of this machine's architecture
		return slices.Contains(s.config.Does, job.Build)
	}
	b, known := s.board(j.Name)
	return known && b.Board.Board == j.Board && !slices.ContainsFunc(j.Steps, func(step job.Step) bool { return !slices.Contains(b.Does, step.Do) })
}

// begin begins the work on a job. The caller has the mutex.
func (s *station) begin(ctx context.Context, c job.Change) {
	w := s.newWork(c, unknown)
	if c.Revision > 0 {
		w.learn(c)
	}
	s.works[c.Job.ID] = w
	notify(s.boards.dirty)
	s.running.Go(func() { w.run(ctx) })
}

// release makes the board of a job free for the next one.
func (s *station) release(w *work, revision uint64) {
	s.mu.Lock()
	if revision > 0 {
		s.done[w.id] = revision
	}
	if s.works[w.id] == w {
		delete(s.works, w.id)
	}
	s.mu.Unlock()
	notify(s.boards.dirty)
	s.listAgain()
}

// busy returns the jobs at work, by the names of their boards.
func (s *station) busy() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := map[string]string{}
	for id, w := range s.works {
		jobs[w.name] = id
	}
	return jobs
}

// keepFor is how long a job's folder stays after the hub acknowledged its end.
const keepFor = 7 * 24 * time.Hour

// sweep removes old folders and artifacts, now and each hour, until ctx ends. It also lets errors be
// said again.
func (s *station) sweep(ctx context.Context) error {
	for ; ; s.said.Clear() {
		folders, err := job.Folders(filepath.Join(s.State, "jobs"))
		for _, f := range folders {
			if at, ended := endOf(f); ended && time.Since(at) > keepFor {
				err = errors.Join(err, os.RemoveAll(string(f)))
			}
		}
		if err = errors.Join(err, s.sweepArtifacts()); err != nil {
			s.say("clean up %s: %v", s.State, err)
		}
		if run.Sleep(ctx, time.Hour) != nil {
			return nil
		}
	}
}

// endOf returns when the hub acknowledged that the job of a folder has ended.
func endOf(f job.Folder) (time.Time, bool) {
	info, err := os.Stat(filepath.Join(string(f), endedName))
	if err != nil {
		return time.Time{}, false
	}
	return info.ModTime(), true
}

// artifactOf returns the folder of a pulled artifact, which all boards share.
func (s *station) artifactOf(j job.Job) string {
	_, digest, _ := strings.Cut(j.Artifact, "@sha256:")
	return filepath.Join(s.State, "artifacts", digest)
}

// projectOf returns the folder of a project's files, which all boards share.
func (s *station) projectOf(j job.Job) string {
	return filepath.Join(s.State, "projects", strings.TrimPrefix(j.Project, "sha256:"))
}

// sweepArtifacts removes the artifacts and projects that were used longest ago, down to what is to be kept.
func (s *station) sweepArtifacts() error {
	dirs, err := filepath.Glob(filepath.Join(localfile.QuoteGlob(s.State), "artifacts", "*"))
	projects, _ := filepath.Glob(filepath.Join(localfile.QuoteGlob(s.State), "projects", "*")) // the pattern is well-formed
	dirs = append(dirs, projects...)
	ages, left := map[string]time.Time{}, int64(s.config.KeepGiB)<<30
	for _, dir := range dirs {
		if info, statErr := os.Stat(dir); statErr == nil {
			ages[dir] = info.ModTime()
		}
	}
	slices.SortFunc(dirs, func(a, b string) int { return ages[b].Compare(ages[a]) })
	for _, dir := range dirs {
		size, _ := localfile.FolderBytes(dir) // as far as it can be read
		if left -= size; left < 0 || filepath.Ext(dir) == discarded {
			err = errors.Join(err, s.discard(dir))
		}
	}
	return err
}

// discarded ends the name of a folder that is being removed.
const discarded = ".old"

// discard removes the folder of an artifact or a project, unless a job uses it. That may take minutes,
// so that only its name goes while no job can begin.
func (s *station) discard(dir string) error {
	if filepath.Ext(dir) != discarded {
		s.mu.Lock()
		for _, w := range s.works {
			if j := w.change().Job; dir == s.artifactOf(j) || dir == s.projectOf(j) {
				s.mu.Unlock()
				return nil
			}
		}
		err := os.Rename(dir, dir+discarded)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		s.say("removes %s, which was used longest ago: more than %d GiB are kept", dir, s.config.KeepGiB)
		dir += discarded
	}
	return os.RemoveAll(dir)
}
