package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/dev/lab"
	"slipway/ci/fleet"
	"slipway/ci/hub/books"
	"slipway/ci/job"
	"slipway/layers/run"
)

// hub measures hubs and stations as processes on loopback, with simulated boards that take no time.
// Beside them stand NATS alone, the same jobs without a hub, and labgrid's coordinator.
var hub = area{rounds: 200, root: true, measure: measureHub, packages: []string{"mmdebstrap"}, variants: []variant{
	{name: "program"}, {name: "idle"}, {name: "latency"}, {name: "stations"}, {name: "engine"}, {name: "hand"}, {name: "labgrid"},
}}

// HubInside is the first word of the line that measures in namespaces of its own.
const HubInside = "bench-hub"

// hubOptions are those of RunHubInside.
type hubOptions struct {
	Dir, Program, Slipway, Only string
	Jobs                        int // of which the latency is measured
}

// measureHub builds the programs, and measures in namespaces, which end with all that it started.
func measureHub(ctx context.Context, s *session) error {
	o := hubOptions{Dir: s.dir, Program: filepath.Join(s.dir, "simulated"), Slipway: filepath.Join(s.dir, "slipway"), Only: s.Only, Jobs: s.Rounds}
	for program, from := range map[string]string{o.Program: "./magefiles/simulated", o.Slipway: "./magefiles/slipway"} {
		build := run.Command{Argv: []string{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, from}, Env: []string{"CGO_ENABLED=0"}}
		if err := run.Run(ctx, build); err != nil {
			return err
		}
	}
	if s.only.MatchString("labgrid") {
		if err := makeLabgrid(ctx); err != nil {
			return err
		}
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return lab.Inside(ctx, s.w, o.Program, HubInside, string(data))
}

// hubBench prints a line for each figure, and all of them at the end.
type hubBench struct {
	hubOptions
	w       io.Writer
	figures []string
}

// RunHubInside measures what measureHub chose.
func RunHubInside(ctx context.Context, w io.Writer, options string) error {
	o, err := lab.Decode[hubOptions](options)
	if err != nil {
		return err
	}
	only, err := regexp.Compile(o.Only)
	if err != nil {
		return err
	}
	b := &hubBench{hubOptions: o, w: w}
	for i, part := range []func(context.Context) error{b.program, b.idle, b.latency, b.stations, b.engine, b.hand, b.labgrid} {
		if name := hub.variants[i].name; only.MatchString(name) {
			if err := part(ctx); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	_, err = fmt.Fprintln(w, strings.Join(b.figures, " "))
	return err
}

func (b *hubBench) figure(name string, value float64, about string) {
	fmt.Fprintf(b.w, "%12.2f  %s\n", value, about)
	b.figures = append(b.figures, fmt.Sprintf("%s=%.2f", name, value))
}

// startLab starts a lab of quick boards, and ends it after work.
func (b *hubBench) withLab(ctx context.Context, stations, boards, parallel int, work func(*lab.Lab) error) error {
	dir, err := os.MkdirTemp(b.Dir, "lab-")
	if err != nil {
		return err
	}
	l, err := lab.New(ctx, lab.Options{Dir: dir, Program: b.Program, Hubs: 1, Stations: stations, Boards: boards, Parallel: parallel, Quick: true})
	if err != nil {
		return err
	}
	err = work(l)
	l.Close()
	return errors.Join(err, os.RemoveAll(dir))
}

// program measures the program of users, which has the hub in it.
func (b *hubBench) program(ctx context.Context) error {
	info, err := os.Stat(b.Slipway)
	if err != nil {
		return err
	}
	b.figure("program_mb", float64(info.Size())/1e6, "MB: slipway, stripped")
	var took []time.Duration
	for range 21 {
		began := time.Now()
		if _, err := run.Output(ctx, run.Command{Argv: []string{b.Slipway, "-h"}}); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	b.figure("help_ms", milliseconds(median(took)), "ms: slipway -h")
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// idle measures a hub whose 20 stations have nothing to do.
func (b *hubBench) idle(ctx context.Context) error {
	return b.withLab(ctx, 20, 50, 4, func(l *lab.Lab) error {
		const over = 30 * time.Second
		if err := run.Sleep(ctx, 10*time.Second); err != nil { // what the beginning caused ends
			return err
		}
		hubBefore, stationBefore := l.Hubs[0].CPU(), l.Stations[0].CPU()
		if err := run.Sleep(ctx, over); err != nil {
			return err
		}
		b.figure("idle_hub_mib", float64(l.Hubs[0].MemoryBytes())/(1<<20), "MiB: memory of a hub, 20 idle stations with 1,000 boards (aim 60)")
		b.figure("idle_hub_cpu_percent", 100*(l.Hubs[0].CPU()-hubBefore).Seconds()/over.Seconds(), "% of a core: that hub, over 30 s (aim 2)")
		b.figure("idle_station_mib", float64(l.Stations[0].MemoryBytes())/(1<<20), "MiB: memory of such a station")
		b.figure("idle_station_cpu_percent", 100*(l.Stations[0].CPU()-stationBefore).Seconds()/over.Seconds(), "% of a core: that station")
		return nil
	})
}

// latency measures from a person's request to the job's process, and to the board's first event.
func (b *hubBench) latency(ctx context.Context) error {
	return b.withLab(ctx, 1, 8, 8, func(l *lab.Lab) error {
		var toChild, toBoard []time.Duration
		m := l.Stations[0]
		for i := range b.Jobs {
			name := m.Boards[i%len(m.Boards)]
			began := time.Now()
			j, err := l.RunJob(ctx, m, name)
			if err != nil {
				return err
			}
			child, err := birthOf(job.Folder(filepath.Join(m.Jobs(), j.ID)).Log())
			if err != nil {
				return err
			}
			events, err := books.Read(l.BoardFile(name))
			if err != nil {
				return err
			}
			first := slices.IndexFunc(events, func(e books.Event) bool { return e.Job == j.ID })
			if first < 0 {
				return fmt.Errorf("the file of %s does not have the job %s", name, j.ID)
			}
			toChild, toBoard = append(toChild, child.Sub(began)), append(toBoard, events[first].At.Sub(began))
		}
		for _, of := range []struct {
			name, about string
			all         []time.Duration
		}{{"child", "job add to the start of its process", toChild}, {"board", "job add to the board's first event", toBoard}} {
			slices.Sort(of.all)
			b.figure("latency_"+of.name+"_p50_ms", milliseconds(of.all[len(of.all)/2]), "ms: "+of.about+", p50 (aim 20)")
			b.figure("latency_"+of.name+"_p99_ms", milliseconds(of.all[len(of.all)*99/100]), "ms: the same, p99 (aim 100)")
		}
		return nil
	})
}

// birthOf returns when a file was made. The station makes a job's log just before it starts the process.
func birthOf(name string) (time.Time, error) {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, name, 0, unix.STATX_BTIME, &s)
	return time.Unix(s.Btime.Sec, int64(s.Btime.Nsec)), err
}

// stations measures a rollout over the same number of boards at more and more stations.
func (b *hubBench) stations(ctx context.Context) error {
	for _, n := range []int{1, 2, 4, 8, 16} {
		const boards = 192
		err := b.withLab(ctx, n, boards/n, 8, func(l *lab.Lab) error {
			took, err := rollOut(ctx, l)
			b.figure(fmt.Sprintf("rollout_jobs_per_s_%d", n), boards/took.Seconds(), fmt.Sprintf("jobs/s: a rollout over %d boards of %d stations, each job a process, in %v", boards, n, took.Round(time.Second/10)))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// rollOut runs a rollout over all boards of a lab, and returns how long it takes. All must pass.
func rollOut(ctx context.Context, l *lab.Lab) (time.Duration, error) {
	began, boards := time.Now(), len(l.Stations)*l.Boards
	r, err := lab.Ask[job.RolloutState](ctx, l, job.VerbRolloutAdd, job.Rollout{
		ID: job.NewID(), Board: lab.Kind, Steps: []job.Step{{Do: job.Smoke}}, LimitMS: time.Hour.Milliseconds(), PatienceMS: time.Hour.Milliseconds(),
	})
	for err == nil && !r.Ended {
		if err = run.Sleep(ctx, 20*time.Millisecond); err == nil {
			r, err = lab.Ask[job.RolloutState](ctx, l, job.VerbRolloutShow, job.RolloutWish{ID: r.ID})
		}
	}
	if err == nil && r.Counts[fleet.Passed] != boards {
		err = fmt.Errorf("of %d boards, %d passed", boards, r.Counts[fleet.Passed])
	}
	return time.Since(began), err
}
