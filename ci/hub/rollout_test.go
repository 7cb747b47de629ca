package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"slipway/ci/fleet"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/bus"
)

// simulated is a station that ends each job at once. It notes which boards began, and in which wave.
type simulated struct {
	mu    sync.Mutex
	began []string
	waves []int
	kinds map[string]fleet.Kind // by board; Passed if there is none
}

// serve does the jobs of a station's boards until the test ends.
func (s *simulated) serve(t *testing.T, c *access.Client, names ...string) {
	t.Helper()
	ask[job.Lease](t, c, job.VerbHello, job.Hello{Station: job.Station{V: 1, Name: c.Name, Instance: "i"}})
	var boards []job.Board
	for _, name := range names {
		boards = append(boards, job.Board{V: 1, Name: name, Board: "virt", Does: []job.Do{job.Deploy, job.Update, job.Smoke}, Labels: []string{"lab", "all", "[x]\nb-00", "<img"}})
	}
	ask[nothing](t, c, job.VerbBoards, job.Boards{Instance: "i", Boards: boards})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() { cancel(); group.Wait() })
	group.Go(func() {
		var since uint64
		for ctx.Err() == nil {
			mine, err := access.Ask[job.Changes](ctx, c, job.VerbMine, job.Wait{Since: since})
			if err != nil {
				continue
			}
			since = mine.Until
			for _, change := range mine.Jobs {
				s.do(ctx, t, c, change)
			}
		}
	})
}

func (s *simulated) do(ctx context.Context, t *testing.T, c *access.Client, change job.Change) {
	change.Instance = "i"
	change.Job.Claim = &job.Claim{Instance: "i", Attempt: 1}
	change, err := access.Ask[job.Change](ctx, c, job.VerbClaim, change)
	if err != nil {
		if !errors.Is(err, bus.ErrConflict) && ctx.Err() == nil {
			t.Errorf("claim: %v", err)
		}
		return
	}
	s.mu.Lock()
	s.began, s.waves = append(s.began, change.Job.Name), append(s.waves, change.Job.Wave)
	kind := s.kinds[change.Job.Name]
	if kind == "" {
		kind = fleet.Passed
	}
	s.mu.Unlock()
	change.Instance = "i"
	change.Job.Result = &job.Result{Result: fleet.Result{Host: change.Job.Name, Kind: kind, Passed: 1, Checks: 2}}
	if _, err := access.Ask[job.Change](ctx, c, job.VerbEnd, change); err != nil && ctx.Err() == nil {
		t.Errorf("end: %v", err)
	}
}

func (s *simulated) set(name string, kind fleet.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[name] = kind
}

// count returns how many boards began.
func (s *simulated) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.began)
}

func namesOf(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%02d", prefix, i))
	}
	return names
}

// follow waits until a rollout fits, and returns it.
func follow(t *testing.T, c *access.Client, id string, fits func(job.RolloutState) bool) job.RolloutState {
	t.Helper()
	var since uint64
	for {
		s := ask[job.RolloutState](t, c, job.VerbRolloutShow, job.RolloutWish{ID: id, Since: since, Results: true})
		if fits(s) {
			return s
		}
		since = s.Revision
	}
}

func hasEnded(s job.RolloutState) bool { return s.Ended }
func isPaused(s job.RolloutState) bool { return s.Wish == job.Pause }

var rollout = job.Rollout{Board: "virt", Steps: []job.Step{{Do: job.Smoke}}, LimitMS: 1000, PatienceMS: 60_000, Gate: fleet.Gate{Canary: 2, StopAfter: 3}, Waves: []int{50}}

// A rollout does the canaries first, then each wave after the one before, and every board once.
func TestRollout(t *testing.T) {
	admin, invite := newHub(t)
	s := &simulated{}
	s.serve(t, invite(job.AStation, "bench-1"), namesOf("a", 10)...)
	s.serve(t, invite(job.AStation, "bench-2"), namesOf("b", 10)...)
	r := ask[job.RolloutState](t, admin, job.VerbRolloutAdd, rollout)
	end := follow(t, admin, r.ID, hasEnded)
	if end.Counts[fleet.Passed] != 20 || len(end.Results) != 20 || end.Wave != 2 {
		t.Errorf("the rollout ended as %+v; want 20 passed in wave 2", end)
	}
	if !slices.IsSorted(s.waves) || len(slices.Compact(slices.Sorted(slices.Values(s.began)))) != len(s.began) {
		t.Errorf("boards began in the waves %v, in the order %v", s.waves, s.began)
	}
}

