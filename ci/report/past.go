package report

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
)

// Earlier reports of a board are below its folder, for the lines through the values of
// a metric.
const (
	pastFolder  = "reports"
	maxPast     = 30
	pastPattern = "20060102T150405.000Z"
)

// saveCopy saves a copy of the report among the earlier ones. It removes the oldest.
func (r Report) saveCopy(dir string) error {
	dir = filepath.Join(dir, pastFolder)
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

// pastNames returns the files of earlier reports, the oldest first.
func pastNames(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "[0-9]*Z.json"))
	slices.Sort(names)
	return names, err
}

// earlierReports returns the reports of the same board that are older than r. It skips
// those that cannot be read.
func (r Report) earlierReports(dir string) []Report {
	names, _ := pastNames(filepath.Join(dir, pastFolder))
	var all []Report
	for _, name := range names[max(len(names)-maxPast, 0):] {
		if reports, err := ReadReports(name); err == nil && reports[0].Started.Before(r.Started) && r.ofSameBoard(reports[0]) {
			all = append(all, reports[0])
		}
	}
	return all
}

// ofSameBoard compares the serials, or else the targets. For a virtual board it
// compares the names of the boards.
func (r Report) ofSameBoard(other Report) bool {
	if serial := r.Identity.Serial; serial != "" || other.Identity.Serial != "" {
		return serial == other.Identity.Serial
	}
	return cmp.Or(r.Target, r.Board) == cmp.Or(other.Target, other.Board)
}
