// Package job has what hub and station tell each other: the forms of jobs, boards and stations, and
// the requests. It also runs a job on a station, in the job's folder.
package job

import (
	"cmp"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"slipway/ci/fleet"
	"slipway/flash/place"
	"slipway/images"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
)

// Version is the version of all forms.
const Version = 1

// ErrNewer is of a form with a higher version.
var ErrNewer = errors.New("made by a newer Slipway")

// Form is the version of a form. A higher one than Version is not read.
type Form int

// UnmarshalJSON reads a version.
func (f *Form) UnmarshalJSON(data []byte) error {
	var n int
	if err := json.Unmarshal(data, &n); err != nil {
		return err
	}
	if n > Version {
		return fmt.Errorf("version %d is %w, and this one knows %d", n, ErrNewer, Version)
	}
	*f = Form(n)
	return nil
}

// maxFormBytes limits a form before it is parsed.
const maxFormBytes = 64 << 10

// Builder is the name of what a build works on. No board may have it, so a station has one build at a
// time as it has one job for a board.
const Builder = "@build"

// Job is work on one board, in order, or a build.
type Job struct {
	V        Form   `json:"v"`
	ID       string `json:"id"`
	Station  string `json:"station"`        // that has the board, or that claimed the build
	Arch     string `json:"arch,omitempty"` // of the machines that may claim a build
	Name     string `json:"name"`           // of the board on the station, or Builder
	Board    string `json:"board"`          // its kind
	Artifact string `json:"artifact,omitempty"`
	Project  string `json:"project,omitempty"` // sha256:… of the user's boards
	Steps    []Step `json:"steps"`

	LimitMS       int64  `json:"limitMs"`
	StartWithinMS int64  `json:"startWithinMs"`
	By            string `json:"by"`
	Rollout       string `json:"rollout,omitempty"`
	Wave          int    `json:"wave,omitempty"`

	Before   *Had    `json:"before,omitempty"` // the job, as the hub knew it at the first claim
	State    State   `json:"state"`
	Stop     Stop    `json:"stop,omitempty"`
	StopBy   string  `json:"stopBy,omitempty"`
	Restored bool    `json:"restored,omitempty"` // by a station, after the hub lost it
	Claim    *Claim  `json:"claim,omitempty"`
	Result   *Result `json:"result,omitempty"`
}

// Subject returns what a job works on, for people: a board's name, or the kind that is built.
func (j Job) Subject() string { return plaintext.Either(j.Name == Builder, j.Board, j.Name) }

// Step is one command of a job.
type Step struct {
	Do        Do     `json:"do"`
	Bundle    string `json:"bundle,omitempty"` // of an update: sha256:… of an artifact's file
	Downgrade bool   `json:"downgrade,omitempty"`
	Token     string `json:"token,omitempty"`   // of a flash: what the user confirmed
	Count     int    `json:"count,omitempty"`   // of a place: how many good ones today end it; 0 is none
	Targets   string `json:"targets,omitempty"` // of a build, with commas between them
}

// StepNames returns what steps do, with commas between them.
func StepNames(steps []Step) string {
	var names []string
	for _, s := range steps {
		names = append(names, string(s.Do))
	}
	return strings.Join(names, ", ")
}

// Do says what a step does.
type Do string

// The steps. Each is a command of Slipway, but for boot, which is "virt start".
const (
	Flash  Do = "flash"
	Boot   Do = "boot"
	Deploy Do = "deploy"
	Update Do = "update"
	Smoke  Do = "smoke"
	Place  Do = "place" // all that is plugged into the ports of a flashing place, until it is stopped
	Build  Do = "build"
)

// All lists all steps but Build, and OfBoards those of one board.
var (
	All      = append(slices.Clone(OfBoards), Place)
	OfBoards = []Do{Flash, Boot, Deploy, Update, Smoke}
)

// Limit is how long a job may run, if nobody says otherwise.
const Limit = 30 * time.Minute

const day = 24 * time.Hour

