package hubstest

import (
	"context"
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

	"slipway/ci/dev/bench"
	"slipway/ci/fleet"
	"slipway/ci/hub/bookstest"
	"slipway/ci/job"
	"slipway/layers/run"
)

// hubBench prints a line for each figure, and all of them at the end.
type hubBench struct {
	bench.HubOptions
	program string
	w       io.Writer
	figures []string
}

// benchHubs measures what "bench hub" chose.
func benchHubs(ctx context.Context, w io.Writer, options []byte) error {
	o, err := decode[bench.HubOptions](options)
	if err != nil {
		return err
	}
	only, err := regexp.Compile(o.Only)
	if err != nil {
		return err
	}
	b := &hubBench{HubOptions: o, w: w}
	if b.program, err = os.Executable(); err != nil {
		return err
	}
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"program", b.size}, {"idle", b.idle}, {"latency", b.latency}, {"stations", b.stations}, {"engine", b.engine}, {"hand", b.hand}, {"labgrid", b.labgrid},
	} {
		if only.MatchString(part.name) {
			if err := part.measure(ctx); err != nil {
				return fmt.Errorf("%s: %w", part.name, err)
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

// withLab starts a lab with one hub, and ends it after work.
func (b *hubBench) withLab(ctx context.Context, o labOptions, work func(*Lab) error) error {
	dir, err := os.MkdirTemp(b.Dir, "lab-")
	if err != nil {
		return err
	}
	o.Dir, o.Program, o.Slipway, o.Hubs = dir, b.program, b.Slipway, 1
	l, err := newLab(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(work(l), l.Close(), os.RemoveAll(dir))
}

// size measures the program of users, which has the hub in it.
func (b *hubBench) size(ctx context.Context) error {
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
	b.figure("help_ms", milliseconds(slices.Sorted(slices.Values(took))[len(took)/2]), "ms: slipway -h")
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// idle measures a hub whose 20 stations have nothing to do.
func (b *hubBench) idle(ctx context.Context) error {
	return b.withLab(ctx, labOptions{Stations: 20, Boards: 50, Parallel: 4, Quick: true}, func(l *Lab) error {
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
	return b.withLab(ctx, labOptions{Stations: 1, Boards: 8, Parallel: 8, Quick: true}, func(l *Lab) error {
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
			events, err := bookstest.Read(l.BoardFile(name))
			if err != nil {
				return err
			}
			first := slices.IndexFunc(events, func(e bookstest.Event) bool { return e.Job == j.ID })
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
		err := b.withLab(ctx, labOptions{Stations: n, Boards: boards / n, Parallel: 8, Quick: true}, func(l *Lab) error {
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
func rollOut(ctx context.Context, l *Lab) (time.Duration, error) {
	began, boards := time.Now(), len(l.Stations)*l.Boards
	r, err := Ask[job.RolloutState](ctx, l, job.VerbRolloutAdd, job.Rollout{
		ID: job.NewID(), Board: Kind, Steps: []job.Step{{Do: job.Smoke}}, LimitMS: time.Hour.Milliseconds(), PatienceMS: time.Hour.Milliseconds(),
	})
	for err == nil && !r.Ended {
		if err = run.Sleep(ctx, 20*time.Millisecond); err == nil {
			r, err = Ask[job.RolloutState](ctx, l, job.VerbRolloutShow, job.RolloutWish{ID: r.ID})
		}
	}
	if err == nil && r.Counts[fleet.Passed] != boards {
		err = fmt.Errorf("of %d boards, %d passed", boards, r.Counts[fleet.Passed])
	}
	return time.Since(began), err
}
