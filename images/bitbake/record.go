package bitbake

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"slipway/layers/localfile"
)

// RecordName is a Record's file in a board's folder, PageName the page beside it. A run that builds
// nothing has its own files, so that the last build's stay.
const (
	RecordName = "build.json"
	PageName   = "build.html"

	dryRunRecordName = "dryrun.json"
	dryRunPageName   = "dryrun.html"
	dryRunLogName    = "dryrun.log"
)

// The limits of a record. A large image has about 10,000 tasks.
const (
	maxTasks    = 50_000
	maxFailures = 20
	maxMessages = 100
	maxText     = 500 // bytes of a name or a message
	maxTail     = 4096
	maxRecord   = 64 << 20
)

// State is the state of a build.
type State string

// A build that is Running though no slipway runs was cut off: by a crash, a kill or a power cut.
const (
	Running     State = "running"
	Succeeded   State = "succeeded"
	Failed      State = "failed"
	Interrupted State = "interrupted"
)

// Record describes one run of bitbake, also one that failed or was interrupted.
type Record struct {
	Board   string   `json:"board"`
	Machine string   `json:"machine"`
	Targets []string `json:"targets"`
	Task    string   `json:"task"`
	DryRun  bool     `json:"dryRun,omitempty"`
	Parse   bool     `json:"parseOnly,omitempty"`
	Commits []Commit `json:"commits,omitempty"`
	Version string   `json:"bitbake"` // "2.8.1"

	State   State     `json:"state"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Exit    int       `json:"exit"` // bitbake's exit status; -1 if it has none
	Log     string    `json:"log"`

	Parsed    Parsed            `json:"parsed"`
	Counts    Counts            `json:"counts"`
	Setscene  Setscene          `json:"setscene"`
	Workers   int               `json:"workers"` // the most tasks that ran at one time
	Tasks     []Task            `json:"tasks"`
	Failures  []Failure         `json:"failures,omitempty"`
	Errors    []string          `json:"errors,omitempty"`
	Warnings  []string          `json:"warnings,omitempty"`
	Disk      Disk              `json:"disk"`
	Load      *Load             `json:"load,omitempty"`      // nil in a run of less than a second
	Variables map[string]string `json:"variables,omitempty"` // where bitbake puts things
	Cut       bool              `json:"cut,omitempty"`       // there was more than a record keeps
	Queued    map[string]string `json:"-"`                   // of each task in the queue: its recipe's file
}

// Commit is the commit of a repository that a build used.
type Commit struct {
	Repo   string `json:"repo"`
	URL    string `json:"url,omitempty"` // of the server; "" for a folder that was here
	Commit string `json:"commit"`
	Edited bool   `json:"edited,omitempty"`
	Local  string `json:"local,omitempty"` // the user's folder that was taken in place of a checkout
}

// Parsed is the result of parsing the recipes.
type Parsed struct {
	Recipes int64 `json:"recipes"`
	Skipped int64 `json:"skipped"`
	TookMS  int64 `json:"tookMs"`
}

// Counts are of the tasks that the targets need.
type Counts struct {
	Total    int64 `json:"total"`
	Ran      int64 `json:"ran"`
	Failed   int64 `json:"failed"`
	Existing int64 `json:"existing"` // done by an earlier build in this folder
	Covered  int64 `json:"covered"`  // not needed, since the result of a later task exists already
}

// Setscene counts the tasks that could be taken from shared state.
type Setscene struct {
	Hits   int64 `json:"hits"`
	Misses int64 `json:"misses"` // run themselves, also those found that could not be unpacked
}

// The result of a task.
const (
	TaskSucceeded = "succeeded"
	TaskFailed    = "failed"
	TaskStopped   = "stopped" // it had not ended when bitbake had
)

// How shared state served a task.
const (
	Hit    = "hit"    // restored from shared state; the times are those of the unpacking
	Miss   = "miss"   // not there
	Broken = "broken" // there, but its unpacking failed
)

// Task is one task that ran, or that shared state replaced.
type Task struct {
	Recipe  string `json:"recipe"`
	Version string `json:"version,omitempty"`
	Config  string `json:"multiconfig,omitempty"`
	Task    string `json:"task"`
	StartMS int64  `json:"startMs"` // since the build started
	TookMS  int64  `json:"tookMs"`
	Outcome string `json:"outcome"`
	Shared  string `json:"sharedState,omitempty"` // "" for a task that is never shared
	Log     string `json:"log,omitempty"`
	// Critical is true for the tasks of the longest chain in which each needs the one before it.
	Critical bool `json:"critical,omitempty"`
}

// Failure is a task that failed.
type Failure struct {
	Recipe string `json:"recipe"`
	Task   string `json:"task"`
	Log    string `json:"log,omitempty"`
	Tail   string `json:"tail,omitempty"`
	Why    string `json:"why,omitempty"` // where bitbake's words are known
	Next   string `json:"next,omitempty"`
}

// Disk is the space of the file system that the build folder is on.
type Disk struct {
	FreeBytesBefore int64 `json:"freeBytesBefore"`
	FreeBytesAfter  int64 `json:"freeBytesAfter"`
	Full            bool  `json:"full,omitempty"` // at some time while it ran
}

// Used returns by how much the free space shrank, by this build and by all other writers.
func (d Disk) Used() int64 { return d.FreeBytesBefore - d.FreeBytesAfter }

// fileNames returns the names of the record and its page, other ones for a run that builds nothing.
func (r Record) fileNames() (record, page string) {
	if r.DryRun || r.Parse {
		return dryRunRecordName, dryRunPageName
	}
	return RecordName, PageName
}

// save writes the record into dir, and after the run its page. At the start it removes an old page.
func (r Record) save(dir string) error {
	record, page := r.fileNames()
	if err := localfile.WriteJSON(filepath.Join(dir, record), r, 0o644); err != nil {
		return err
	}
	if r.State == Running { // an earlier build's page would be taken for this one's
		return localfile.Remove(filepath.Join(dir, page))
	}
	html, err := r.renderPage()
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, page), html, 0o644)
}

// Open reads the record of the last build in a board's folder.
func Open(dir string) (Record, error) { return openRecord(filepath.Join(dir, RecordName)) }

// openRecord reads a record from its file.
func openRecord(path string) (Record, error) {
	f, err := localfile.Open(path)
	if err != nil {
		return Record{}, fmt.Errorf("no build is recorded here; build the board first: %w", err)
	}
	defer f.Close()
	var r Record
	if err := json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r); err != nil {
		return Record{}, fmt.Errorf("%s: %w; build the board again", path, err)
	}
	return r, nil
}
