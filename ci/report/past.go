package report

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
)

// Earlier reports of a board lie below its folder, for the lines that show how a metric
// went.
const (
	pastFolder  = "reports"
	maxPast     = 30
	pastPattern = "20060102T150405.000Z"
)

// keep puts a copy of the report among the earlier ones, and removes the oldest.
func (r Report) keep(dir string) error {
	dir = filepath.Join(dir, pastFolder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := r.Tidy().json()
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

// pastNames are the files of earlier reports, the oldest first.
func pastNames(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "[0-9]*Z.json"))
	slices.Sort(names)
	return names, err
}

// past are the earlier reports of the same board that are older than r. One that cannot
// be read is no reason to have no report now.
func (r Report) past(dir string) []Report {
	names, _ := pastNames(filepath.Join(dir, pastFolder))
	var all []Report
	for _, name := range names[max(len(names)-maxPast, 0):] {
		if reports, err := ReadReports(name); err == nil && reports[0].Started.Before(r.Started) && r.ofSameBoard(reports[0]) {
			all = append(all, reports[0])
		}
	}
	return all
}

// ofSameBoard goes by the serial, else by what the boards were reached as: a virtual
// board, by the name of its kind.
func (r Report) ofSameBoard(other Report) bool {
	if serial := r.Identity.Serial; serial != "" || other.Identity.Serial != "" {
		return serial == other.Identity.Serial
	}
	return cmp.Or(r.Target, r.Board) == cmp.Or(other.Target, other.Board)
}
