package hub

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// How long an ended rollout is kept, and an ended job of any rollout.
const (
	rolloutTTL    = 400 * 24 * time.Hour
	rolloutJobTTL = 30 * 24 * time.Hour
	rolloutOpen   = 29 * 24 * time.Hour // less than that, as a board whose job is gone would be done again
)

// idOf returns the ID of a board's job in a rollout. All hubs make the same one, so that a job that
// two of them add is one.
func idOf(rollout, station, name string, attempt int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%d", rollout, station, name, attempt))
	return rollout[:6] + base32.HexEncoding.EncodeToString(sum[:10])[:10]
}

// addRollout chooses the boards of a rollout and begins it.
func (h *Hub) addRollout(ctx context.Context, who string, r job.Rollout) (job.RolloutState, error) {
	r.From, r.Plan = "", nil
	if s, known, err := h.hasBegun(who, r); known {
		return s, err
	}
	err := r.Check()
	if err == nil {
		r.Plan, err = h.chooseBoards(r)
	}
	if err != nil {
		return job.RolloutState{}, err
	}
	return h.beginRollout(ctx, who, r)
}

// beginRollout begins a rollout on the boards of its plan.
func (h *Hub) beginRollout(ctx context.Context, who string, r job.Rollout) (_ job.RolloutState, err error) {
	r.V, r.By, r.Wish, r.WishBy, r.Wave, r.Why, r.Resumed, r.Seen, r.Ended, r.Final = job.Version, who, job.Go, "", 0, "", false, 0, false, nil
	r.ID = cmp.Or(r.ID, job.NewID())
	if r.Began, err = h.engineTime(ctx); err == nil {
		err = r.Divide()
	}
	if err != nil {
		return job.RolloutState{}, err
	}
	r.Gate = r.ForBoards(len(r.Plan))
	if r.Canary == 0 {
		r.Wave = 1
	}
	_, revision, err := create(ctx, h, h.rollouts, bus.Key(r.ID), r)
	if errors.Is(err, bus.ErrConflict) {
		s, _, err := h.hasBegun(who, r)
		return s, err
	}
	return h.look(r, revision, false).state, err
}

// hasBegun reports whether there is a rollout with a wish's ID, and returns it if it is what the same
// person wished. So the same request twice is one rollout, also if its boards are others by now.
func (h *Hub) hasBegun(who string, wish job.Rollout) (s job.RolloutState, known bool, err error) {
	old, e, known := get[job.Rollout](h.index, "rollouts", bus.Key(wish.ID))
	same := old.Artifact == wish.Artifact && old.Pattern == wish.Pattern && reflect.DeepEqual(old.Steps, wish.Steps)
	if known && (old.By != who || old.From != wish.From || old.From == "" && !same) {
		return s, true, fmt.Errorf("the ID %s is another rollout's: %w", wish.ID, bus.ErrConflict)
	}
	return h.look(old, e.revision, false).state, known, nil
}

// chooseBoards returns the boards that match a rollout and are not in its plan. One that does not take
// the steps is an error at the beginning, and is left out later.
func (h *Hub) chooseBoards(r job.Rollout) (more []job.RolloutBoard, err error) {
	all, err := h.matchBoards(r)
	known := map[string]bool{}
	for _, b := range r.Plan {
		known[b.Name] = true
	}
	for _, b := range all {
		switch takes := does(b.Board, r.Steps); {
		case !takes && len(r.Plan) == 0:
			return nil, fmt.Errorf("%s of %s does not take %v; it does %v\nnext: \"does\" in station.yml on %s", b.Name, b.Station, r.Steps, b.Does, b.Station)
		case takes && !known[b.Name] && (len(r.Plan) == 0 || len(r.Plan)+len(more) < job.MaxPlan):
			more = append(more, job.RolloutBoard{Station: b.Station, Name: b.Name, Wave: r.LastWave()})
		}
	}
	return more, err
}

