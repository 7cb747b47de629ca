package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"slipway/layers/progress"
	"slipway/layers/run"
)

// variant is one method to do a job.
type variant struct {
	name    string
	command string // words, with quotes as in a shell
	dir     string
	env     []string
	ours    bool                                 // it needs the program, although the command does not name it
	prepare func(context.Context, variant) error // not timed
	check   func(context.Context) error          // of the result, in the round that is not counted

	program string // the one to measure, of this checkout or of the earlier one
	first   bool   // in the round that is not counted
}

// row holds the measured times of one variant.
type row struct {
	name      string
	wall, cpu []time.Duration
}

// measure runs the selected variants one after another, in rounds after one that is not
// counted. Each round has another order. So a drift of the machine's speed, and what a variant
// leaves to the kernel, affect all of them alike.
func (s *session) measure(ctx context.Context, variants []variant) (rows []row, err error) {
	variants = slices.DeleteFunc(s.withEarlier(variants), func(v variant) bool { return !s.only.MatchString(v.name) })
	step := progress.Start(ctx, "measure", int64(len(variants)*(s.Rounds+1)), progress.Tasks)
	defer func() { step.End("", err) }()
	rows = make([]row, len(variants))
	random := rand.New(rand.NewPCG(1, 1)) // the same orders in each run
	for round := range s.Rounds + 1 {
		order := random.Perm(len(variants))
		if round == 0 {
			slices.Sort(order)
		}
		for _, i := range order {
			step.Detail(variants[i].name)
			rows[i].name = variants[i].name
			variants[i].first = round == 0
			if err := rows[i].measureOnce(ctx, variants[i]); err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", variants[i].name, round, err)
			}
			step.Add(1)
		}
	}
	return rows, nil
}

// measureOnce adds one run to a row. The first run is checked and not counted.
func (r *row) measureOnce(ctx context.Context, v variant) error {
	if v.prepare != nil {
		if err := v.prepare(ctx, v); err != nil {
			return err
		}
	}
	wall, cpu, err := timeCommand(ctx, v)
	if err == nil && v.first && v.check != nil {
		err = v.check(ctx)
	}
	if !v.first {
		r.wall, r.cpu = append(r.wall, wall), append(r.cpu, cpu)
	}
	return err
}

// timeCommand has hyperfine run a command once.
func timeCommand(ctx context.Context, v variant) (wall, cpu time.Duration, err error) {
	file, err := os.CreateTemp("", "slipway-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	err = run.Run(ctx, run.Command{
		Argv: []string{"hyperfine", "--shell=none", "--runs=1", "--show-output", "--export-json=" + file.Name(), "--", v.command},
		Dir:  v.dir, Env: v.env,
	})
	if err != nil {
		return 0, 0, err
	}
	var times struct {
		Results [1]struct{ Median, User, System float64 }
	}
	if err := json.NewDecoder(file).Decode(&times); err != nil {
		return 0, 0, fmt.Errorf("read the times that hyperfine wrote: %w", err)
	}
	t := times.Results[0]
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return seconds(t.Median), seconds(t.User + t.System), nil
}

func median[T time.Duration | float64](values []T) T {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// ratio is a figure of the last line: how many times as long the row over took as the row
// under. The time of the row base is subtracted from both, round by round, if it is named.
type ratio struct {
	name        string
	over, under string // of several names, with | between them, the fastest row counts
	base        string
	cpu         bool // of the times on processors
}

// value returns false if a row was not measured.
func (r ratio) value(rows []row) (float64, bool) {
	find := func(names string) (fastest float64, found bool) {
		for name := range strings.SplitSeq(names, "|") {
			added := r.times(rows, name)
			for i, t := range r.times(rows, r.base) {
				if i < len(added) {
					added[i] -= t
				}
			}
			if len(added) > 0 && (!found || median(added) < fastest) {
				fastest, found = median(added), true
			}
		}
		return fastest, found
	}
	over, ok1 := find(r.over)
	under, ok2 := find(r.under)
	return over / under, ok1 && ok2 && (r.base == "" || r.times(rows, r.base) != nil)
}

func (r ratio) times(rows []row, name string) (seconds []float64) {
	for _, row := range rows {
		if row.name == name {
			times := row.wall
			if r.cpu {
				times = row.cpu
			}
			for _, t := range times {
				seconds = append(seconds, t.Seconds())
			}
		}
	}
	return seconds
}

func notWord(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// figure is a value of the last line.
type figure struct {
	name  string
	value float64
}

// print writes the table of the rows. Its last line holds the ratios and the other figures.
func (s *session) print(rows []row, ratios []ratio, figures ...figure) error {
	tw := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "variant\tmedian ms\tmin ms\tmax ms\tcpu ms\tn\t")
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t\n", r.name, ms(median(r.wall)), ms(slices.Min(r.wall)), ms(slices.Max(r.wall)), ms(median(r.cpu)), len(r.wall))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var words []string
	var all []figure
	for _, r := range ratios {
		if value, ok := r.value(rows); ok {
			all = append(all, figure{r.name, value})
		}
	}
	for _, r := range rows {
		if now := strings.Replace(r.name, earlierPrefix, "", 1); now != r.name {
			if value, ok := (ratio{over: r.name, under: now}).value(rows); ok {
				all = append(all, figure{"before_over_now_" + strings.Join(strings.FieldsFunc(now, notWord), "_"), value})
			}
		}
	}
	for _, f := range append(all, figures...) {
		words = append(words, fmt.Sprintf("%s=%.2f", f.name, f.value))
	}
	if len(words) == 0 {
		return nil // of the selected variants, no two make a ratio
	}
	_, err := fmt.Fprintln(s.w, strings.Join(words, " "))
	return err
}
