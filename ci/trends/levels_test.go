package trends

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// noiseKinds make n values around 100 that scatter by a part of it, and never change their
// level.
var noiseKinds = []struct {
	name string
	next func(r *rand.Rand, spread float64) func() float64
}{
	{"normal", func(r *rand.Rand, s float64) func() float64 {
		return func() float64 { return 100 * (1 + s*r.NormFloat64()) }
	}},
	{"heavy tails", func(r *rand.Rand, s float64) func() float64 { // Student's t with 3 degrees
		return func() float64 { return 100 * (1 + s*student(r, 3)) }
	}},
	{"outliers", func(r *rand.Rand, s float64) func() float64 {
		return func() float64 {
			v := 100 * (1 + s*r.NormFloat64())
			if r.Float64() < 0.1 {
				v *= 2
			}
			return v
		}
	}},
	{"lognormal", func(r *rand.Rand, s float64) func() float64 {
		return func() float64 { return 100 * math.Exp(2*s*r.NormFloat64()) }
	}},
	{"rounded", func(r *rand.Rand, s float64) func() float64 {
		return func() float64 { return math.Round(20*(1+s*r.NormFloat64())) * 5 }
	}},
	{"drifting cache", func(r *rand.Rand, s float64) func() float64 {
		state := r.NormFloat64()
		return func() float64 {
			state = 0.5*state + math.Sqrt(1-0.25)*r.NormFloat64()
			return 100 * (1 + s*state)
		}
	}},
	{"warm or cold cache", func(r *rand.Rand, s float64) func() float64 {
		return func() float64 {
			v := 100 * (1 + s*r.NormFloat64())
			if r.Float64() < 0.25 {
				v *= 1.6
			}
			return v
		}
	}},
}

func student(r *rand.Rand, degrees int) float64 {
	sum := 0.0
	for range degrees {
		v := r.NormFloat64()
		sum += v * v
	}
	return r.NormFloat64() / math.Sqrt(sum/float64(degrees))
}

var (
	simulatedRuns    = []int{20, 40, 60, 120, 240}
	simulatedSpreads = []float64{0.02, 0.1}
)

// In a series that never changes, a change is said once in a hundred series or less. With
// SLIPWAY_LONG=1 each row has 2,000 series, and -v prints the table. ci/trends.md has its
// figures.
func TestSimulatedNoise(t *testing.T) {
	times := 100
	if os.Getenv("SLIPWAY_LONG") == "1" {
		times = 2000
	}
	rows, total, worst := 0, 0.0, 0.0
	for k, kind := range noiseKinds {
		for i, n := range simulatedRuns {
			for j, spread := range simulatedSpreads {
				if times < 2000 && n > 120 {
					continue
				}
				r := rand.New(rand.NewPCG(uint64(k*100+i*10+j), 1))
				found := 0
				for range times {
					next := kind.next(r, spread)
					values := make([]float64, n)
					for i := range values {
						values[i] = next()
					}
					if len(findLevels(values, leastChange)) > 1 {
						found++
					}
				}
				share := 100 * float64(found) / float64(times)
				t.Logf("%-18s %3d runs, spread %4.1f %%: %.2f %%", kind.name, n, 100*spread, share)
				rows++
				total, worst = total+share, max(worst, share)
			}
		}
	}
	t.Logf("%d rows of %d series: false alarms in %.2f %%, at worst %.2f %%", rows, times, total/float64(rows), worst)
	if mean := total / float64(rows); mean > 0.3 || worst > 3 {
		t.Errorf("false alarms in %.2f %% of the series, at worst %.2f %%; want at most 0.3 and 3", mean, worst)
	}
}

// A step is found where it is, with few runs after it.
func TestSimulatedSteps(t *testing.T) {
	times := 60
	if os.Getenv("SLIPWAY_LONG") == "1" {
		times = 2000
	}
	for k, kind := range noiseKinds {
		for _, tt := range []struct {
			step, spread float64
			after        int
		}{{0.1, 0.02, 4}, {0.1, 0.02, 10}, {0.1, 0.02, 30}, {-0.1, 0.02, 10}, {0.2, 0.05, 10}, {0.06, 0.01, 10}} {
			r := rand.New(rand.NewPCG(uint64(k), 2))
			found, exact := 0, 0
			const n = 60
			for range times {
				next := kind.next(r, tt.spread)
				values := make([]float64, n)
				for i := range values {
					if values[i] = next(); i >= n-tt.after {
						values[i] *= 1 + tt.step
					}
				}
				all := findLevels(values, leastChange)
				if len(all) == 2 {
					found++
					if all[1].from == n-tt.after {
						exact++
					}
				}
			}
			t.Logf("%-18s %+3.0f %% at spread %.0f %%, %2d runs after: found %5.1f %%, its first run %5.1f %%",
				kind.name, 100*tt.step, 100*tt.spread, tt.after, 100*float64(found)/float64(times), 100*float64(exact)/float64(times))
			if kind.name == "normal" && tt.step == 0.1 && 100*found < 85*times {
				t.Errorf("%s: a step of %v was found in %d of %d series; want 85 %%", kind.name, tt.step, found, times)
			}
		}
	}
}

