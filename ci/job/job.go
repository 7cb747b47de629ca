// Package job has what hub and station tell each other: the forms of jobs, boards and stations, and
// the requests. It also runs a job on a station, in the job's folder.
package job

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"slipway/ci/fleet"
	"slipway/images"
	"slipway/layers/plaintext"
)

// Version is the version of all forms. A reader refuses a higher one.
const Version = 1

// maxFormBytes limits a form before it is parsed.
const maxFormBytes = 64 << 10

// Builder is the name of what a build works on. No board may have it, so a station has one build at a
// time as it has one job for a board.
const Builder = "@build"

// Job is work on one board, in order, or a build.
type Job struct {
	V        int    `json:"v"`
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
	Targets   string `json:"targets,omitempty"` // of a build, with commas between them
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
	Build  Do = "build"
)

// All lists the steps on boards: all but Build.
var All = []Do{Flash, Boot, Deploy, Update, Smoke}

// State is how far a job has come.
type State string

// The states of a job.
const (
	Queued  State = "queued"
	Running State = "running"
	Ended   State = "ended"
)

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
	V      int      `json:"v"`
	Name   string   `json:"name"`
	Board  string   `json:"board"` // its kind
	Labels []string `json:"labels,omitempty"`
	Does   []Do     `json:"does"`
	Device string   `json:"device,omitempty"` // as "devices" names it
	Shows  string   `json:"shows,omitempty"`  // what the user confirms before a flash: model, size, content
	Token  string   `json:"token,omitempty"`  // that confirms it
	Serial string   `json:"serial,omitempty"`
	Runs   string   `json:"runs,omitempty"` // version
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

// Station is a machine that has boards.
type Station struct {
	V         int    `json:"v"`
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
	targets   = plaintext.Regexp(`^([A-Za-z0-9][A-Za-z0-9._+:,-]{0,999})?$`)
	tokens    = plaintext.Regexp(`^[!-~]{0,200}$`)
)

// CheckName returns an error for a name that is none of a board, station or person.
func CheckName(what, name string) error { return match(names, what, name) }

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
		err = errors.Join(err, s.check())
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
	if (s.Bundle != "") != (s.Do == Update) {
		return errors.Join(err, errors.New("an update, and nothing else, has a bundle"))
	}
	if s.Bundle != "" {
		err = errors.Join(err, match(digests, "the bundle", s.Bundle))
	}
	return err
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
	var v struct{ V int }
	if err := json.Unmarshal(data, &v); err != nil {
		return f, fmt.Errorf("%T: %w", f, plaintext.JSONError(err))
	}
	if v.V > Version {
		return f, fmt.Errorf("%T has version %d: it was made by a newer Slipway, and this one knows %d", f, v.V, Version)
	}
	if v.V < 1 {
		return f, fmt.Errorf("%T has the version %d, and the first is 1", f, v.V)
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%T: %w", f, plaintext.JSONError(err))
	}
	return f, nil
}
