// Package trends finds what became slower, larger or worse over the runs of a branch: from
// reports and artifacts that CI jobs left in folders. It runs nothing.
package trends

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"slipway/layers/git"
	"slipway/layers/plaintext"
)

// leastChange is the smallest change that counts, as a share of the level before.
const leastChange = 0.05

// Limits for the runs that are read and shown.
const (
	MaxLast   = 500 // runs of a device
	maxSeries = 2000
	maxSteady = 500 // checks that are listed
)

// Options choose which runs are compared.
type Options struct {
	Branch string // "" is the one that most runs are of
	Board  string // "" is all
	Last   int    // runs of each device
}

// Trends is what Of found in the runs of one branch.
type Trends struct {
	Branch  string    `json:"branch,omitempty"`
	Boards  []string  `json:"boards"`
	Runs    int       `json:"runs"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Changes []Change  `json:"changes"` // regressions first
	Checks  []Check   `json:"unsteadyChecks"`
	Series  []Series  `json:"series"`
	Notes   []string  `json:"notes,omitempty"` // what was left out
}

// Series is one metric over the runs of a board or device.
type Series struct {
	Board  string  `json:"board"`
	Device string  `json:"device,omitempty"`
	Name   string  `json:"name"`
	Of     string  `json:"of,omitempty"` // the suite and the check, or what ran the board
	Unit   string  `json:"unit,omitempty"`
	Worse  string  `json:"worse,omitempty"` // "higher" or "lower"
	Points []Point `json:"points"`
	Levels []Level `json:"levels"`

	worse int
}

// Point is one value.
type Point struct {
	Run    string    `json:"run"`
	Time   time.Time `json:"time"`
	Commit string    `json:"commit,omitempty"`
	Value  float64   `json:"value"`

	run *Run
}

// Level is a part of a series in which the values only scatter around their median.
type Level struct {
	Median float64 `json:"median"`
	First  int     `json:"first"` // point
	Runs   int     `json:"runs"`
}

// The kinds of changes.
const (
	Regression  = "regression"
	Recovered   = "recovered" // a regression that a later level undid
	Improvement = "improvement"
	Changed     = "change" // nobody says which way is worse
)

var kinds = []string{Regression, Changed, Improvement, Recovered}

// Change is a series whose level changed, or a check that always passed and now fails.
type Change struct {
	Kind    string    `json:"kind"`
	Board   string    `json:"board"`
	Device  string    `json:"device,omitempty"`
	Name    string    `json:"name"`
	Of      string    `json:"of,omitempty"`
	Unit    string    `json:"unit,omitempty"`
	Check   bool      `json:"check,omitempty"` // From and To are then shares of failed runs
	From    float64   `json:"from"`
	To      float64   `json:"to"`
	Percent *float64  `json:"percent,omitempty"` // nil where From is 0
	Runs    int       `json:"runs"`              // since
	Began   string    `json:"began"`             // the first run of it
	Time    time.Time `json:"time"`
	Range   Range     `json:"commits"`

	series *Series
}

// Of chooses the last runs of a branch. It finds their series, changes and unsteady checks.
func Of(runs Runs, opt Options) (Trends, error) {
	t := Trends{Branch: opt.Branch, Changes: []Change{}, Checks: []Check{}, Series: []Series{}, Notes: runs.Notes}
	chosen, err := t.choose(runs.All, opt)
	if err != nil {
		return t, err
	}
	t.Runs, t.From, t.To = len(chosen), chosen[0].Time, chosen[len(chosen)-1].Time
	for _, r := range chosen {
		if !slices.Contains(t.Boards, r.Board) {
			t.Boards = append(t.Boards, r.Board)
		}
	}
	slices.Sort(t.Boards)
	t.Series = t.collect(chosen)
	for i := range t.Series {
		t.Changes = append(t.Changes, t.Series[i].findChanges()...)
	}
	t.addChecks(chosen)
	slices.SortStableFunc(t.Changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)), b.Time.Compare(a.Time))
	})
	return t, nil
}

// choose returns the last opt.Last runs of each device of opt.Board ("" for all) on t.Branch. If
// that is "", it first sets it to the branch of most runs. It notes how many runs are of other
// branches. No run is an error.
func (t *Trends) choose(all []Run, opt Options) ([]*Run, error) {
	var of []*Run
	branches, boards := map[string]int{}, map[string]int{}
	for i := range all {
		boards[all[i].Board]++
		if opt.Board == "" || all[i].Board == opt.Board {
			branches[all[i].Source.Branch]++
			of = append(of, &all[i])
		}
	}
	switch {
	case len(all) == 0:
		return nil, errors.New("no run was found: a run is a folder with report.json or artifact.json\nnext: trends build  # or another folder that has a folder for each run")
	case len(of) == 0:
		return nil, fmt.Errorf("no run of board %q; there are runs of %s\nnext: repeat the line with --board=%s", plaintext.OneLine(opt.Board), names(boards), plaintext.Quote(slices.Sorted(maps.Keys(boards))[0]))
	case t.Branch == "":
		t.Branch = mostUsed(branches)
	case branches[t.Branch] == 0:
		return nil, fmt.Errorf("no run of branch %q; there are runs of %s\nnext: repeat the line without --branch", plaintext.OneLine(t.Branch), cmp.Or(names(branches), "no known branch"))
	}
	other := 0
	left := map[device]int{}
	var chosen []*Run
	for _, r := range slices.Backward(of) {
		key := device{r.Board, r.Device}
		switch {
		case r.Source.Branch != t.Branch:
			other++
		case left[key] < opt.Last:
			left[key]++
			chosen = append(chosen, r)
		}
	}
	if other > 0 {
		t.Notes = append(slices.Clip(t.Notes), fmt.Sprintf("%s of other branches, or of no known one, left out", count(other, "run")))
	}
	slices.Reverse(chosen)
	return chosen, nil
}

type device struct{ board, device string }

// mostUsed returns the branch with the most runs, of equals the first, or "" if no run has one.
func mostUsed(branches map[string]int) string {
	best := ""
	for _, name := range slices.Sorted(maps.Keys(branches)) {
		if best == "" || branches[name] > branches[best] {
			best = name
		}
	}
	return best
}

// names returns a map's first ten keys (not ""), sorted and joined, and how many more there are.
func names(m map[string]int) string {
	all := slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(name string) bool { return name == "" })
	if rest := len(all) - 10; rest > 0 {
		all = append(all[:10], fmt.Sprintf("%d more", rest))
	}
	return strings.Join(all, ", ")
}

func count(n int, noun string) string {
	return fmt.Sprintf("%d %s%s", n, noun, plaintext.Either(n == 1, "", "s"))
}

// collect groups the values of the runs into at most maxSeries series with their levels, and notes
// how many values it leaves out. It counts an artifact's once, in the first run that has it.
func (t *Trends) collect(runs []*Run) []Series {
	type key struct {
		device
		metric
	}
	type build struct {
		board string
		built time.Time
	}
	at, seen := map[key]int{}, map[build]bool{}
	var all []Series
	leftOut := 0
	add := func(r *Run, dev string, v value) {
		k := key{device{r.Board, dev}, v.metric}
		i, ok := at[k]
		if !ok {
			if len(all) == maxSeries {
				leftOut++
				return
			}
			i = len(all)
			at[k] = i
			all = append(all, Series{Board: r.Board, Device: dev, Name: v.name, Of: v.of, Unit: v.unit})
		}
		s := &all[i]
		s.worse = v.worse
		s.Points = append(s.Points, Point{r.Name, r.Time, r.Source.Commit, v.v, r})
	}
	for _, r := range runs {
		if b := (build{r.Board, r.built}); !seen[b] && !r.built.IsZero() {
			seen[b] = true
			for _, v := range r.build {
				add(r, "", v)
			}
		}
		for _, v := range r.device {
			add(r, r.Device, v)
		}
	}
	if leftOut > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%s of more than %d series left out", count(leftOut, "value"), maxSeries))
	}
	slices.SortStableFunc(all, func(a, b Series) int {
		return cmp.Or(strings.Compare(a.Board, b.Board), strings.Compare(a.Device, b.Device))
	})
	for i := range all {
		all[i].setLevels()
	}
	return all
}

// setLevels keeps the last MaxLast values, finds their levels, and sets s.Worse to higher or lower.
func (s *Series) setLevels() {
	s.Points = s.Points[max(0, len(s.Points)-MaxLast):]
	s.Worse = map[int]string{1: "higher", -1: "lower"}[s.worse]
	values := make([]float64, len(s.Points))
	for i, p := range s.Points {
		values[i] = p.Value
	}
	for _, l := range findLevels(values, leastChange) {
		s.Levels = append(s.Levels, Level{l.median, l.from, l.to - l.from})
	}
}

// findChanges returns a change for each level of the series after the first.
func (s *Series) findChanges() (all []Change) {
	for i := 1; i < len(s.Levels); i++ {
		was, is := s.Levels[i-1], s.Levels[i]
		first := s.Points[is.First]
		c := Change{
			Kind: s.kindOf(i), Board: s.Board, Device: s.Device, Name: s.Name, Of: s.Of, Unit: s.Unit,
			From: was.Median, To: is.Median, Runs: len(s.Points) - is.First, Began: first.Run, Time: first.Time,
			Range: rangeOf(s.pointRuns(), is.First), series: s,
		}
		if percent := 100 * (is.Median - was.Median) / math.Abs(was.Median); !math.IsNaN(percent) && !math.IsInf(percent, 0) {
			c.Percent = &percent
		}
		all = append(all, c)
	}
	return all
}

func (s *Series) pointRuns() []*Run {
	all := make([]*Run, len(s.Points))
	for i, p := range s.Points {
		all[i] = p.run
	}
	return all
}

// kindOf returns the kind of the change to level i: Recovered if a later one is as good as i-1.
func (s *Series) kindOf(i int) string {
	was, worse := s.Levels[i-1].Median, float64(s.worse)
	switch {
	case s.worse == 0:
		return Changed
	case worse*(s.Levels[i].Median-was) < 0:
		return Improvement
	}
	for _, later := range s.Levels[i+1:] {
		if worse*(later.Median-was) < leastChange*math.Abs(was) {
			return Recovered
		}
	}
	return Regression
}

// Regressions returns the regressions, which are first in t.Changes.
func (t Trends) Regressions() []Change {
	n := slices.IndexFunc(t.Changes, func(c Change) bool { return c.Kind != Regression })
	if n < 0 {
		n = len(t.Changes)
	}
	return t.Changes[:n]
}

// Err returns an error with the next step if there are regressions, else nil.
func (t Trends) Err() error {
	all := t.Regressions()
	if len(all) == 0 {
		return nil
	}
	next := "git log  # for the commits that the lines above name"
	r := all[0].Range
	switch {
	case r.Before == "" && r.After == "":
		next = "repeat the line with --html=trends.html  # draws each run; their reports name no commit"
	case git.IsCommit(r.Before) && git.IsCommit(r.After) && r.Before != r.After:
		next = fmt.Sprintf("git log %s..%s", r.Before, r.After)
	}
	return fmt.Errorf("%s: %w\nnext: %s", count(len(all), "regression"), errRegressed, next)
}

var errRegressed = errors.New("the runs became worse")