// matchBoards returns the boards of a rollout's kind that match its pattern. Labels are the groups of
// an inventory of all boards.
func (h *Hub) matchBoards(r job.Rollout) (found []job.HubBoard, err error) {
	boards := list[job.Board](h.index, "boards", "")
	at := map[string]job.HubBoard{}
	groups := map[string]map[string]map[string]any{}
	for _, known := range boards {
		b := job.HubBoard{Board: known.form, Station: stationOf(known.key)}
		if b.Board.Board != r.Board {
			continue
		}
		if other, twice := at[b.Name]; twice {
			return nil, fmt.Errorf("%s and %s both have a board %s; give one another name", other.Station, b.Station, b.Name)
		}
		at[b.Name] = b
		for _, label := range slices.Concat(b.Labels, []string{b.Station}) {
			if label == "all" || job.CheckName("", label) != nil {
				continue // a pattern could not name it
			}
			if groups[label] == nil {
				groups[label] = map[string]map[string]any{"hosts": {}}
			}
			groups[label]["hosts"][b.Name] = nil
		}
	}
	if len(at) == 0 {
		return nil, fmt.Errorf("the hub has no board of the kind %s\nnext: slipway hub boards", r.Board)
	}
	text, err := json.Marshal(map[string]any{"all": map[string]any{"children": groups}}) // which is YAML
	if err != nil {
		return nil, err
	}
	inventory, err := fleet.Parse("hub:", text)
	if err != nil {
		return nil, err
	}
	hosts, err := inventory.Select(r.Pattern)
	if err != nil {
		return nil, err
	}
	for _, host := range hosts {
		found = append(found, at[host.Name])
	}
	return found, nil
}

func does(b job.Board, steps []job.Step) bool {
	return !slices.ContainsFunc(steps, func(s job.Step) bool { return !slices.Contains(b.Does, s.Do) })
}

// rollout returns a rollout and its key's entry.
func (h *Hub) rollout(id string) (job.Rollout, entry, error) {
	r, e, known := get[job.Rollout](h.index, "rollouts", bus.Key(id))
	if !known {
		return r, e, noRollout(id)
	}
	return r, e, nil
}

func noRollout(id string) error {
	return fmt.Errorf("no rollout %q\nnext: slipway rollout list", plaintext.ShortLine(id))
}

// progressOf is how far a rollout is.
type progressOf struct {
	state        job.RolloutState
	failing      int // boards that failed for good, or are not heard
	canaryFailed int
	open         []int // boards of each wave that have not ended
	missing      []missing
	jobs         []*job.Job // that have not ended
}

// missing is a board that needs a job.
type missing struct {
	board   job.RolloutBoard
	attempt int
}

// look counts a rollout's jobs. Of one that has ended it looks at them only for their results.
func (h *Hub) look(r job.Rollout, revision uint64, results bool) progressOf {
	p := progressOf{open: make([]int, r.LastWave()+1)}
	p.state = job.RolloutState{Rollout: r, Revision: revision, Boards: len(r.Plan), Counts: fleet.Counts{}}
	p.state.Plan = nil
	isFinal := r.Ended && r.Final != nil
	if !isFinal || results {
		by := h.attempts(r.ID)
		for _, b := range r.Plan {
			result := h.lookAt(&p, r, b, by[boardKey{b.Station, b.Name}])
			if results {
				p.state.Results = append(p.state.Results, result)
			}
		}
	}
	if isFinal {
		p.state.Counts = r.Final
	}
	return p
}

type boardKey struct{ station, name string }

// attempts are a rollout's jobs on one board. Each begins after the one before has ended, and an ended job
// is not written again. So the last one has the highest revision.
type attempts struct {
	n        int
	last     *job.Job
	at       time.Time // of its last write
	revision uint64    // as at
	before   *job.Had  // the first one
	begun    uint64    // revision of the first one that a station claimed
}

// attempts returns the attempts of a rollout on its boards.
func (h *Hub) attempts(rollout string) map[boardKey]*attempts {
	by := map[boardKey]*attempts{}
	h.index.each("jobs", func(e entry) {
		j, known := e.holds.(*job.Job)
		if !known || j.Rollout != rollout {
			return
		}
		a := by[boardKey{j.Station, j.Name}]
		if a == nil {
			a = &attempts{}
			by[boardKey{j.Station, j.Name}] = a
		}
		a.n++
		if e.revision > a.revision {
			a.last, a.at, a.revision = j, e.at, e.revision
		}
		if j.Claim != nil && (a.begun == 0 || e.revision < a.begun) {
			a.before, a.begun = j.Before, e.revision
		}
	}, "")
	return by
}

