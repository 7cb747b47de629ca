package hubstest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
		err = b.withLab(ctx, labOptions{Stations: 1, Boards: workers, Parallel: 1, Quick: true}, func(l *Lab) (err error) {
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

// hand measures "fleet smoke" of 500 boards, 20 at once: through a hub with 5 stations, and by an inventory
// on one machine. Each board is a server of OpenSSH.
func (b *hubBench) hand(ctx context.Context) error {
	const stations, boards, parallel = 5, 100, 4
	return b.withLab(ctx, labOptions{Stations: stations, Boards: boards, Parallel: parallel, SSH: true}, func(l *Lab) error {
		if _, err := l.makeProject(ctx); err != nil {
			return err
		}
		var hosts strings.Builder
		for _, m := range l.Stations {
			text, err := os.ReadFile(l.inventoryOf(m))
			if err != nil {
				return err
			}
			hosts.Write(text)
		}
		inventory := filepath.Join(l.desk.Dir, "all.hosts")
		if err := os.WriteFile(inventory, []byte(hosts.String()), 0o600); err != nil {
			return err
		}
		var took []time.Duration
		for _, at := range [][]string{{"hub:"}, {inventory, "--parallel=" + strconv.Itoa(stations*parallel)}} {
			began := time.Now()
			if _, err := l.desk.Run(ctx, append([]string{"fleet", "smoke", sshKind}, at...)...); err != nil {
				return err
			}
			took = append(took, time.Since(began))
		}
		b.figure("fleet_with_hub_s", took[0].Seconds(), "s: fleet smoke of 500 SSH boards through a hub")
		b.figure("fleet_without_hub_s", took[1].Seconds(), "s: the same by an inventory")
		b.figure("with_hub_over_without", took[0].Seconds()/took[1].Seconds(), "times as long with a hub")
		return nil
	})
}