// A request for a rollout that comes twice is one rollout, also if its boards are others by now. An ID is
// no other rollout's.
func TestRolloutTwice(t *testing.T) {
	admin, invite := newHub(t)
	(&simulated{}).serve(t, invite(job.AStation, "bench-1"), namesOf("a", 3)...)
	r := deploys(artifact1, "")
	runRollout(t, admin, r)
	r.Artifact, r.ID = artifact2, job.NewID()
	end := runRollout(t, admin, r)
	back := job.RolloutBack{ID: end.ID, New: job.NewID()}
	begun := ask[job.RolloutState](t, admin, job.VerbRolloutBack, back)
	follow(t, admin, begun.ID, hasEnded)
	if again := ask[job.RolloutState](t, admin, job.VerbRolloutBack, back); again.ID != begun.ID || !again.Ended {
		t.Errorf("taken back again: %+v", again)
	}
	(&simulated{}).serve(t, invite(job.AStation, "bench-2"), "a-00") // a name twice lets no rollout begin
	if again := ask[job.RolloutState](t, admin, job.VerbRolloutAdd, r); again.ID != end.ID || !again.Ended || again.Boards != 3 {
		t.Errorf("the same rollout again: %+v", again)
	}
	r.Artifact = artifact1
	refused(t, admin, job.VerbRolloutAdd, r, "is another rollout's")
	if n := len(ask[job.Rollouts](t, admin, job.VerbRollouts, nothing{}).Rollouts); n != 3 {
		t.Errorf("there are %d rollouts; want 3", n)
	}
}

// A canary that fails pauses the rollout before any other board begins. After resume, the others
// begin. Failures up to stopAfter pause it again.
func TestRolloutGates(t *testing.T) {
	admin, invite := newHub(t)
	s := &simulated{kinds: map[string]fleet.Kind{"a-01": fleet.Checks, "a-05": fleet.Checks, "a-06": fleet.Checks, "a-07": fleet.Checks}}
	s.serve(t, invite(job.AStation, "bench-1"), namesOf("a", 10)...)
	r := ask[job.RolloutState](t, admin, job.VerbRolloutAdd, rollout)
	paused := follow(t, admin, r.ID, isPaused)
	if paused.Why != "1 of 2 canaries failed" || s.count() != 2 {
		t.Errorf("paused because of %q with %d boards begun; want 2", paused.Why, s.count())
	}
	ask[job.RolloutState](t, admin, job.VerbRolloutWish, job.RolloutWish{ID: r.ID, Wish: job.Go})
	paused = follow(t, admin, r.ID, isPaused)
	if paused.Why != "4 boards failed (--stop-after=4)" || s.count() >= 10 {
		t.Errorf("paused because of %q with %d boards begun", paused.Why, s.count())
	}
	ask[job.RolloutState](t, admin, job.VerbRolloutWish, job.RolloutWish{ID: r.ID, Wish: job.Cancel})
	end := follow(t, admin, r.ID, hasEnded)
	if end.Counts[fleet.Checks] != 4 {
		t.Errorf("after cancel: %+v", end.Counts)
	}
	refused(t, admin, job.VerbRolloutWish, job.RolloutWish{ID: r.ID, Wish: job.Go}, "has ended")
}

// No board begins after one too many has failed, whatever the hub counted before.
func TestClaimAfterFailure(t *testing.T) {
	h, put := newBook(t)
	r := rollout
	r.V, r.ID, r.Wish, r.Gate = 1, "R1", job.Go, fleet.Gate{StopAfter: 2}
	var jobs []job.Job
	for i, name := range namesOf("a", 3) {
		r.Plan = append(r.Plan, job.RolloutBoard{Station: "bench-1", Name: name})
		j := wish
		j.ID, j.Name, j.State, j.Rollout = fmt.Sprint("J", i), name, job.Queued, "R1"
		jobs = append(jobs, j)
		put("jobs", j.Key(), j, uint64(i+1))
	}
	put("alive", "bench-1", job.Alive{Instance: "i"}, 1)
	put("rollouts", "R1", r, 1)
	for i, j := range jobs {
		err := h.mayBegin(j)
		if want := i == 2; errors.Is(err, bus.ErrConflict) != want || want && !strings.Contains(err.Error(), "2 boards failed") {
			t.Errorf("after %d failures, mayBegin = %v", i, err)
		}
		j.State, j.Result = job.Ended, &job.Result{Result: fleet.Result{Kind: fleet.Checks}}
		put("jobs", j.Key(), j, uint64(i+10))
	}
}