// lookAt counts one board of a rollout: its last attempt decides.
func (h *Hub) lookAt(p *progressOf, r job.Rollout, b job.RolloutBoard, a *attempts) job.RolloutResult {
	found := job.RolloutResult{RolloutBoard: b}
	if a != nil {
		found.Tries, found.Job, found.State = a.n, a.last.ID, a.last.State
	}
	switch {
	case a != nil && a.last.State != job.Ended:
		h.countOpen(p, r, b, a.last)
		return found
	case a == nil, r.MayRetry(a.last.Result.Kind, a.n) && r.Wish == job.Go && !r.Ended:
		p.missing = append(p.missing, missing{b, found.Tries + 1})
		p.open[b.Wave]++
		return found
	}
	found.Result = &a.last.Result.Result
	p.state.Counts[found.Result.Kind]++
	if a.at.After(p.state.At) {
		p.state.At = a.at
	}
	if found.Result.Kind.Failed() {
		p.failing++
		if b.Wave == 0 && r.Canary > 0 {
			p.canaryFailed++
		}
	}
	return found
}

// stopped returns why a rollout begins no further board, or "". What failed before a person resumed it
// stops it no more.
func (p progressOf) stopped(r job.Rollout) string {
	gate, canaries := r.Gate, p.canaryFailed
	if r.Resumed {
		canaries = 0
		if gate.StopAfter > 0 {
			gate.StopAfter += r.Seen
		}
	}
	return gate.Stop(p.failing, canaries)
}

// countOpen counts a board whose job has not ended. One whose station is silent for longer than the
// patience counts as failed, and does not hold up the next wave, until it is heard.
func (h *Hub) countOpen(p *progressOf, r job.Rollout, b job.RolloutBoard, j *job.Job) {
	if j.State == job.Running {
		p.state.Running++
	} else {
		p.state.Waiting++
	}
	p.jobs = append(p.jobs, j)
	if h.index.goneFor("alive", bus.Key(b.Station)) > time.Duration(r.PatienceMS)*time.Millisecond {
		p.state.Unheard++
		p.failing++
		return
	}
	p.open[b.Wave]++
}

// driveRollouts drives all rollouts until ctx ends. Any number of hubs may do so at once.
func (h *Hub) driveRollouts(ctx context.Context) error {
	news, end := h.index.hear("rollouts", "jobs", "boards", "alive", "people")
	defer end()
	for {
		all := list[job.Rollout](h.index, "rollouts", "")
		all = slices.DeleteFunc(all, func(r record[job.Rollout]) bool { return r.form.Ended })
		if len(all) > 0 {
			h.driveAll(ctx, all)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
			_ = run.Sleep(ctx, 50*time.Millisecond) // several changes at once
		case <-time.After(time.Second):
		}
	}
}

// driveAll drives rollouts by the engine's time. What fails is tried again at the next change, or second.
func (h *Hub) driveAll(ctx context.Context, all []record[job.Rollout]) {
	now, err := h.engineTime(ctx)
	for _, r := range all {
		if err == nil {
			_ = h.drive(ctx, r.form, r.revision, now)
		}
	}
}

// drive brings a rollout one step further: it adds the jobs of the wave, begins the next wave, or
// ends the rollout.
func (h *Hub) drive(ctx context.Context, r job.Rollout, revision uint64, now time.Time) error {
	p := h.look(r, revision, false)
	why, done := p.stopped(r), sumTo(p.open, len(p.open)) == 0 && p.state.Unheard == 0
	if !done && r.Wish != job.Cancel && !r.Began.IsZero() && now.Sub(r.Began) > rolloutOpen {
		r.Wish, r.WishBy, r.Why = job.Cancel, "the hub", "it did not end in 29 days, and the hub keeps its jobs for 30"
		return h.setRollout(ctx, r, revision)
	}
	if r.Follow && r.Wish == job.Go && why == "" {
		if more, _ := h.chooseBoards(r); len(more) > 0 { // boards that share a name join once they do not
			r.Plan = slices.Concat(r.Plan, more)
			return h.setRollout(ctx, r, revision)
		}
	}
	switch {
	case done, r.Wish == job.Cancel && len(p.jobs) == 0:
		r.Ended, r.Final = true, p.state.Counts
		return h.setRollout(ctx, r, revision)
	case why != "" && r.Wish == job.Go: // what has ended needs no pause
		r.Wish, r.WishBy, r.Why = job.Pause, "the gate", why
		return h.setRollout(ctx, r, revision)
	case r.Wish == job.Cancel:
		return h.stopAll(ctx, r, p.jobs)
	case r.Wish == job.Pause:
		return nil
	}
	if sumTo(p.open, r.Wave) == 0 && r.Wave < r.Plan[len(r.Plan)-1].Wave { // waves only grow in a plan
		r.Wave++
		if r.PauseAfterWave {
			r.Wish, r.WishBy, r.Why = job.Pause, "the rollout", fmt.Sprintf("wave %d has ended", r.Wave-1)
		}
		return h.setRollout(ctx, r, revision)
	}
	return h.addJobs(ctx, r, p.missing)
}

