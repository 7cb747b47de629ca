package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

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
		boards = append(boards, job.Board{V: 1, Name: name, Board: "virt", Does: []job.Do{job.Smoke}, Labels: []string{"lab"}})
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
	change.Job.Result = &job.Result{Result: fleet.Result{Host: change.Job.Name, Kind: kind}}
	if _, err := access.Ask[job.Change](ctx, c, job.VerbEnd, change); err != nil && ctx.Err() == nil {
		t.Errorf("end: %v", err)
	}
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