// A rollout that fails at its last board ends. It waits for nobody.
func TestRolloutFailsAtItsLastBoard(t *testing.T) {
	admin, invite := newHub(t)
	s := &simulated{kinds: map[string]fleet.Kind{"a-00": fleet.Checks}}
	s.serve(t, invite(job.AStation, "bench-1"), "a-00")
	r := rollout
	r.Gate = fleet.Gate{StopAfter: 1}
	end := follow(t, admin, ask[job.RolloutState](t, admin, job.VerbRolloutAdd, r).ID, func(s job.RolloutState) bool { return s.Ended || isPaused(s) })
	if !end.Ended || end.Wish != job.Go || end.Why != "" || end.Final[fleet.Checks] != 1 {
		t.Errorf("the rollout is %+v; want it ended, and not paused", end)
	}
}

// A station that is removed is forgotten: its jobs end, and with them the rollouts over its boards. The
// boards can be at another station.
func TestRemovedStation(t *testing.T) {
	admin, invite := newHub(t)
	announce(t, invite(job.AStation, "bench-1"), "i1")
	one := wish
	one.ID, one.StartWithinMS = job.NewID(), 3_600_000
	ask[job.Change](t, admin, job.VerbJobAdd, one)
	r := rollout
	r.Gate = fleet.Gate{}
	begun := ask[job.RolloutState](t, admin, job.VerbRolloutAdd, r)
	ask[nothing](t, admin, job.VerbRemove, job.Person{Name: "bench-1"})
	if end := follow(t, admin, begun.ID, hasEnded); end.Counts[fleet.NotBegun] != 1 {
		t.Errorf("the rollout ended as %+v; want one board not begun", end)
	}
	j, err := access.Wait(t.Context(), admin, one.ID)
	if err != nil || j.Result.Kind != fleet.NotBegun || j.Result.Saw != "its station was removed by ada" {
		t.Errorf("the job is %+v, %v", j, err)
	}
	for len(ask[job.StationList](t, admin, job.VerbStationList, nothing{}).Stations)+len(ask[job.BoardList](t, admin, job.VerbBoardList, nothing{}).Boards) > 0 {
		if t.Context().Err() != nil {
			t.Fatal("the station or its boards stay")
		}
	}
	refused(t, admin, job.VerbRemove, job.Person{Name: "bench-1"}, "nobody is called")
	announce(t, invite(job.AStation, "bench-2"), "i2")
	ask[job.RolloutState](t, admin, job.VerbRolloutAdd, r)
}

// A rollout is canceled before the hub forgets which boards it has done.
func TestRolloutOpenForAMonth(t *testing.T) {
	admin, invite, h := newHubAnd(t)
	announce(t, invite(job.AStation, "bench-1"), "i1")
	r := rollout
	r.Gate = fleet.Gate{}
	id := ask[job.RolloutState](t, admin, job.VerbRolloutAdd, r).ID
	for err := error(bus.ErrConflict); errors.Is(err, bus.ErrConflict); {
		open, e, findErr := h.rollout(id)
		if findErr != nil || open.Wish != job.Go {
			t.Fatalf("the rollout is %+v, %v", open, findErr)
		}
		err = h.drive(t.Context(), open, e.revision, open.Began.Add(rolloutJobTTL))
	}
	if end := follow(t, admin, id, hasEnded); end.Wish != job.Cancel || !strings.Contains(end.Why, "29 days") {
		t.Errorf("the rollout is %+v; want it canceled, as it was open for long", end)
	}
}

const (
	artifact1, artifact2 = "hub:virt@sha256:" + sixty + "aaaa", "hub:virt@sha256:" + sixty + "bbbb"
	sixty                = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab"
)

