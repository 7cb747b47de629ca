package report

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
)

// Earlier reports of a board are below its folder, for the lines through the values of
// a metric, and for how often a check failed.
const (
	PastFolder  = "reports"
	maxPast     = 30 // runs, with the one that is shown
	pastPattern = "20060102T150405.000Z"
)

// saveCopy saves a copy of the report in dir/reports, and removes the oldest copies above maxPast.
func (r Report) saveCopy(dir string) error {
	dir = filepath.Join(dir, PastFolder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := r.Tidy().indentedJSON()
	if err != nil {
		return err
	}
	name := r.Started.UTC().Format(pastPattern) + ".json"
	if err := renameio.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		return err
	}
	names, err := pastNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names[:max(len(names)-maxPast, 0)] {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// pastNames returns the paths of the earlier reports in dir, the oldest first.
func pastNames(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "[0-9]*Z.json"))
	slices.Sort(names)
	return names, err
}

// earlierReports returns the readable reports in dir of the same board that are older than r.
func (r Report) earlierReports(dir string) []Report {
	names, _ := pastNames(filepath.Join(dir, PastFolder))
	var all []Report
	for _, name := range names[max(len(names)-maxPast, 0):] {
		if reports, err := ReadReports(name); err == nil && reports[0].Started.Before(r.Started) && r.ofSameBoard(reports[0]) {
			all = append(all, reports[0])
		}
	}
	return all[max(len(all)-(maxPast-1), 0):]
}

// ofSameBoard reports whether two reports are of the same board. If one of them has a serial, both
// must have the same. Otherwise their targets must be the same, or the names of their boards if they
// have no target.
func (r Report) ofSameBoard(other Report) bool {
	if serial := r.Identity.Serial; serial != "" || other.Identity.Serial != "" {
		return serial == other.Identity.Serial
	}
	return cmp.Or(r.Target, r.Board) == cmp.Or(other.Target, other.Board)
}

// failureKey identifies a stage or check across the reports of several runs.
type failureKey struct{ where, name string }

func (f Failure) key() failureKey { return failureKey{f.Where, f.Name} }

// oftenByKey maps a stage or check to words like "failed 3 of the last 30 runs".
type oftenByKey map[failureKey]string

// countFailures returns words for each stage and check that failed in this run or in past. Runs
// that skipped it do not count.
func (r Report) countFailures(past []Report) oftenByKey {
	runs, failures := map[failureKey]int{}, map[failureKey]int{}
	for _, one := range append(slices.Clone(past), r) {
		for key, failed := range one.pointsRun() {
			runs[key]++
			if failed {
				failures[key]++
			}
		}
	}
	often := oftenByKey{}
	for key, n := range failures {
		if runs[key] > 1 {
			often[key] = fmt.Sprintf("failed %d of the last %d runs", n, runs[key])
		}
	}
	return often
}

// pointsRun returns the stages and checks that were not skipped, and whether each failed.
func (r Report) pointsRun() map[failureKey]bool {
	all := map[failureKey]bool{}
	for _, p := range r.listPoints() {
		if key := p.failure().key(); p.Status != Skipped {
			all[key] = all[key] || p.Status == Failed
		}
	}
	return all
}
