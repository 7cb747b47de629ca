package page

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"slipway/ci/hub"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// state is what the hub knew at a moment, as pages need it. Nobody changes it.
type state struct {
	made      time.Time
	stations  []*shownStation
	jobs      []*shownJob // the one that changed last first
	rollouts  []job.RolloutState
	boards    []*board
	byBoard   map[string]*board // by key
	byStation map[string]*shownStation
	byJob     map[string]*shownJob
}

// shownStation is a station with its boards and jobs.
type shownStation struct {
	job.HubStation
	boards []*board
	jobs   []*shownJob
}

// shownJob is a job, and when it was last changed, by the engine's clock.
type shownJob struct {
	job.Job
	At     time.Time
	events []progress.Event // the newest of each step, while it runs
}

// board is a board with its jobs, the one that changed last first.
type board struct {
	job.HubBoard
	jobs         []*shownJob
	runs, ended  *shownJob // the job that runs, the last one that ended
	state, class string
	text         string // that a filter looks in
}

// thePage asks what all pages show.
var thePage = job.Person{Name: "page", Role: job.Viewer}

// listOf asks the hub for a list, part after part.
func listOf[List any](ctx context.Context, h *hub.Hub, verb string) (List, error) {
	return job.ReadList(job.ListWish{}, func(w job.ListWish) (List, error) { return ask[List](ctx, h, thePage, verb, w) })
}

// readState asks the hub what it knows.
func readState(ctx context.Context, h *hub.Hub) (*state, error) {
	boards, err := listOf[job.BoardList](ctx, h, job.VerbBoardList)
	stations, err2 := ask[job.StationList](ctx, h, thePage, job.VerbStationList, struct{}{})
	jobs, err3 := listOf[job.Changes](ctx, h, job.VerbJobList)
	rollouts, err4 := ask[job.Rollouts](ctx, h, thePage, job.VerbRollouts, struct{}{})
	s := newState(boards.Boards, stations.Stations, jobs.Jobs)
	s.rollouts = rollouts.Rollouts
	return s, errors.Join(err, err2, err3, err4)
}

func newState(boards []job.HubBoard, stations []job.HubStation, jobs []job.Change) *state {
	s := &state{made: time.Now(), byBoard: map[string]*board{}, byStation: map[string]*shownStation{}, byJob: map[string]*shownJob{}}
	for _, known := range stations {
		st := &shownStation{HubStation: known}
		s.stations, s.byStation[st.Name] = append(s.stations, st), st
	}
	for _, known := range boards {
		b := &board{HubBoard: known}
		s.boards, s.byBoard[bus.Key(b.Station, b.Name)] = append(s.boards, b), b
		if st := s.byStation[b.Station]; st != nil {
			st.boards = append(st.boards, b)
		}
	}
	slices.SortFunc(jobs, func(a, b job.Change) int { // the IDs of a rollout's jobs say no time
		return cmp.Or(b.At.Compare(a.At), strings.Compare(b.Job.ID, a.Job.ID))
	})
	for _, c := range jobs {
		j := &shownJob{Job: c.Job, At: c.At}
		s.jobs, s.byJob[j.ID] = append(s.jobs, j), j
		if st := s.byStation[j.Station]; st != nil {
			st.jobs = append(st.jobs, j)
		}
		if b := s.byBoard[bus.Key(j.Station, j.Name)]; b != nil {
			b.add(j)
		}
	}
	for _, b := range s.boards {
		b.state = b.stateNow()
		b.class = boardStates[b.state]
		b.text = strings.ToLower(strings.Join(slices.Concat(b.Labels, []string{b.Name, b.Station, b.Board.Board, b.Runs, b.Serial}), " "))
	}
	return s
}

func (b *board) add(j *shownJob) {
	b.jobs = append(b.jobs, j)
	switch {
	case j.State == job.Running:
		b.runs = j
	case j.Result != nil && b.ended == nil:
		b.ended = j
		if b.Last == nil || b.Last.At.Before(j.At) {
			b.Last = &job.Last{Job: j.ID, Kind: j.Result.Kind, At: j.At}
		}
	}
}

// boardStates are the states of boards, with the classes of their colours.
var boardStates = map[string]string{"free": "passed", "at work": "cached", "failed": "failed", "not heard": "skipped", "takes no job": "skipped"}

func (b *board) stateNow() string {
	switch {
	case !b.Heard:
		return "not heard"
	case b.runs != nil:
		return "at work"
	case b.Note != "":
		return "takes no job"
	case b.Last != nil && b.Last.Kind.Failed():
		return "failed"
	}
	return "free"
}

// row returns the board's line in a table, or what a person has to do about it.
func (b *board) row() row {
	r := row{Class: b.class, Name: b.Name, Link: "/boards/" + b.Station + "/" + b.Name, Took: b.state}
	r.Saw = join(" · ", b.Board.Board, b.Station, b.Runs, strings.Join(b.Labels, " "), b.Note)
	if b.Last != nil {
		r.Saw = join(" · ", r.Saw, "last: "+string(b.Last.Kind))
	}
	return r
}

// row returns a job's line in a table, with the bar of what it does now.
func (j *shownJob) row() row {
	r := row{Class: j.class(), Name: j.Subject() + ": " + job.StepNames(j.Steps), Link: "/jobs/" + j.ID, Took: clock(j.At)}
	r.Saw = join(" · ", j.Word(), j.Station, "by "+j.By)
	if n := len(j.events); n > 0 {
		now := eventRow(j.events[n-1])
		r.Saw, r.Max, r.Value = join(" · ", r.Saw, now.Name, now.Saw), now.Max, now.Value
	}
	return r
}

func (j *shownJob) class() string {
	switch {
	case j.State == job.Running:
		return "cached"
	case j.Result == nil:
		return "skipped"
	case j.Result.Kind.Failed():
		return "failed"
	}
	return plaintext.Either(j.Result.Kind.Done(), "passed", "skipped")
}

var eventClasses = map[progress.State]string{progress.Running: "cached", progress.Done: "passed", progress.Cached: "passed", progress.Failed: "failed"}

func eventRow(e progress.Event) row {
	saw := join(" · ", strings.TrimSpace(progress.CountText(e)), plaintext.ShortLine(e.Detail))
	return row{Class: eventClasses[e.State], Name: plaintext.ShortLine(e.Step), Saw: saw, Max: e.Total, Value: min(e.Count, e.Total), Took: took(e.ElapsedMS)}
}

// join joins the words that are not "".
func join(between string, words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), between)
}

func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2 Jan 15:04:05")
}

func took(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).Round(100 * time.Millisecond).String()
}