// Times returns how long a job with these steps may run, and may wait, if nobody says otherwise. A
// place runs until somebody stops it. One that did not begin at once is not to begin by itself later.
func Times(steps []Step) (limitMS, startWithinMS int64) {
	switch first := steps[0].Do; first {
	case Place:
		return longestLimit.Milliseconds(), time.Minute.Milliseconds()
	case Build:
		return day.Milliseconds(), day.Milliseconds()
	}
	return Limit.Milliseconds(), day.Milliseconds()
}

// State is how far a job has come.
type State string

// The states of a job.
const (
	Queued  State = "queued"
	Running State = "running"
	Ended   State = "ended"
)

// Word returns the state of a job for people, or how it ended.
func (j Job) Word() string {
	switch {
	case j.Result != nil:
		return string(j.Result.Kind)
	case j.Stop != "":
		return plaintext.Either(j.Stop == Now, "stopping now", "stopping")
	}
	return string(j.State)
}

// Stop is a wish that a job ends.
type Stop string

// The ways to stop a job: as the first and as the second Ctrl-C.
const (
	Gently Stop = "gently"
	Now    Stop = "now"
)

// Claim says which run of which station does a job.
type Claim struct {
	Instance string `json:"instance"`
	Epoch    int64  `json:"epoch"`
	Attempt  int    `json:"attempt"`
}

// Result is how a job ended.
type Result struct {
	fleet.Result
	Steps    []StepResult `json:"steps,omitempty"`
	Artifact string       `json:"artifact,omitempty"` // of a build: its digest in Builds
	Attempts int          `json:"attempts"`
	Line     string       `json:"line,omitempty"` // to type on the station
}

// Status returns the exit status of the step that failed, or 0.
func (r Result) Status() int {
	for _, s := range r.Steps {
		if s.Status != 0 {
			return s.Status
		}
	}
	return 0
}

// StepResult is how a step ended.
type StepResult struct {
	Do        Do     `json:"do"`
	Status    int    `json:"status"` // exit status of its command
	ElapsedMS int64  `json:"elapsedMs"`
	Receipt   string `json:"receipt,omitempty"` // of a flash
}

// Board is one board that a station has.
type Board struct {
	V      Form     `json:"v"`
	Name   string   `json:"name"`
	Board  string   `json:"board"` // its kind
	Labels []string `json:"labels,omitempty"`
	Does   []Do     `json:"does"`
	Device string   `json:"device,omitempty"` // as "devices" names it
	Shows  string   `json:"shows,omitempty"`  // what the user confirms before a flash: model, size, content
	Token  string   `json:"token,omitempty"`  // that confirms it
	Open   bool     `json:"open,omitempty"`   // station.yml does not name the device, and an admin can
	Image  string   `json:"image,omitempty"`  // that a place writes; none: the job's artifact
	Serial string   `json:"serial,omitempty"`
	Runs   string   `json:"runs,omitempty"` // version
	Has    *Had     `json:"has,omitempty"`  // as the hub knows it, nil for what is not known; no station says it
	Job    string   `json:"job,omitempty"`  // that works on it
	Last   *Last    `json:"last,omitempty"`
	Note   string   `json:"note,omitempty"` // why it takes no job
}

// Last is a board's last result.
type Last struct {
	Job  string     `json:"job"`
	Kind fleet.Kind `json:"kind"`
	At   time.Time  `json:"at"`
}

// Had is what jobs brought onto a board.
type Had struct {
	Artifact string `json:"artifact"`
	Bundle   string `json:"bundle,omitempty"` // sha256:…, if an update brought it
}

// ChangesBoard reports whether a job brings something onto its board.
func (j Job) ChangesBoard() bool {
	return slices.ContainsFunc(j.Steps, func(s Step) bool { return slices.Contains([]Do{Flash, Deploy, Update}, s.Do) })
}

