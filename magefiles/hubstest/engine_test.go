package hubstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"slipway/ci/fleet"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/run"
)

// engineJobs is how many jobs are added, claimed and ended without a process.
const engineJobs = 1000

// inTurns calls work for the numbers of engineJobs, by this many goroutines.
func inTurns(ctx context.Context, workers int, work func(ctx context.Context, i int) error) (time.Duration, error) {
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for w := range workers {
		group.Go(func() error {
			for i := w; i < engineJobs; i += workers {
				if err := work(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return time.Since(began), err
}

// engine measures the writes of a job, create, claim and end, by NATS alone and through a hub. The hub
// also writes the audit of each.
func (b *hubBench) engine(ctx context.Context) error {
	for _, workers := range []int{1, 16} {
		alone, err := b.writeAlone(ctx, workers)
		if err != nil {
			return err
		}
		var through time.Duration
		err = b.withLab(ctx, 1, workers, 1, func(l *Lab) (err error) {
			through, err = writeThrough(ctx, l, workers)
			return err
		})
		if err != nil {
			return err
		}
		b.figure(fmt.Sprintf("engine_jobs_per_s_%d", workers), engineJobs/alone.Seconds(), fmt.Sprintf("jobs/s: NATS alone, %d at once", workers))
		b.figure(fmt.Sprintf("hub_jobs_per_s_%d", workers), engineJobs/through.Seconds(), "jobs/s: the same through a hub, without processes")
		b.figure(fmt.Sprintf("engine_over_hub_%d", workers), through.Seconds()/alone.Seconds(), "times as fast is NATS alone")
	}
	return nil
}

// writeAlone writes jobs into a bucket of NATS, with the same sync as a hub's.
func (b *hubBench) writeAlone(ctx context.Context, workers int) (time.Duration, error) {
	dir, err := os.MkdirTemp(b.Dir, "engine-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	keys, err := bus.LoadKeys(dir)
	if err != nil {
		return 0, err
	}
	server, err := bus.Start(bus.ServerOptions{Name: "alone", StoreDir: filepath.Join(dir, "engine"), Keys: keys})
	if err != nil {
		return 0, err
	}
	defer server.Close()
	nc, err := server.Connect()
	if err != nil {
		return 0, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "jobs"})
	if err != nil {
		return 0, err
	}
	value, err := json.Marshal(Job(&Machine{Name: "st01"}, "st01-b01"))
	if err != nil {
		return 0, err
	}
	return inTurns(ctx, workers, func(ctx context.Context, i int) error {
		key := fmt.Sprintf("st01.b%d", i)
		revision, err := kv.Create(ctx, key, value)
		for range 2 {
			if err == nil {
				revision, err = kv.Update(ctx, key, value, revision)
			}
		}
		return err
	})
}

// writeThrough has an admin add jobs, and a station, whose program does not run, claim and end them.
func writeThrough(ctx context.Context, l *Lab, workers int) (time.Duration, error) {
	m := l.Stations[0]
	m.Kill()
	station, alive, err := standIn(ctx, m)
	if err != nil {
		return 0, err
	}
	defer station.Close()
	renewing, done := context.WithCancel(ctx)
	defer done()
	go keepLease(renewing, station, alive)
	return inTurns(ctx, workers, func(ctx context.Context, i int) error {
		c, err := Ask[job.Change](ctx, l, job.VerbJobAdd, Job(m, m.Boards[i%len(m.Boards)]))
		if err != nil {
			return err
		}
		c.Instance, c.Job.Claim = alive.Instance, &job.Claim{Instance: alive.Instance, Epoch: alive.Epoch, Attempt: 1}
		if c, err = access.Ask[job.Change](ctx, station, job.VerbClaim, c); err != nil {
			return err
		}
		c.Instance, c.Job.Result = alive.Instance, &job.Result{Result: fleet.Result{Host: c.Job.Name, Kind: fleet.Passed}, Attempts: 1}
		_, err = access.Ask[job.Change](ctx, station, job.VerbEnd, c)
		return err
	})
}

// keepLease renews a lease until ctx ends.
func keepLease(ctx context.Context, station *access.Client, alive job.Alive) {
	for run.Sleep(ctx, 5*time.Second) == nil {
		if l, err := access.Ask[job.Lease](ctx, station, job.VerbAlive, alive); err == nil {
			alive.Revision = l.Revision
		}
	}
}

// standIn connects as a station whose program was killed, as its next run.
func standIn(ctx context.Context, m *Machine) (*access.Client, job.Alive, error) {
	var record struct {
		Place string
		Epoch int64
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(m.Jobs()), "run.json"))
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	var id access.Identity
	if err == nil {
		id, err = m.Identity()
	}
	alive := job.Alive{Instance: fmt.Sprintf("%s-%d", record.Place, record.Epoch+1), Epoch: record.Epoch + 1}
	if err != nil {
		return nil, alive, err
	}
	c, err := id.Dial(ctx)
	if err != nil {
		return nil, alive, err
	}
	l, err := access.Ask[job.Lease](ctx, c, job.VerbHello, job.Hello{Station: job.Station{V: job.Version, Name: m.Name, Instance: alive.Instance, Epoch: alive.Epoch}})
	alive.Revision = l.Revision
	return c, alive, err
}

// hand measures 500 jobs, 20 at once: as a rollout of 5 stations, and as processes that nobody asks a
// hub for.
func (b *hubBench) hand(ctx context.Context) error {
	const stations, boards, parallel = 5, 100, 4
	return b.withLab(ctx, stations, boards, parallel, func(l *Lab) error {
		with, err := rollOut(ctx, l)
		if err != nil {
			return err
		}
		without, err := b.runByHand(ctx, l, stations*parallel)
		if err != nil {
			return err
		}
		b.figure("hand_with_hub_s", with.Seconds(), "s: 500 boards through a hub")
		b.figure("hand_without_hub_s", without.Seconds(), "s: the same processes without one")
		b.figure("with_hub_over_without", with.Seconds()/without.Seconds(), "times as long with a hub")
		return nil
	})
}

// runByHand does a job on each board, in folders as stations make them.
func (b *hubBench) runByHand(ctx context.Context, l *Lab, parallel int) (time.Duration, error) {
	var group sync.WaitGroup
	errs, free := make([]error, len(l.Stations)*l.Boards), make(chan struct{}, parallel)
	began := time.Now()
	for i := range errs {
		m := l.Stations[i%len(l.Stations)]
		name := m.Boards[i/len(l.Stations)]
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			errs[i] = b.runOne(ctx, l, Job(m, name))
		})
	}
	group.Wait()
	return time.Since(began), errors.Join(errs...)
}

func (b *hubBench) runOne(ctx context.Context, l *Lab, j job.Job) error {
	j.Claim = &job.Claim{Instance: "hand", Attempt: 1}
	host := map[string]any{j.Name: map[string]string{"ansible_host": filepath.Dir(l.BoardFile(j.Name))}}
	inventory, err := json.Marshal(map[string]any{"all": map[string]any{"hosts": host}})
	if err != nil {
		return err
	}
	f := job.Folder(filepath.Join(b.Dir, "hand", "jobs", j.ID))
	if err := f.Begin(job.Order{Job: j, How: job.How{Inventory: string(inventory)}}); err != nil {
		return err
	}
	if err := run.Run(ctx, run.Command{Argv: []string{b.program, "job", "exec", string(f)}}); err != nil {
		return err
	}
	r, err := f.Result()
	if err == nil && r.Kind != fleet.Passed {
		err = fmt.Errorf("job %s: %s: %s", j.ID, r.Kind, r.Saw)
	}
	return err
}
