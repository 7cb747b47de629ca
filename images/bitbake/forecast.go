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
	// Of the tasks that are left, so many must have run before for a time to be said,
	// and as many as that may be known that are not left.
	enough = 0.8
)

// forecast is how long each task of a board took when it last ran, and what is
// left of them.
type forecast struct {
	Tasks    map[string]int64 `json:"tasksMs"`
	Parallel float64          `json:"parallel"` // how many ran at a time, on average

	open      map[string]int64 // those that this build has not had yet
	openSumMS int64
}

// forecastKey is a task's key without its folders: clones move, recipes do not.
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

// openForecast reads what earlier builds in dir took. To have none is no error:
// the file only serves to say how long it will be.
func openForecast(dir string) forecast {
	f := forecast{Tasks: map[string]int64{}}
	file, err := localfile.Open(filepath.Join(dir, durationsName))
	if err == nil {
		defer file.Close()
		if json.NewDecoder(io.LimitReader(file, maxDurations)).Decode(&f) != nil || f.Tasks == nil {
			f = forecast{Tasks: map[string]int64{}}
		}
	}
	f.open = maps.Clone(f.Tasks)
	for _, ms := range f.open {
		f.openSumMS += ms
	}
	return f
}

// save keeps the durations for the next build, after one that ran something.
func (f forecast) save(dir string, r Record) error {
	if r.Counts.Ran == 0 || r.DryRun {
		return nil
	}
	if parallel := r.parallel(); parallel > 0 {
		f.Parallel = parallel
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	err = renameio.WriteFile(filepath.Join(dir, durationsName), text, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the board's folder was removed meanwhile
	}
	return err
}

// parallel is how many tasks ran at a time, on average.
func (r Record) parallel() float64 {
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

func (f *forecast) done(k string) {
	if ms, open := f.open[k]; open {
		delete(f.open, k)
		f.openSumMS -= ms
	}
}

func (f *forecast) took(k string, ms int64) {
	f.done(k)
	if _, known := f.Tasks[k]; known || len(f.Tasks) < maxTasks {
		f.Tasks[k] = ms
	}
}

// begunTask is a task at work and for how long.
type begunTask struct {
	key   string
	since time.Duration
}

// left says how long the tasks that remain will take, "" where too few of them are
// known, or tasks of other targets are among those that are.
func (f *forecast) left(remaining int64, begun []begunTask) string {
	known := float64(len(f.open))
	if remaining <= 0 || f.Parallel < 1 || known < enough*float64(remaining) || known*enough > float64(remaining) {
		return ""
	}
	rest, longest := time.Duration(f.openSumMS)*time.Millisecond, time.Duration(0)
	for _, b := range begun {
		took := time.Duration(f.open[b.key]) * time.Millisecond
		rest -= min(took, b.since)
		longest = max(longest, took-b.since)
	}
	return said(max(time.Duration(float64(rest)/f.Parallel), longest))
}

func said(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "less than a minute left"
	case d < 2*time.Hour:
		return fmt.Sprintf("about %d min left", int(d.Minutes()+0.5))
	}
	return fmt.Sprintf("about %.1f h left", d.Hours())
}