// series returns n values of each level, with a scatter that is always the same.
func series(n int, levels ...float64) (values []float64) {
	for _, l := range levels {
		for i := range n {
			values = append(values, l*(1+0.002*float64((i*7)%5-2)))
		}
	}
	return values
}

func TestFindLevels(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
		want   string // where levels begin
	}{
		{"none", nil, ""},
		{"one", []float64{1}, "0"},
		{"constant", []float64{5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, "0"},
		{"zeros, then ones", append(make([]float64, 8), 1, 1, 1, 1, 1, 1), "0 8"},
		{"a step", series(8, 100, 120), "0 8"},
		{"a step of less than 5 %", series(8, 100, 104), "0"},
		{"a step of more than 5 %", series(8, 100, 106), "0 8"},
		{"two steps", series(12, 100, 120, 90), "0 12 24"},
		{"up and back", series(12, 100, 120, 100), "0 12 24"},
		{"three runs after", append(series(12, 100), 150, 150, 150), "0"},
		{"four runs after", append(series(12, 100), 150, 150, 150, 150), "0 12"},
		{"too few runs", append(series(5, 100), 150, 150, 150, 150), "0"},
		{"an odd run", append(append(series(8, 100), 900), series(8, 100)...), "0"},
		{"numbers below zero", series(8, -100, -120), "0 8"},
		{"numbers below zero that change little", series(8, -100, -103), "0"},
		{"a large step and a small one", series(20, 100, 150, 153), "0 20"},
		{"a small step and a large one", series(20, 100, 103, 150), "0 40"},
		{"a peak of four runs", slices.Concat(series(20, 100), series(4, 500), series(20, 100)), "0"},
		{"a peak of eight runs", slices.Concat(series(30, 100), series(8, 500), series(30, 100)), "0 30 38"},
		{"three of four in another state", append(series(100, 100), 200, 200, 200, 100, 200, 200, 200, 100, 200, 200, 200, 100), "0"},
		{"a step within the noise of earlier runs", slices.Concat(slices.Repeat([]float64{80, 100, 120, 100}, 13), series(50, 100, 107)), "0"},
		{"great numbers", []float64{1e308, -1e308, 1e308, 1e308, -1e308, 1e308, -1e308, 1e308, 1e308, 1e308, 1e308}, "0"},
	} {
		var got []string
		for _, l := range findLevels(tt.values, leastChange) {
			got = append(got, fmt.Sprint(l.from))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: levels begin at %q; want %q", tt.name, got, tt.want)
		}
	}
}

// The parts are the best ones: all others cost as much or more.
func TestPartitionIsOptimal(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	cost := func(values []float64, ends []int) (sum float64) {
		for _, l := range levelsOf(values, ends) {
			sum += levelPrice + float64(shortSeries-len(values))/8
			for _, v := range values[l.from:l.to] {
				sum += math.Abs(v - l.median)
			}
		}
		return sum
	}
	for range 300 {
		values := make([]float64, 4+r.IntN(11))
		for i := range values {
			values[i] = math.Round(20 * r.NormFloat64())
		}
		best := math.Inf(1)
		for cuts := range 1 << (len(values) - 1) { // all ways to cut
			var ends []int
			least, from := len(values), 0
			for i := 1; i <= len(values); i++ {
				if i == len(values) || cuts>>(i-1)&1 == 1 {
					least, ends, from = min(least, i-from), append(ends, i), i
				}
			}
			if least >= leastAfter {
				best = min(best, cost(values, ends))
			}
		}
		if ends := partition(values, 1); math.Abs(cost(values, ends)-best) > 1e-6 {
			t.Fatalf("partition(%v) = %v, which costs %v; the best costs %v", values, ends, cost(values, ends), best)
		}
	}
}

// A regression that a later level undid is over.
func TestKinds(t *testing.T) {
	for _, tt := range []struct {
		worse  int
		levels []float64
		want   string
	}{
		{1, []float64{100, 120}, "regression"},
		{1, []float64{100, 80}, "improvement"},
		{-1, []float64{100, 80}, "regression"},
		{-1, []float64{100, 120}, "improvement"},
		{0, []float64{100, 80}, "change"},
		{1, []float64{100, 120, 101}, "recovered improvement"},
		{1, []float64{100, 130, 115}, "regression improvement"},
		{1, []float64{100, 120, 140, 90}, "recovered recovered improvement"},
		{1, []float64{-100, -80}, "regression"},
	} {
		s := Series{worse: tt.worse}
		for _, v := range series(14, tt.levels...) {
			s.Points = append(s.Points, Point{Value: v, run: &Run{}})
		}
		s.setLevels()
		var got []string
		for _, c := range s.findChanges() {
			got = append(got, c.Kind)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%d, %v: %q; want %q", tt.worse, tt.levels, got, tt.want)
		}
	}
}
