package report

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"slipway/layers/localfile"
)

// Earlier reports of a board are below its folder. Package trends reads them.
const (
	PastFolder  = "reports"
	maxPast     = 30 // runs
	pastPattern = "20060102T150405.000Z"
)

// saveCopy saves a copy of the report in dir/reports, and removes the oldest copies above maxPast.
func (r Report) saveCopy(dir string) error {
	dir = filepath.Join(dir, PastFolder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := r.Started.UTC().Format(pastPattern) + ".json"
	if err := localfile.WriteJSON(filepath.Join(dir, name), r.Tidy(), 0o644); err != nil {
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