// Leaves returns what a board has after a job that changes it, nil if that is not known. A failed
// update that went back, or was not taken, leaves what was there.
func (j Job) Leaves() *Had {
	switch had := (&Had{Artifact: j.Artifact}); {
	case j.Result.Kind.Done():
		for _, s := range j.Steps {
			had.Bundle = cmp.Or(s.Bundle, had.Bundle)
		}
		return had
	case slices.Contains([]fleet.Kind{fleet.WentBack, fleet.NotTaken, fleet.NotBegun}, j.Result.Kind) && j.Steps[0].Do == Update:
		return j.Before
	}
	return nil
}

// Station is a machine that has boards.
type Station struct {
	V         Form   `json:"v"`
	Name      string `json:"name"`
	Instance  string `json:"instance"` // of this run of the program
	Epoch     int64  `json:"epoch"`    // counts the runs of its state folder
	Machine   string `json:"machine"`
	Program   string `json:"program"` // Slipway's version
	Arch      string `json:"arch"`
	Parallel  int    `json:"parallel"`
	Builds    bool   `json:"builds,omitempty"` // it takes builds
	FreeBytes int64  `json:"freeBytes"`
	Draining  bool   `json:"draining,omitempty"`

	Names []DeviceName `json:"names,omitempty"` // that admins gave
}

// DeviceName makes the device at a port a board, which station.yml does not name.
type DeviceName struct {
	Port  string `json:"port"`
	Name  string `json:"name"`  // "": it has none any more
	Board string `json:"board"` // its kind
}

// MaxNames is how many names a station takes.
const MaxNames = 200

// Check returns an error for a name that no station may take. An empty one takes a name back.
func (n DeviceName) Check() error {
	if n.Name == "" {
		return match(ports, "the port", n.Port)
	}
	return errors.Join(match(ports, "the port", n.Port), CheckName("the board's name", n.Name), CheckName("the board", n.Board))
}

// Key returns the key of a job in its bucket. That of a build stays as it is once a station has claimed it.
func (j Job) Key() string {
	if j.Name == Builder {
		return bus.Key(Builder, j.Arch, j.ID)
	}
	return bus.Key(j.Station, j.Name, j.ID)
}

// NewID returns an ID that sorts by time.
func NewID() string {
	var b [10]byte
	binary.BigEndian.PutUint64(b[:8], uint64(time.Now().UnixMilli())<<16)
	_, _ = rand.Read(b[6:])
	return base32.HexEncoding.EncodeToString(b[:])
}