// deploys is a rollout that deploys an artifact to the boards of a pattern.
func deploys(artifact, pattern string) job.Rollout {
	r := rollout
	r.Steps, r.Artifact, r.Pattern = []job.Step{{Do: job.Deploy}, {Do: job.Smoke}}, artifact, pattern
	return r
}

// run runs a rollout to its end.
func runRollout(t *testing.T, c *access.Client, r job.Rollout) job.RolloutState {
	t.Helper()
	return follow(t, c, ask[job.RolloutState](t, c, job.VerbRolloutAdd, r).ID, hasEnded)
}

// artifactsOf returns what the hub knows that the boards have.
func artifactsOf(t *testing.T, c *access.Client) map[string]string {
	t.Helper()
	has := map[string]string{}
	for _, b := range ask[job.BoardList](t, c, job.VerbBoardList, nothing{}).Boards {
		if b.Has != nil {
			has[b.Name] = b.Has.Artifact
		}
	}
	return has
}

// A rollout is taken back to what its boards had before, by the same gates, on those that got it.
func TestRolloutBack(t *testing.T) {
	admin, invite := newHub(t)
	s := &simulated{kinds: map[string]fleet.Kind{}}
	s.serve(t, invite(job.AStation, "bench-1"), namesOf("a", 6)...)
	first := runRollout(t, admin, deploys(artifact1, ""))
	refused(t, admin, job.VerbRolloutBack, job.RolloutBack{ID: first.ID}, "what they had before is not known of a-00, a-01, a-02")
	again := runRollout(t, admin, deploys(artifact1, ""))
	refused(t, admin, job.VerbRolloutBack, job.RolloutBack{ID: again.ID}, "the same artifact before")
	s.set("a-03", fleet.Checks) // it has the new one, or a part of it
	second := runRollout(t, admin, deploys(artifact2, "!a-05"))
	if has := artifactsOf(t, admin); has["a-00"] != artifact2 || has["a-03"] != "" || has["a-05"] != artifact1 {
		t.Fatalf("the boards have %v", has)
	}
	s.set("a-03", fleet.Passed)
	refused(t, invite(job.Viewer, "vera"), job.VerbRolloutBack, job.RolloutBack{ID: second.ID}, "needs the role operator")
	dry := ask[job.RolloutState](t, admin, job.VerbRolloutBack, job.RolloutBack{ID: second.ID, DryRun: true})
	if dry.Artifact != artifact1 || len(dry.Plan) != 5 || dry.From != second.ID || dry.Gate != (fleet.Gate{Canary: 2, StopAfter: 3}) {
		t.Fatalf("a dry run says %+v; want 5 boards and the same gate", dry)
	}
	if n := len(ask[job.Rollouts](t, admin, job.VerbRollouts, nothing{}).Rollouts); n != 3 {
		t.Fatalf("after a dry run there are %d rollouts; want 3", n)
	}
	end := follow(t, admin, ask[job.RolloutState](t, admin, job.VerbRolloutBack, job.RolloutBack{ID: second.ID}).ID, hasEnded)
	if has := artifactsOf(t, admin); end.Counts[fleet.Passed] != 5 || has["a-00"] != artifact1 || has["a-03"] != artifact1 {
		t.Errorf("after it %+v, and the boards have %v", end.Counts, has)
	}
	refused(t, admin, job.VerbRolloutBack, job.RolloutBack{ID: second.ID}, "no board has it")
}

// Boards that had unlike artifacts are named, and nothing is begun.
func TestRolloutBackOfUnlike(t *testing.T) {
	admin, invite := newHub(t)
	(&simulated{}).serve(t, invite(job.AStation, "bench-1"), namesOf("a", 4)...)
	runRollout(t, admin, deploys(artifact1, "!a-03"))
	runRollout(t, admin, deploys(artifact1[:len(artifact1)-4]+"cccc", "a-03"))
	last := runRollout(t, admin, deploys(artifact2, ""))
	refused(t, admin, job.VerbRolloutBack, job.RolloutBack{ID: last.ID}, "a-00, a-01, a-02 had "+artifact1+"; a-03 had hub:virt@")
	smoke := runRollout(t, admin, rollout)
	refused(t, admin, job.VerbRolloutBack, job.RolloutBack{ID: smoke.ID}, "changed no board")
	open := deploys(artifact1, "")
	open.PauseAfterWave = true
	paused := follow(t, admin, ask[job.RolloutState](t, admin, job.VerbRolloutAdd, open).ID, isPaused)
	refused(t, admin, job.VerbRolloutBack, job.RolloutBack{ID: paused.ID}, "when it has ended")
	bad := deploys(artifact1, "")
	bad.ID = "x"
	refused(t, admin, job.VerbRolloutAdd, bad, "the ID")
}

