package hubstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/ci/dev/soak"
	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// soakOptions say how much is broken.
type soakOptions struct {
	labOptions
	Rounds    int
	Seed      uint64
	FaultsFor time.Duration // in each round, at most
	Every     time.Duration // a fault begins, on average
	Longest   time.Duration // a link is cut, or a process stopped
	Endless   time.Duration // a round that takes longer does not end by itself
}

// soakHubs is the soak that "soak hub" describes. This process is the first one of its pid namespace.
func soakHubs(ctx context.Context, w io.Writer, options []byte) error {
	asked, err := decode[soak.HubOptions](options)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	o := soakOptions{
		labOptions: labOptions{Dir: asked.Dir, Program: program, Hubs: asked.Hubs, Stations: asked.Stations, Boards: asked.Boards, Parallel: 4, Apart: true},
		Rounds:     asked.Rounds, Seed: asked.Seed, FaultsFor: 4 * time.Minute, Every: 2 * time.Second, Longest: time.Minute, Endless: 20 * time.Minute,
	}
	switch asked.Part {
	case "ssh":
		o.SSH, o.FaultsFor, o.Longest = true, time.Minute, 20*time.Second
	case "short", "jobs":
		o.FaultsFor, o.Every, o.Longest, o.Endless = 8*time.Second, time.Second/3, 2*time.Second, 5*time.Minute
	case "clocks":
		o.FaultsFor, o.OfHubs, o.OfStations = 0, setClocks(hubClock), setClocks(stationClock)
	case "power":
		o.Stations, o.Boards = 0, 2
	}
	fmt.Fprintf(w, "seed %d\n", o.Seed)
	s := &soakedHub{soakOptions: o, w: w, random: rand.New(rand.NewPCG(o.Seed, 0)), broken: map[*Machine]bool{}, kind: Kind}
	if asked.Part == "upgrade" {
		return s.upgrade(ctx, asked.Old)
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	switch asked.Part {
	case "jobs":
		return s.doJobs(ctx)
	case "slow":
		return s.beSlow(ctx)
	case "clocks":
		return s.checkClocks(ctx)
	case "power":
		return s.cutPower(ctx, asked.Kernel)
	}
	for round := range o.Rounds {
		if err := s.round(ctx); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
	}
	return nil
}

// begin starts the lab.
func (s *soakedHub) begin(ctx context.Context) (err error) {
	began := time.Now()
	if s.lab, err = newLab(ctx, s.labOptions); err != nil {
		return err
	}
	if s.SSH {
		s.kind = sshKind
		if s.artifact, err = s.lab.makeProject(ctx); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(s.w, "%d hubs, %d stations, %d boards are up after %v\n", s.Hubs, s.Stations, s.Stations*s.Boards, time.Since(began).Round(time.Second/10))
	return err
}

type soakedHub struct {
	soakOptions
	w        io.Writer
	random   *rand.Rand
	lab      *Lab
	kind     string // of the boards
	artifact string

	next  []hubFault
	begun bool

	mu     sync.Mutex
	broken map[*Machine]bool // a fault has it
	done   map[string]int    // faults, by name
	failed error             // of a fault itself
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
		ID: job.NewID(), Board: s.kind, Artifact: s.artifact, Steps: []job.Step{{Do: job.Smoke}}, Waves: []int{10, 50}, LimitMS: time.Hour.Milliseconds(), PatienceMS: time.Hour.Milliseconds(),
		Gate: fleet.Gate{Canary: 2, StopAfter: s.Stations * s.Boards, Retries: 1},
	}
	for {
		_, err := Ask[job.RolloutState](ctx, s.lab, job.VerbRolloutAdd, r)
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
		now, err := Ask[job.RolloutState](ctx, s.lab, job.VerbRolloutShow, job.RolloutWish{ID: id, Results: r.Ended})
		switch {
		case err != nil && !isAway(err):
			fmt.Fprintf(s.w, "rollout %s: %s\n", id, plaintext.OneLine(err.Error())) // a hub that comes back knows it again
		case err != nil:
		case r.Ended:
			return now, resumed, nil
		case now.Wish == job.Pause:
			if _, err := Ask[job.RolloutState](ctx, s.lab, job.VerbRolloutWish, job.RolloutWish{ID: id, Wish: job.Go}); err == nil {
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
	ends := map[string]*fleet.Result{}
	for _, b := range r.Results {
		ends[b.Name] = b.Result
	}
	var broken []error
	counted := fleet.Counts{}
	for _, m := range s.lab.Stations {
		for _, name := range m.Boards {
			got, all := ends[name], kinds[name]
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

// lines writes a soak's output to a test's log.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// One rollout over 30 boards, with a fault about each half second.
func TestShortSoak(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	for program, from := range map[string]string{"ip": "iproute2", "nft": "nftables", "unshare": "util-linux"} {
		if _, err := run.LookPath(program); err != nil {
			t.Skipf("%s is not installed: apt-get install %s", program, from)
		}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	options, err := json.Marshal(soak.HubOptions{Dir: t.TempDir(), Hubs: 1, Stations: 3, Boards: 10, Rounds: 1, Seed: uint64(rand.Uint32()), Part: "short"})
	if err != nil {
		t.Fatal(err)
	}
	if err := soak.InNamespaces(t.Context(), lines{t}, program, "soak-hub", string(options)); err != nil {
		t.Fatal(err)
	}
}
