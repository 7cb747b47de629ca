package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/ci/dev/lab"
	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// HubInside is the first word of the line that runs a soak of hubs in namespaces of its own.
const HubInside = "soak-hub"

// HubOptions say how large a soak of hubs is.
type HubOptions struct {
	lab.Options
	Rounds    int
	Seed      uint64
	FaultsFor time.Duration // in each round, at most
	Every     time.Duration // a fault begins, on average
	Longest   time.Duration // a link is cut, or a process stopped
	Endless   time.Duration // a round that takes longer does not end by itself
}

// Hub runs rollouts over simulated boards, and breaks hubs, stations and links meanwhile. Then each
// board, its hub and the audit must agree. It builds its program in Slipway's clone, as the folder that
// this runs in. dir is an empty folder. It needs root.
func Hub(ctx context.Context, w io.Writer, dir string, opt Options) error {
	program := filepath.Join(dir, "slipway")
	if err := run.Run(ctx, run.Command{Argv: []string{"go", "build", "-o", program, "./magefiles/simulated"}}); err != nil {
		return err
	}
	return StartHub(ctx, w, HubOptions{
		Options: lab.Options{Dir: dir, Program: program, Hubs: opt.Hubs, Stations: opt.Stations, Boards: opt.Boards, Parallel: 4, Apart: true},
		Rounds:  opt.Rounds, Seed: opt.Seed, FaultsFor: 4 * time.Minute, Every: 2 * time.Second, Longest: time.Minute, Endless: 20 * time.Minute,
	})
}

// StartHub runs a soak of hubs in namespaces.
func StartHub(ctx context.Context, w io.Writer, o HubOptions) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return lab.Inside(ctx, w, o.Program, HubInside, string(data))
}

// RunHubInside runs the soak that StartHub described. This process is the first one of its pid
// namespace.
func RunHubInside(ctx context.Context, w io.Writer, options string) error {
	o, err := lab.Decode[HubOptions](options)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "seed %d\n", o.Seed)
	s := &soakedHub{HubOptions: o, w: w, random: rand.New(rand.NewPCG(o.Seed, 0)), broken: map[*lab.Machine]bool{}}
	began := time.Now()
	if s.lab, err = lab.New(ctx, o.Options); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d hubs, %d stations, %d boards are up after %v\n", o.Hubs, o.Stations, o.Stations*o.Boards, time.Since(began).Round(time.Second/10))
	for round := range o.Rounds {
		if err := s.round(ctx); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
	}
	return nil
}

type soakedHub struct {
	HubOptions
	w      io.Writer
	random *rand.Rand
	lab    *lab.Lab

	mu     sync.Mutex
	broken map[*lab.Machine]bool // a fault has it
	done   map[string]int        // faults, by name
	failed error                 // of a fault itself
}

// round is one rollout over all boards, with faults. After it, all is whole again, and the books agree.
func (s *soakedHub) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Endless)
	defer cancel()
	began := time.Now()
	s.done = map[string]int{}
	id, err := s.addRollout(ctx)
	if err != nil {
		return err
	}
	disturbed, calm := context.WithTimeout(ctx, s.FaultsFor)
	defer calm()
	var faults sync.WaitGroup
	faults.Go(func() { s.disturb(disturbed, &faults) })
	end, resumed, err := s.followRollout(ctx, id)
	calm()
	faults.Wait()
	if err := errors.Join(err, s.failed, s.lab.Alive()); err != nil {
		return fmt.Errorf("rollout %s after %v: %w", id, time.Since(began).Round(time.Second), err)
	}
	if err := s.lab.WaitForBoards(ctx); err != nil {
		return err
	}
	jobs, err := s.lab.KeepBooks(ctx)
	if err := errors.Join(err, s.checkRollout(end, jobs)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.w, "%v: %s; resumed %d times; %d jobs in all; faults: %s\n", time.Since(began).Round(time.Second/10), counts(end.Counts), resumed, len(jobs), counts(s.done))
	return err
}

func counts[K ~string](all map[K]int) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		words = append(words, fmt.Sprintf("%s %d", k, all[k]))
	}
	return strings.Join(words, ", ")
}

// addRollout adds a rollout, again if the hub's answer is lost.
func (s *soakedHub) addRollout(ctx context.Context) (id string, err error) {
	r := job.Rollout{
		ID: job.NewID(), Board: lab.Kind, Steps: []job.Step{{Do: job.Smoke}}, Waves: []int{10, 50}, LimitMS: time.Hour.Milliseconds(), PatienceMS: time.Hour.Milliseconds(),
		Gate: fleet.Gate{Canary: 2, StopAfter: s.Stations * s.Boards, Retries: 1},
	}
	for {
		_, err := lab.Ask[job.RolloutState](ctx, s.lab, job.VerbRolloutAdd, r)
		if err == nil || errors.Is(err, bus.ErrConflict) { // it was added, and the answer lost
			return r.ID, nil
		}
		if !isAway(err) || ctx.Err() != nil {
			return "", err
		}
	}
}

func isAway(err error) bool {
	return errors.Is(err, bus.ErrAway) || errors.Is(err, context.DeadlineExceeded)
}

// followRollout waits for the end of a rollout, and lets it go on when it pauses, as a person would.
func (s *soakedHub) followRollout(ctx context.Context, id string) (r job.RolloutState, resumed int, err error) {
	for run.Sleep(ctx, time.Second/2) == nil {
		if err := s.lab.Alive(); err != nil {
			return r, resumed, err
		}
		now, err := lab.Ask[job.RolloutState](ctx, s.lab, job.VerbRolloutShow, job.RolloutWish{ID: id, Results: r.Ended})
		switch {
		case err != nil && !isAway(err):
			fmt.Fprintf(s.w, "rollout %s: %s\n", id, plaintext.OneLine(err.Error())) // a hub that comes back knows it again
		case err != nil:
		case r.Ended:
			return now, resumed, nil
		case now.Wish == job.Pause:
			if _, err := lab.Ask[job.RolloutState](ctx, s.lab, job.VerbRolloutWish, job.RolloutWish{ID: id, Wish: job.Go}); err == nil {
				resumed++
			}
		}
		if err == nil {
			r = now
		}
	}
	return r, resumed, fmt.Errorf("it does not end by itself: %s, %d run, %d wait: %w", counts(r.Counts), r.Running, r.Waiting, context.Cause(ctx))
}

// checkRollout checks that a rollout counts each board once, with the end of one of its jobs there. A
// board that passed is not begun again.
func (s *soakedHub) checkRollout(r job.RolloutState, jobs []job.Change) error {
	kinds := map[string][]fleet.Kind{}
	for _, c := range jobs {
		if c.Job.Rollout == r.ID {
			kinds[c.Job.Name] = append(kinds[c.Job.Name], c.Job.Result.Kind)
		}
	}
	var broken []error
	counted := map[fleet.Kind]int{}
	for _, m := range s.lab.Stations {
		for _, name := range m.Boards {
			got, all := r.Results[name], kinds[name]
			if got == nil || !slices.Contains(all, got.Kind) || len(all) > 2 || len(all) == 2 && !slices.ContainsFunc(all, func(k fleet.Kind) bool { return r.MayRetry(k, 1) }) {
				broken = append(broken, fmt.Errorf("%s: the rollout says %+v, and its jobs ended as %v", name, got, all))
				continue
			}
			counted[got.Kind]++
		}
	}
	if !maps.Equal(counted, r.Counts) {
		broken = append(broken, fmt.Errorf("the rollout counts %s, and the boards are %s", counts(r.Counts), counts(counted)))
	}
	return errors.Join(broken...)
}
