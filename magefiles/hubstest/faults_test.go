package hubstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/run"
)

// hubFault breaks a machine, and heals it after a time. It ends early with ctx.
type hubFault struct {
	name   string
	weight int
	hub    bool // it is one of hubs, else of stations
	do     func(ctx context.Context, m *Machine, most time.Duration) error
}

const twoHubs = "two hubs killed"

// hubFaults are what can happen, each as often as its weight says.
var hubFaults = []hubFault{
	{"station killed", 4, false, killed},
	{"station and jobs killed", 2, false, func(ctx context.Context, m *Machine, d time.Duration) error {
		pids := awaitChildren(ctx, m)
		m.Kill()
		kill(pids)
		return killed(ctx, m, d/4)
	}},
	{"job killed", 4, false, func(ctx context.Context, m *Machine, _ time.Duration) error {
		kill(awaitChildren(ctx, m))
		return nil
	}},
	{"station stopped", 3, false, func(ctx context.Context, m *Machine, d time.Duration) error {
		m.Freeze(true)
		_ = run.Sleep(ctx, d)
		m.Freeze(false)
		return nil
	}},
	{"station's link cut", 3, false, cut(true, true)},
	{"station does not hear", 2, false, cut(true, false)},
	{"station is not heard", 2, false, cut(false, true)},
	{twoHubs, 2, true, func(ctx context.Context, m *Machine, d time.Duration) error { return killed(ctx, m, d/4) }},
	{"hub killed", 3, true, func(ctx context.Context, m *Machine, d time.Duration) error { return killed(ctx, m, d/4) }},
	{"hub's link cut", 1, true, cut(true, true)},
	{"hub does not hear", 1, true, cut(true, false)},
	{"hub is not heard", 1, true, cut(false, true)},
}

// killed kills a machine's process, and starts it again after a time.
func killed(ctx context.Context, m *Machine, d time.Duration) error {
	m.Kill()
	_ = run.Sleep(ctx, d)
	return m.Start()
}

// awaitChildren returns the processes of a station's jobs, once there is one.
func awaitChildren(ctx context.Context, m *Machine) (pids []int) {
	_ = until(ctx, func() bool { pids = m.Children(); return len(pids) > 0 })
	return pids
}

func kill(pids []int) {
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
	}
}

func cut(in, out bool) func(context.Context, *Machine, time.Duration) error {
	return func(ctx context.Context, m *Machine, d time.Duration) error {
		err := m.Cut(context.WithoutCancel(ctx), in, out)
		_ = run.Sleep(ctx, d)
		return errors.Join(err, m.Cut(context.WithoutCancel(ctx), false, false))
	}
}

// disturb begins a fault again and again until ctx ends. A machine has one at a time.
func (s *soakedHub) disturb(ctx context.Context, group *sync.WaitGroup) {
	for run.Sleep(ctx, time.Duration(s.random.Int64N(int64(2*s.Every)))) == nil {
		if s.random.IntN(8) == 0 {
			s.stopJob(ctx)
			continue
		}
		f := s.choose()
		machines := s.lab.Stations
		if f.hub {
			machines = s.lab.Hubs
		}
		n, d := s.random.IntN(len(machines)), time.Duration(s.random.Int64N(int64(s.Longest)))
		hit := []*Machine{machines[n]}
		if f.name == twoHubs { // of three, the last one is alone then
			hit = append(hit, machines[(n+1)%len(machines)])
		}
		if !s.take(hit) {
			s.next = append(s.next, f)
			continue
		}
		s.note(f.name)
		for _, m := range hit {
			group.Go(func() {
				if err := f.do(ctx, m, d); err != nil {
					s.fail(fmt.Errorf("%s, %s: %w", m.Name, f.name, err))
				}
				s.release(m)
			})
		}
	}
}

// choose returns the next fault: first each once, in a random order, then as often as the weights say.
func (s *soakedHub) choose() (f hubFault) {
	if len(s.next) == 0 {
		for _, f := range hubFaults {
			if f.name == twoHubs && len(s.lab.Hubs) < 2 {
				continue // it would wait for ever, and keep the others from being chosen
			}
			n := 1
			if s.begun {
				n = f.weight
			}
			s.next = append(s.next, slices.Repeat([]hubFault{f}, n)...)
		}
		s.random.Shuffle(len(s.next), func(i, j int) { s.next[i], s.next[j] = s.next[j], s.next[i] })
		s.begun = true
	}
	f, s.next = s.next[0], s.next[1:]
	return f
}

// take marks machines, unless one of them has a fault, or is named twice.
func (s *soakedHub) take(all []*Machine) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(all, func(m *Machine) bool { return s.broken[m] }) || len(all) == 2 && all[0] == all[1] {
		return false
	}
	for _, m := range all {
		s.broken[m] = true
	}
	return true
}

func (s *soakedHub) release(m *Machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.broken, m)
}

func (s *soakedHub) note(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[name]++
}

func (s *soakedHub) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = errors.Join(s.failed, err)
}

// stopJob stops one of the jobs that have not ended, as a person would. It may have ended meanwhile.
func (s *soakedHub) stopJob(ctx context.Context) {
	list, err := access.List[job.Changes](ctx, s.lab.Admin, job.VerbJobList, job.ListWish{Open: true})
	if err != nil {
		return
	}
	var open []job.Job
	for _, c := range list.Jobs {
		if c.Job.State == job.Running {
			open = append(open, c.Job)
		}
	}
	if len(open) == 0 {
		return
	}
	wish := job.StopWish{ID: open[s.random.IntN(len(open))].ID, How: []job.Stop{job.Gently, job.Now}[s.random.IntN(2)]}
	if _, err := Ask[job.Change](ctx, s.lab, job.VerbJobStop, wish); err == nil {
		s.note("job stopped by a person")
	}
}

// One hub cannot be two: that fault would be put back for ever.
func TestFaultsOfHubs(t *testing.T) {
	for hubs, want := range map[int]int{1: len(hubFaults) - 1, 3: len(hubFaults)} {
		s, seen := &soakedHub{random: rand.New(rand.NewPCG(1, 0)), lab: &Lab{Hubs: make([]*Machine, hubs)}}, map[string]bool{}
		for range 100 {
			seen[s.choose().name] = true
		}
		if len(seen) != want || seen[twoHubs] != (hubs > 1) {
			t.Errorf("%d hubs have %d faults: %v; want %d", hubs, len(seen), seen, want)
		}
	}
}
