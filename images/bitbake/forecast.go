package bitbake

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"slipway/layers/localfile"
)

const (
	durationsName = "bitbake-durations.json"
	maxDurations  = 32 << 20
	// minKnownShare is the share of the remaining tasks that must have run before. The
	// share also limits the known tasks that do not remain.
	minKnownShare = 0.8
)

// forecast holds the last duration of each task of a board, and which of them still have to run.
type forecast struct {
	Tasks    map[string]int64 `json:"tasksMs"`
	Parallel float64          `json:"parallel"` // how many ran at a time, on average

	remaining   map[string]int64 // those that this build has not had yet
	remainingMS int64
}

// forecastKey returns a taskKey without the folder of the recipe's file, which moves. It keeps the
// CLASS of virtual:CLASS.
func forecastKey(k string) string {
	config, rest, _ := strings.Cut(k, "|")
	class := ""
	if i := strings.LastIndexByte(rest, '/'); i >= 0 {
		if rest[:i] != "" && rest[0] != '/' { // virtual:native:/...
			class, _, _ = strings.Cut(rest, "/")
		}
		rest = rest[i+1:]
	}
	return config + "|" + class + rest
}

// loadForecast reads the durations of earlier builds in dir, all as tasks still to run. A missing
// or broken file gives an empty forecast, because it only serves to estimate the time left.
func loadForecast(dir string) forecast {
	f := forecast{Tasks: map[string]int64{}}
	file, err := localfile.Open(filepath.Join(dir, durationsName))
	if err == nil {
		defer file.Close()
		if json.NewDecoder(io.LimitReader(file, maxDurations)).Decode(&f) != nil || f.Tasks == nil {
			f = forecast{Tasks: map[string]int64{}}
		}
	}
	f.remaining = maps.Clone(f.Tasks)
	for _, ms := range f.remaining {
		f.remainingMS += ms
	}
	return f
}

// saveDurations writes the durations for the next forecast into dir, except of a dry run or a run
// without tasks. A missing dir is no error.
func (f forecast) saveDurations(dir string, r Record) error {
	if r.Counts.Ran == 0 || r.DryRun {
		return nil
	}
	if parallel := r.averageParallel(); parallel > 0 {
		f.Parallel = parallel
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	err = renameio.WriteFile(filepath.Join(dir, durationsName), text, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the board's folder was removed during the build
	}
	return err
}

// averageParallel returns how many tasks ran at a time on average, at least 1; 0 without work.
func (r Record) averageParallel() float64 {
	var work, first, last int64 = 0, -1, 0
	for _, t := range r.Tasks {
		if first < 0 || t.StartMS < first {
			first = t.StartMS
		}
		work, last = work+t.TookMS, max(last, t.StartMS+t.TookMS)
	}
	if last <= first || work == 0 {
		return 0
	}
	return max(float64(work)/float64(last-first), 1)
}

// dropTask removes a task from the tasks that are still to run.
func (f *forecast) dropTask(k string) {
	if ms, open := f.remaining[k]; open {
		delete(f.remaining, k)
		f.remainingMS -= ms
	}
}

// addDuration records how long a task took, up to maxTasks, and removes it from those still to run.
func (f *forecast) addDuration(k string, ms int64) {
	f.dropTask(k)
	if _, known := f.Tasks[k]; known || len(f.Tasks) < maxTasks {
		f.Tasks[k] = ms
	}
}

// begunTask is a running task with the time since it started.
type begunTask struct {
	key   string
	since time.Duration
}

// timeLeft returns an estimate, in words, of how long the remaining tasks take. It returns "" if
// the forecast knows too few of them, or knows so many more that earlier builds had other targets.
func (f *forecast) timeLeft(remaining int64, begun []begunTask) string {
	known := float64(len(f.remaining))
	if remaining <= 0 || f.Parallel < 1 || known < minKnownShare*float64(remaining) || known*minKnownShare > float64(remaining) {
		return ""
	}
	rest, longest := time.Duration(f.remainingMS)*time.Millisecond, time.Duration(0)
	for _, b := range begun {
		took := time.Duration(f.remaining[b.key]) * time.Millisecond
		rest -= min(took, b.since)
		longest = max(longest, took-b.since)
	}
	return formatTimeLeft(max(time.Duration(float64(rest)/f.Parallel), longest))
}

// formatTimeLeft returns the estimate in words, such as "about 5 min left".
func formatTimeLeft(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "less than a minute left"
	case d < 2*time.Hour:
		return fmt.Sprintf("about %d min left", int(d.Minutes()+0.5))
	}
	return fmt.Sprintf("about %.1f h left", d.Hours())
}