// Boards that match before the end are a last wave of a rollout that follows, and of no other.
func TestRolloutFollows(t *testing.T) {
	admin, invite := newHub(t)
	s := &simulated{}
	s.serve(t, invite(job.AStation, "bench-1"), namesOf("a", 4)...)
	r := rollout
	r.PauseAfterWave, r.Follow = true, true
	begun := ask[job.RolloutState](t, admin, job.VerbRolloutAdd, r)
	r.Follow = false
	other := ask[job.RolloutState](t, admin, job.VerbRolloutAdd, r)
	follow(t, admin, begun.ID, isPaused)
	s.serve(t, invite(job.AStation, "bench-2"), "b-00")
	for _, id := range []string{begun.ID, other.ID} {
		for s := follow(t, admin, id, isPaused); !s.Ended; s = follow(t, admin, id, func(s job.RolloutState) bool { return s.Ended || isPaused(s) }) {
			ask[job.RolloutState](t, admin, job.VerbRolloutWish, job.RolloutWish{ID: id, Wish: job.Go})
		}
	}
	end, without := follow(t, admin, begun.ID, hasEnded), follow(t, admin, other.ID, hasEnded)
	if last := end.Results[len(end.Results)-1]; end.Counts[fleet.Passed] != 5 || last.Name != "b-00" || last.Wave != end.LastWave() {
		t.Errorf("a rollout that follows ended with %+v, %+v; want b-00 in the last wave", end.Counts, last)
	}
	if without.Counts[fleet.Passed] != 4 {
		t.Errorf("a rollout that does not follow ended with %+v; want 4 boards", without.Counts)
	}
}

// A rollout that ended is a run of fleet, with the reports of its boards.
func TestRolloutOutcome(t *testing.T) {
	admin, invite := newHub(t)
	s := &simulated{kinds: map[string]fleet.Kind{"a-01": fleet.Checks}}
	station := invite(job.AStation, "bench-1")
	s.serve(t, station, namesOf("a", 3)...)
	r := rollout
	r.Canary = 0
	end := runRollout(t, admin, r)
	pack, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range end.Results {
		text := fmt.Sprintf(`{"version": 1, "board": "virt", "suites": [{"name": "base", "checks": [{"name": "gpu", "status": "failed", "saw": "none on %s"}]}]}`, r.Name)
		for _, id := range []string{r.Job, job.NewID()} { // a later job's is not the rollout's
			ask[nothing](t, station, job.VerbReport, job.Report{ID: id, Name: r.Name, Zstd: pack.EncodeAll([]byte(text), nil)})
			text = `{"version": 1, "board": "virt"}`
		}
	}
	dir := t.TempDir()
	if err := access.WriteRollout(t.Context(), admin, end, dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"fleet.json": {`"work": "rollout of smoke of no artifact by ada, on 3 of 3 boards"`, `"host": "a-01"`, `"kind": "checks failed"`, `"report": "a-01/report.html"`},
		"index.html": {"1 of 3 boards", "checks failed", "none on a-01", "bench-1"}, "junit.xml": {`failures="1"`}, "a-01/report.json": {"none on a-01"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		for _, part := range want {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s lacks %q: %s", name, part, text)
			}
		}
	}
	list := ask[job.Reports](t, admin, job.VerbReportList, job.ReportWish{Station: "bench-1", Name: "a-01"}).Reports
	if len(list) != 2 || list[1].ID != end.Results[1].Job || list[1].At.IsZero() {
		t.Errorf("the reports are %+v", list)
	}
	refused(t, admin, job.VerbReportGet, job.ReportWish{Station: "bench-1", Name: "a-00", N: list[0].N}, "has no such report")
	refused(t, admin, job.VerbReportGet, job.ReportWish{Station: "bench-1", Name: "none"}, "has no such report")
	refused(t, admin, job.VerbReportGet, job.ReportWish{Station: "bench-1", Name: "a-01", Job: job.NewID()}, "left no report")
}
