package trends

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	leastRed   = 3 // runs that fail at the end of a check that always passed
	leastGreen = 5 // runs that passed before
	leastFlips = 3 // of an unsteady check: it began to fail, passed again, and fails again
)

// Check is a check or stage of one device, with its results over the runs.
type Check struct {
	Board  string `json:"board"`
	Device string `json:"device,omitempty"`
	Name   string `json:"name"`
	Of     string `json:"of"` // its suite, or "stage"
	Runs   int    `json:"runs"`
	Failed int    `json:"failed"`
	Flips  int    `json:"flips"`      // from passed to failed and back
	Mixed  int    `json:"sameImages"` // images on which it passed and failed
	Last   []bool `json:"-"`          // whether the last runs failed

	runs []*Run
}

// addChecks adds checks that always passed and now fail to t.Changes, and unsteady ones to
// t.Checks: at most maxSteady, those with the most flips first. It notes how many it leaves out.
func (t *Trends) addChecks(runs []*Run) {
	for _, h := range histories(runs) {
		red := h.failuresAtEnd()
		switch {
		case h.Failed == red && red >= leastRed && h.Runs-red >= leastGreen:
			t.Changes = append(t.Changes, h.regressionOf(red))
		case h.Flips >= leastFlips || h.Mixed > 0:
			t.Checks = append(t.Checks, h)
		}
	}
	slices.SortStableFunc(t.Checks, func(a, b Check) int {
		return cmp.Or(cmp.Compare(b.Flips, a.Flips), strings.Compare(a.Board, b.Board))
	})
	if rest := len(t.Checks) - maxSteady; rest > 0 {
		t.Checks = t.Checks[:maxSteady]
		t.Notes = append(t.Notes, fmt.Sprintf("%s that are unsteady left out", count(rest, "check")))
	}
}

// histories collects the results of each stage and check of each device. Checks of one name count
// once in a run, as failed if one failed.
func histories(runs []*Run) []Check {
	type key struct {
		device
		of, name string
	}
	at := map[key]int{}
	var all []Check
	for _, r := range runs {
		here := map[key]bool{} // two checks of one name are one that fails if any does
		for _, c := range r.checks {
			k := key{device{r.Board, r.Device}, c.of, c.name}
			i, ok := at[k]
			if !ok {
				i = len(all)
				at[k] = i
				all = append(all, Check{Board: r.Board, Device: r.Device, Name: c.name, Of: c.of})
			}
			h := &all[i]
			if here[k] {
				h.Last[len(h.Last)-1] = h.Last[len(h.Last)-1] || c.failed
				continue
			}
			here[k] = true
			h.runs, h.Last = append(h.runs, r), append(h.Last, c.failed)
		}
	}
	for i := range all {
		all[i].tally()
	}
	return all
}

// tally counts runs, failures, flips, and the images on which the check both passed and failed.
func (c *Check) tally() {
	const passed, failed = 1, 2
	images := map[string]int{}
	c.Runs = len(c.Last)
	for i, bad := range c.Last {
		how := passed
		if bad {
			how = failed
			c.Failed++
		}
		if i > 0 && bad != c.Last[i-1] {
			c.Flips++
		}
		if key := c.runs[i].Key; key != "" {
			images[key] |= how
		}
	}
	for _, how := range images {
		if how == passed|failed {
			c.Mixed++
		}
	}
}

// failuresAtEnd returns how many runs at the end failed without a pass between.
func (c Check) failuresAtEnd() (n int) {
	for _, bad := range slices.Backward(c.Last) {
		if !bad {
			break
		}
		n++
	}
	return n
}

// regressionOf returns the change of a check that always passed before its last red (failed) runs.
func (c Check) regressionOf(red int) Change {
	first := c.runs[c.Runs-red]
	return Change{
		Kind: Regression, Check: true, Board: c.Board, Device: c.Device, Name: c.Name, Of: c.Of, From: 0, To: 1, Runs: red,
		Began: first.Name, Time: first.Time, Range: rangeOf(c.runs, c.Runs-red),
	}
}
