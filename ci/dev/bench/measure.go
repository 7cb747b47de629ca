package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// variant is one command to measure. Words in braces are filled into its command and folder.
type variant struct {
	name    string
	command string // words, with quotes as in a shell
	dir     string
	env     []string
	ours    bool   // it needs the program, although the command does not name it
	prepare string // the script's verb and its arguments; not timed
	check   string // of the result, in the round that is not counted
	copies  int    // of the data that the word mapped has the bytes of, for a column of MB/s

	program string // the one to measure, of this checkout or of the earlier one
	first   bool   // in the round that is not counted
}

// row is what was measured of one variant in all rounds.
type row struct {
	name      string
	wall, cpu []time.Duration
	bytes     int64 // on the line, in the last round
	copies    int
}

// measureVariants runs all variants in rounds, after one round that is not counted. Each round has
// another order, so that a drift of the machine's speed affects all variants alike. Variants of an
// ordered area keep their order, and all their rounds count.
func (s *session) measureVariants(ctx context.Context) (rows []row, err error) {
	variants := s.allVariants()
	step := progress.Start(ctx, "measure", int64(len(variants)*(s.Rounds+1)), progress.Tasks)
	defer func() { step.End("", err) }()
	rows = make([]row, len(variants))
	random := rand.New(rand.NewPCG(1, 1)) // the same orders in each run
	for round := range s.Rounds + 1 {
		order := random.Perm(len(variants))
		if round == 0 || s.ordered {
			slices.Sort(order)
		}
		if round == 0 && s.ordered {
			continue
		}
		for _, i := range order {
			step.Detail(variants[i].name)
			rows[i].name, rows[i].copies = variants[i].name, variants[i].copies
			variants[i].first = round == 0
			if err := s.measureOnce(ctx, &rows[i], variants[i]); err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", variants[i].name, round, err)
			}
			step.Add(1)
		}
	}
	return rows, nil
}

// measureOnce prepares and runs a variant once, and sets r.bytes. In the first round it checks the
// result, and in later ones it adds the times to the row. In an ordered area it does both.
func (s *session) measureOnce(ctx context.Context, r *row, v variant) error {
	if v.prepare != "" {
		if _, err := s.call(ctx, v, v.prepare); err != nil {
			return err
		}
	}
	before := s.line.carried.Load()
	wall, cpu, err := timeCommand(ctx, v)
	r.bytes = s.line.carried.Load() - before
	if err == nil && v.check != "" && (v.first || s.ordered) {
		_, err = s.call(ctx, v, v.check)
	}
	if !v.first {
		r.wall, r.cpu = append(r.wall, wall), append(r.cpu, cpu)
	}
	return err
}

// timeCommand runs a command once by hyperfine, and returns its elapsed time and CPU time.
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

// median returns the middle value, or the greater of two middle ones. It panics without a value.
func median[T time.Duration | float64](values []T) T {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// ratio is a figure of the last line: the time of row over divided by that of row under. If base is
// set, the time of row base is first subtracted from both (with baseOver from over), round by round.
type ratio struct {
	name        string
	over, under string // of several names, with | between them, the fastest row counts
	base        string
	baseOver    bool                // base is subtracted only from over
	of          func(row) []float64 // what is compared, if not the elapsed times
}

func elapsedSeconds(r row) []float64   { return seconds(r.wall) }
func processorSeconds(r row) []float64 { return seconds(r.cpu) }
func lineBytes(r row) []float64        { return []float64{float64(r.bytes)} }

func seconds(times []time.Duration) (all []float64) {
	for _, t := range times {
		all = append(all, t.Seconds())
	}
	return all
}

// value returns the ratio of medians, and false if one of its rows was not measured. Of several
// names the fastest row counts, and the times of base are subtracted.
func (r ratio) value(rows []row) (float64, bool) {
	find := func(names, base string) (fastest float64, found bool) {
		for name := range strings.SplitSeq(names, "|") {
			added := r.values(rows, name)
			for i, t := range r.values(rows, base) {
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
	over, ok1 := find(r.over, r.base)
	under, ok2 := find(r.under, plaintext.Either(r.baseOver, "", r.base))
	return over / under, ok1 && ok2 && (r.base == "" || r.values(rows, r.base) != nil)
}

// values returns the compared values of the row of a name, or nil if it was not measured.
func (r ratio) values(rows []row, name string) []float64 {
	i := slices.IndexFunc(rows, func(row row) bool { return row.name == name })
	switch {
	case i < 0:
		return nil
	case r.of == nil:
		return elapsedSeconds(rows[i])
	}
	return r.of(rows[i])
}

func notWord(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// print writes the table of the rows, and a last line, if not empty, with figures and ratios (also
// of an earlier checkout to this one). For an ordered area it first writes the bytes on the line.
func (s *session) print(rows []row, figures ...string) error {
	for _, r := range rows {
		if s.ordered {
			fmt.Fprintf(s.w, "%s: %.2f MB on the line\n", r.name, float64(r.bytes)/1e6)
		}
	}
	tw := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "variant\tmedian ms\tmin ms\tmax ms\tcpu ms\tn\t"+plaintext.Either(s.words["mapped"] != "", "MB/s\t", ""))
	mapped, _ := strconv.ParseFloat(s.words["mapped"], 64)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t", r.name, ms(median(r.wall)), ms(slices.Min(r.wall)), ms(slices.Max(r.wall)), ms(median(r.cpu)), len(r.wall))
		fmt.Fprintln(tw, plaintext.Either(r.copies > 0, fmt.Sprintf("%.0f\t", float64(r.copies)*mapped/1e6/median(r.wall).Seconds()), ""))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	all := slices.Clone(s.ratios)
	for _, r := range rows {
		if now := strings.Replace(r.name, earlierPrefix, "", 1); now != r.name {
			all = append(all, ratio{name: "before_over_now_" + strings.Join(strings.FieldsFunc(now, notWord), "_"), over: r.name, under: now})
		}
	}
	var words []string
	for _, r := range all {
		if value, ok := r.value(rows); ok {
			words = append(words, fmt.Sprintf("%s=%.2f", r.name, value))
		}
	}
	words = append(words, figures...)
	if len(words) == 0 {
		return nil // of the selected variants, no two make a ratio
	}
	_, err := fmt.Fprintln(s.w, strings.Join(words, " "))
	return err
}
