package hub

import (
	"fmt"
	"testing"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/layers/bus"
)

// BenchmarkRollout is what a hub computes for a rollout of 1,000 boards of 20 stations: each board's job is
// claimed and ended, and the polls of its station and of a person are answered.
func BenchmarkRollout(b *testing.B) {
	const boards, stations = 1000, 20
	for b.Loop() {
		h, write := newBook(b)
		revision := uint64(0)
		put := func(bucket, key string, form any) {
			revision++
			write(bucket, key, form, revision)
			h.index.reach(bucket, revision)
		}
		r := rollout
		r.V, r.ID, r.Wish, r.Gate = 1, job.NewID(), job.Go, fleet.Gate{StopAfter: 10}
		for i := range stations {
			name := fmt.Sprintf("bench-%d", i)
			put("stations", bus.Key(name), job.Station{V: 1, Name: name})
			put("alive", bus.Key(name), job.Alive{Instance: "i"})
		}
		for i := range boards {
			r.Plan = append(r.Plan, job.RolloutBoard{Station: fmt.Sprintf("bench-%d", i%stations), Name: fmt.Sprintf("a-%03d", i)})
		}
		put("rollouts", r.ID, r)
		var jobs []job.Job
		for _, at := range r.Plan {
			j := wish
			j.ID, j.Station, j.Name, j.Rollout, j.State = idOf(r.ID, at.Station, at.Name, 1), at.Station, at.Name, r.ID, job.Queued
			jobs = append(jobs, j)
			put("jobs", j.Key(), j)
		}
		for _, j := range jobs {
			if err := h.mayBegin(j); err != nil {
				b.Fatal(err)
			}
			j.State, j.Claim = job.Running, &job.Claim{Instance: "i", Attempt: 1}
			put("jobs", j.Key(), j)
			j.State, j.Result = job.Ended, &job.Result{Result: fleet.Result{Kind: fleet.Passed}}
			put("jobs", j.Key(), j)
			if _, err := h.jobsOf(b.Context(), j.Station, job.Wait{}); err != nil {
				b.Fatal(err)
			}
			if _, err := h.showRollout(b.Context(), "", job.RolloutWish{ID: r.ID}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