var (
	// names are what hub and stations call boards, stations and people.
	names   = plaintext.Regexp(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,62}$`)
	ids     = plaintext.Regexp(`^[0-9A-V]{16}$`)
	digests = plaintext.Regexp(`^sha256:[0-9a-f]{64}$`)
	// An artifact is named by digest, so that it is the same for all who read the job.
	artifacts = plaintext.Regexp(`^[A-Za-z0-9./][^\s@]{0,499}@sha256:[0-9a-f]{64}$`)
	ports     = plaintext.Regexp(`^[a-z0-9]+[a-z0-9.:_-]{0,100}$`) // no path, which may be another device tomorrow
	targets   = plaintext.Regexp(`^([A-Za-z0-9][A-Za-z0-9._+:,-]{0,999})?$`)
	tokens    = plaintext.Regexp(`^[!-~]{0,200}$`)
)

// CheckName returns an error for a name that is none of a board, station or person.
func CheckName(what, name string) error {
	if !names().MatchString(name) {
		return fmt.Errorf("%s %.80q is no name: at most 63 letters, digits and ._:-, of which the first is a letter or digit", what, plaintext.OneLine(name))
	}
	return nil
}

func match(want func() *regexp.Regexp, what, text string) error {
	if !want().MatchString(text) {
		return fmt.Errorf("%s %.80q does not have the form %s", what, plaintext.OneLine(text), want())
	}
	return nil
}

// Check returns an error for a job that no station may run.
func (j Job) Check() error {
	err := errors.Join(match(ids, "the ID", j.ID), CheckName("the board", j.Board))
	if isBuild := j.Name == Builder; !isBuild {
		err = errors.Join(err, CheckName("the board's name", j.Name))
	} else if !slices.Contains(images.Arches, j.Arch) {
		err = errors.Join(err, fmt.Errorf("no machine is a %.80q; have %v", plaintext.OneLine(j.Arch), images.Arches))
	}
	if j.Station != "" || j.Name != Builder || j.State == Running {
		err = errors.Join(err, CheckName("the station", j.Station))
	}
	if j.Artifact != "" {
		err = errors.Join(err, match(artifacts, "the artifact", j.Artifact))
	}
	if j.Project != "" {
		err = errors.Join(err, match(digests, "the project", j.Project))
	}
	if len(j.Steps) == 0 || len(j.Steps) > 10 {
		err = errors.Join(err, fmt.Errorf("it has %d steps; want 1 to 10", len(j.Steps)))
	}
	if j.LimitMS <= 0 || j.StartWithinMS <= 0 {
		err = errors.Join(err, errors.New("limitMs and startWithinMs must be more than 0"))
	}
	for _, s := range j.Steps {
		if err = errors.Join(err, s.check()); s.Do == Place && len(j.Steps) > 1 {
			err = errors.Join(err, errors.New("a place is the only step of its job"))
		}
		if (s.Do == Build) != (j.Name == Builder) {
			err = errors.Join(err, errors.New("a build, and nothing else, is done by a builder"))
		}
	}
	return err
}

func (s Step) check() error {
	if s.Do != Build && !slices.Contains(All, s.Do) {
		return fmt.Errorf("the step %.80q is unknown; have %v", plaintext.OneLine(string(s.Do)), All)
	}
	err := match(tokens, "the confirmation", s.Token)
	err = errors.Join(err, match(targets, "the targets", s.Targets))
	if s.Count < 0 || s.Count > 0 && s.Do != Place {
		err = errors.Join(err, fmt.Errorf("%d is no count of a place", s.Count))
	}
	if (s.Bundle != "") != (s.Do == Update) {
		return errors.Join(err, errors.New("an update, and nothing else, has a bundle"))
	}
	if s.Bundle != "" {
		err = errors.Join(err, match(digests, "the bundle", s.Bundle))
	}
	return err
}

// maxCardBytes limits the entry of a card.
const maxCardBytes = 64 << 10

var cardName = plaintext.Regexp(`^\d{4}-\d\d-\d\d/[^/\x00-\x1f\x7f]{1,120}\.json$`)

// Check returns the entry of a card, or an error for one that no hub keeps.
func (c Card) Check() (e place.Entry, err error) {
	if err := cmp.Or(CheckName("the place", c.Place), match(cardName, "the card", c.Name)); err != nil {
		return e, err
	}
	if len(c.Entry) > maxCardBytes {
		return e, fmt.Errorf("the card %s is longer than %d bytes", c.Name, maxCardBytes)
	}
	if e, err = place.ParseEntry(c.Entry); err == nil && (e.Verdict == "" || e.Began.IsZero() || e.Stamp == "" && e.Taken && e.Row != "") {
		err = errors.New("it lacks its verdict, its begin, or the stamp of who has its row")
	}
	if err != nil {
		err = fmt.Errorf("the card %s: %w", c.Name, err)
	}
	return e, err
}

// form is what Parse reads.
type form interface{ Job | Board | Station }

// Parse reads a form, and refuses one that is too long or of a newer Slipway. It ignores unknown
// fields, which a newer Slipway may add.
func Parse[F form](data []byte) (F, error) { return parse[F](data, maxFormBytes) }

// parse is Parse for a value of at most most bytes.
func parse[F any](data []byte, most int) (f F, err error) {
	if len(data) > most {
		return f, fmt.Errorf("%T is longer than %d bytes", f, most)
	}
	var v struct{ V Form } // first: a newer form may have other fields
	if err := json.Unmarshal(data, &v); err != nil {
		return f, fmt.Errorf("%T: %w", f, plaintext.JSONError(err))
	}
	if v.V < 1 {
		return f, fmt.Errorf("%T has the version %d, and the first is 1", f, v.V)
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%T: %w", f, plaintext.JSONError(err))
	}
	return f, nil
}