func sumTo(counts []int, last int) (sum int) {
	for _, n := range counts[:min(last+1, len(counts))] {
		sum += n
	}
	return sum
}

func (h *Hub) setRollout(ctx context.Context, r job.Rollout, revision uint64) error {
	_, err := h.write(ctx, h.rollouts, bus.Key(r.ID), r, revision)
	return err
}

// addJobs adds the jobs of boards whose wave has begun.
func (h *Hub) addJobs(ctx context.Context, r job.Rollout, boards []missing) error {
	for _, m := range boards {
		if m.board.Wave > r.Wave {
			continue
		}
		j := job.Job{
			V: job.Version, ID: idOf(r.ID, m.board.Station, m.board.Name, m.attempt), Station: m.board.Station, Name: m.board.Name, Board: r.Board,
			Artifact: r.Artifact, Project: r.Project, Steps: r.Steps, LimitMS: r.LimitMS, StartWithinMS: rolloutTTL.Milliseconds(),
			By: r.By, Rollout: r.ID, Wave: m.board.Wave, State: job.Queued,
		}
		if p, known := h.person(j.Station); known && p.Key == "" {
			endUnbegun(&j, fleet.NotBegun, "its station was removed")
		}
		if _, err := h.write(ctx, h.jobs, j.Key(), j, 0); err != nil && !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	return nil
}

// stopAll stops the jobs of a canceled rollout gently, once each.
func (h *Hub) stopAll(ctx context.Context, r job.Rollout, jobs []*job.Job) error {
	for _, j := range jobs {
		if j.Stop != "" {
			continue
		}
		if _, err := h.stopJob(ctx, r.WishBy, job.StopWish{ID: j.ID, How: job.Gently}); err != nil && !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	return nil
}

// mayBegin returns an error for a job of a rollout that does not go on.
func (h *Hub) mayBegin(j job.Job) error {
	if j.Rollout == "" || j.State != job.Queued {
		return nil
	}
	r, e, err := h.rollout(j.Rollout)
	if err != nil {
		return err
	}
	why := h.gate(r, e.revision)
	if r.Wish == job.Go && why == "" {
		return nil
	}
	return fmt.Errorf("the rollout %s does not go on (%s %s%s): %w", r.ID, r.Wish, r.Why, why, bus.ErrConflict)
}

// gate is why a rollout stops, as the hub counted it.
type gate struct {
	revision uint64
	failures int // of the index
	counted  time.Time
	why      string
}

// gate returns why a rollout stops, or "". Each claim asks it. So it counts the boards again only after
// the rollout has changed or a job has failed, and each second for stations that are not heard.
func (h *Hub) gate(r job.Rollout, revision uint64) string {
	failures := h.index.failed()
	old, _ := h.gates.Load(r.ID)
	g, known := old.(gate)
	if !known || g.revision != revision || g.failures != failures || time.Since(g.counted) > time.Second {
		g = gate{revision, failures, time.Now(), h.look(r, revision, false).stopped(r)}
		h.gates.Store(r.ID, g)
	}
	return g.why
}

// wishRollout pauses, resumes or cancels a rollout.
func (h *Hub) wishRollout(ctx context.Context, who string, in job.RolloutWish) (job.RolloutState, error) {
	r, revision, err := edit(ctx, h, h.rollouts, bus.Key(in.ID), func(r *job.Rollout, known bool) error {
		switch {
		case !known:
			return noRollout(in.ID)
		case r.Ended:
			return fmt.Errorf("the rollout %s has ended\nnext: slipway rollout show %s", r.ID, r.ID)
		case !slices.Contains([]job.Wish{job.Go, job.Pause, job.Cancel}, in.Wish), r.Wish == job.Cancel:
			return fmt.Errorf("a rollout that is %s cannot become %q", r.Wish, in.Wish)
		case in.Wish == job.Go:
			r.Resumed, r.Seen = true, h.look(*r, 0, false).failing
		}
		r.Wish, r.WishBy, r.Why = in.Wish, who, ""
		return nil
	})
	if err != nil {
		return job.RolloutState{}, err
	}
	return h.look(r, revision, false).state, nil
}

// takeBack begins a rollout of what the boards of an ended one had before it, on those that got it, by
// the same gates.
func (h *Hub) takeBack(ctx context.Context, who string, in job.RolloutBack) (job.RolloutState, error) {
	if s, known, err := h.hasBegun(who, job.Rollout{ID: in.New, From: in.ID}); known {
		return s, err
	}
	r, _, err := h.rollout(in.ID)
	switch {
	case err != nil:
		return job.RolloutState{}, err
	case !r.Ended:
		return job.RolloutState{}, fmt.Errorf("the rollout %s goes on, and is taken back when it has ended\nnext: slipway rollout stop %s", r.ID, r.ID)
	case !(job.Job{Steps: r.Steps}).ChangesBoard():
		return job.RolloutState{}, fmt.Errorf("the rollout %s changed no board", r.ID)
	}
	plan, had, err := h.before(r)
	if err != nil {
		return job.RolloutState{}, fmt.Errorf("the rollout %s cannot be taken back: %w\nnext: slipway rollout show %s", r.ID, err, r.ID)
	}
	r.From, r.ID, r.Plan, r.Artifact, r.Follow, r.Pattern = r.ID, in.New, plan, had.Artifact, false, ""
	r.Steps = slices.Clone(r.Steps)
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Do == job.Update {
			s.Bundle, s.Downgrade = had.Bundle, true
		}
	}
	if err := r.Check(); err != nil || in.DryRun {
		s := job.RolloutState{Rollout: r, Boards: len(plan)}
		s.Plan = plan
		return s, err
	}
	return h.beginRollout(ctx, who, r)
}

// before returns the boards that got a rollout and still have it, or something unknown, and the one
// thing that all of them had before.
func (h *Hub) before(r job.Rollout) (plan []job.RolloutBoard, had job.Had, err error) {
	names := map[job.Had][]string{}
	by := h.attempts(r.ID)
	for _, b := range r.Plan {
		a := by[boardKey{b.Station, b.Name}]
		now, _, known := get[job.Board](h.index, "boards", bus.Key(b.Station, b.Name))
		if a == nil || a.begun == 0 || !known || now.Has != nil && now.Has.Artifact != r.Artifact {
			continue
		}
		before := job.Had{}
		if a.before != nil {
			before = *a.before
		}
		if slices.ContainsFunc(r.Steps, func(s job.Step) bool { return s.Do == job.Update }) && before.Bundle == "" {
			before = job.Had{} // its bundle is not known
		}
		names[before] = append(names[before], b.Name)
		plan, had = append(plan, b), before
	}
	switch {
	case len(plan) == 0:
		return nil, had, errors.New("no board has it")
	case len(names) == 1 && had.Artifact == r.Artifact:
		return nil, had, errors.New("the boards had the same artifact before")
	case len(names[job.Had{}]) > 0:
		return nil, had, fmt.Errorf("what they had before is not known of %s", shortList(names[job.Had{}]))
	case len(names) > 1:
		var differ []string
		for had, some := range names {
			differ = append(differ, fmt.Sprintf("%s had %s", shortList(some), had.Artifact))
		}
		slices.Sort(differ)
		return nil, had, fmt.Errorf("the boards had different artifacts: %s", strings.Join(differ, "; "))
	}
	return plan, had, nil
}

// shortList returns the first names of a list, and how many more there are.
func shortList(names []string) string {
	const most = 10
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}

// showRollout returns a rollout once it differs from the revision that the caller knows.
func (h *Hub) showRollout(ctx context.Context, _ string, in job.RolloutWish) (s job.RolloutState, err error) {
	h.index.wait(ctx, func() bool {
		r, e, unknown := h.rollout(in.ID)
		seen := e.revision + h.index.revision("jobs") // both only grow
		s, err = h.look(r, seen, in.Results).state, unknown
		return err != nil || r.Ended || seen > in.Since
	}, "rollouts", "jobs")
	return s, err
}

func (h *Hub) listRollouts(_ context.Context, _ string, _ nothing) (out job.Rollouts, _ error) {
	all := list[job.Rollout](h.index, "rollouts", "")
	for _, r := range all {
		out.Rollouts = append(out.Rollouts, h.look(r.form, r.revision, false).state)
	}
	return out, nil
}
