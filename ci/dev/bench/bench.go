// Package bench measures Slipway beside the tools that people use today, in one run, and
// prints a table and the ratios. Each area is one file. An area that could not measure
// returns an error, never a partial table.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// Variant is one method to do a job.
type Variant struct {
	Name    string
	Prepare func(context.Context) error // not timed; nil for nothing
	Run     func(context.Context) error
}

// Row holds the measured times of one variant.
type Row struct {
	Name  string
	Times []time.Duration
	CPU   []time.Duration // on processors, where that was measured

	PeakBytes int64 // of resident memory, where that was measured
}

// Median returns the median of the row's times.
func (r Row) Median() time.Duration { return median(r.Times) }

func median(times []time.Duration) time.Duration {
	t := slices.Sorted(slices.Values(times))
	return t[len(t)/2]
}

// Measure runs the variants one after another, n rounds after one that is not counted. So a
// drift of the machine's speed affects all of them alike.
func Measure(ctx context.Context, n int, variants ...Variant) ([]Row, error) {
	order := make([]int, len(variants))
	for i := range order {
		order[i] = i
	}
	return measureInOrder(ctx, n, func() []int { return order }, variants)
}

// MeasureShuffled is Measure with another order in each round, for variants that leave the
// kernel something to clean up: the cost of that does not always hit the same one. It also
// measures the processor time of this process and of the programs that it waited for, which
// varies less where others use the machine.
func MeasureShuffled(ctx context.Context, n int, variants ...Variant) ([]Row, error) {
	random := rand.New(rand.NewPCG(1, 1)) // the same orders in each run
	used := make([][]time.Duration, len(variants))
	timed := slices.Clone(variants)
	for i, v := range variants {
		timed[i].Run = func(ctx context.Context) error {
			before := processorTime()
			err := v.Run(ctx)
			used[i] = append(used[i], processorTime()-before)
			return err
		}
	}
	rows, err := measureInOrder(ctx, n, func() []int { return random.Perm(len(variants)) }, timed)
	for i := range rows {
		rows[i].CPU = used[i][1:] // the first round is not counted
	}
	return rows, err
}

func processorTime() (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if unix.Getrusage(who, &used) == nil { // which fails for no valid argument
			sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
		}
	}
	return sum
}

func measureInOrder(ctx context.Context, n int, order func() []int, variants []Variant) ([]Row, error) {
	rows := make([]Row, len(variants))
	for round := -1; round < n; round++ {
		for _, i := range order() {
			v := variants[i]
			took, err := measureOnce(ctx, v)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", v.Name, round+1, err)
			}
			rows[i].Name = v.Name
			if round >= 0 {
				rows[i].Times = append(rows[i].Times, took)
			}
		}
	}
	return rows, nil
}

func measureOnce(ctx context.Context, v Variant) (time.Duration, error) {
	if v.Prepare != nil {
		if err := v.Prepare(ctx); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	err := v.Run(ctx)
	return time.Since(began), err
}

// Ratio is one figure of a bench's last line.
type Ratio struct {
	Name  string
	Value float64
}

// TimeRatio returns how many times longer peer took than ours.
func TimeRatio(name string, peer, ours Row) Ratio {
	return Ratio{name, float64(peer.Median()) / float64(ours.Median())}
}

// ratioPair names two rows whose ratio is printed.
type ratioPair struct{ name, peer, ours string }

// ratiosOfPairs returns the ratios of those pairs of which both rows were measured.
func ratiosOfPairs(rows []Row, pairs []ratioPair) []Ratio {
	var all []Ratio
	for _, p := range pairs {
		peer := slices.IndexFunc(rows, func(r Row) bool { return r.Name == p.peer })
		ours := slices.IndexFunc(rows, func(r Row) bool { return r.Name == p.ours })
		if peer >= 0 && ours >= 0 {
			all = append(all, TimeRatio(p.name, rows[peer], rows[ours]))
		}
	}
	return all
}

// PrintTable writes the table of the rows, with the ratios as its last line.
func PrintTable(w io.Writer, rows []Row, ratios ...Ratio) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "variant\tmedian ms\tmin ms\tmax ms\tcpu ms\tpeak MB\tn\t")
	for _, r := range rows {
		cpu, peak := "-", "-"
		if len(r.CPU) > 0 {
			cpu = formatMS(median(r.CPU))
		}
		if r.PeakBytes > 0 {
			peak = fmt.Sprintf("%.1f", float64(r.PeakBytes)/1e6)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t\n", r.Name, formatMS(r.Median()), formatMS(slices.Min(r.Times)), formatMS(slices.Max(r.Times)), cpu, peak, len(r.Times))
	}
	if err := tw.Flush(); err != nil || len(ratios) == 0 {
		return err
	}
	return printRatios(w, ratios)
}

func printRatios(w io.Writer, ratios []Ratio) error {
	pairs := make([]string, len(ratios))
	for i, r := range ratios {
		pairs[i] = fmt.Sprintf("%s=%.2f", r.Name, r.Value)
	}
	_, err := fmt.Fprintln(w, strings.Join(pairs, " "))
	return err
}

func formatMS(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }

// keepOnFailure calls measure with a new folder in build. It removes the folder unless
// measure fails, as the error names files there.
func keepOnFailure(ctx context.Context, name string, measure func(dir string) error) error {
	if err := os.MkdirAll("build", 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("build", name)
	if err != nil {
		return err
	}
	err = measure(dir)
	if err != nil && ctx.Err() == nil {
		return err
	}
	return errors.Join(err, os.RemoveAll(dir))
}
