package job

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// Rollout is one work on many boards of a hub, in waves.
type Rollout struct {
	V        Form   `json:"v"`
	ID       string `json:"id"`
	Board    string `json:"board"` // the kind
	Artifact string `json:"artifact,omitempty"`
	Project  string `json:"project,omitempty"`
	Steps    []Step `json:"steps"`
	Pattern  string `json:"pattern,omitempty"` // of boards, as Ansible's; "" is all of the kind
	LimitMS  int64  `json:"limitMs"`

	fleet.Gate
	Waves          []int `json:"waves,omitempty"` // percent of the boards that have begun after each; the last is 100
	PatienceMS     int64 `json:"patienceMs"`      // until a board that is not heard counts as failed
	PauseAfterWave bool  `json:"pauseAfterWave,omitempty"`
	Follow         bool  `json:"follow,omitempty"` // boards that match before its end become a last wave

	By      string         `json:"by"`
	Began   time.Time      `json:"began,omitzero"` // by the engine's clock
	Wish    Wish           `json:"wish"`
	WishBy  string         `json:"wishBy,omitempty"`
	Wave    int            `json:"wave"` // that has begun; 0 is the canaries
	Why     string         `json:"why,omitempty"`
	Resumed bool           `json:"resumed,omitempty"`
	Seen    int            `json:"seen,omitempty"` // failures at the last resume, which stop it no more
	Ended   bool           `json:"ended,omitempty"`
	Final   fleet.Counts   `json:"final,omitempty"` // the counts at its end, which live longer than its jobs
	Plan    []RolloutBoard `json:"plan,omitempty"`
	From    string         `json:"from,omitempty"` // rollout that this one takes back
}

// RolloutBoard is a board of a rollout.
type RolloutBoard struct {
	Station string `json:"s"`
	Name    string `json:"n"`
	Wave    int    `json:"w"`
}

// Wish is what people want of a rollout.
type Wish string

// The wishes.
const (
	Go     Wish = "go"
	Pause  Wish = "pause"  // begin nothing more
	Cancel Wish = "cancel" // also stop what runs
)

// MaxPlan is how many boards a rollout can have: its plan must fit into one message.
const MaxPlan = 50_000

// Check returns an error for a rollout that no hub may begin. Its boards are checked when they are
// chosen.
func (r Rollout) Check() error {
	j := Job{V: Version, ID: NewID(), Station: "s", Name: "n", Board: r.Board, Artifact: r.Artifact, Project: r.Project, Steps: r.Steps, LimitMS: r.LimitMS, StartWithinMS: 1}
	err := j.Check()
	if r.ID != "" {
		err = errors.Join(err, match(ids, "the ID", r.ID))
	}
	if r.Canary < 0 || r.StopAfter < 0 || r.Retries < 0 || r.Retries > fleet.MaxRetries || r.PatienceMS <= 0 || len(r.Pattern) > 1000 {
		err = errors.Join(err, fmt.Errorf("canaries, failures and retries must be 0 or more, retries at most %d, and the patience more than 0", fleet.MaxRetries))
	}
	last := 0
	for _, percent := range r.Waves {
		if percent <= last || percent > 100 {
			err = errors.Join(err, fmt.Errorf("the waves %v must grow, up to 100 percent", r.Waves))
		}
		last = percent
	}
	return err
}

// Divide sets the waves of the plan's boards: first the canaries, then as many as each percentage
// says.
func (r *Rollout) Divide() error {
	if len(r.Plan) == 0 || len(r.Plan) > MaxPlan {
		return fmt.Errorf("a rollout has 1 to %d boards, and this one has %d", MaxPlan, len(r.Plan))
	}
	waves := append(append([]int(nil), r.Waves...), 100)
	for i := range r.Plan {
		wave := 0
		for i >= r.Canary && wave < len(waves) && (wave == 0 || i*100 >= waves[wave-1]*len(r.Plan)) {
			wave++
		}
		r.Plan[i].Wave = wave
	}
	return nil
}

// LastWave is the wave of boards that match later.
func (r Rollout) LastWave() int { return len(r.Waves) + 2 }

// Rollouts are all rollouts.
type Rollouts struct {
	Rollouts []RolloutState `json:"rollouts"`
}

// RolloutState is a rollout without its plan, and how far it is.
type RolloutState struct {
	Rollout
	Revision uint64          `json:"revision"`
	At       time.Time       `json:"at,omitzero"` // of the last end of a job, by the engine's clock
	Boards   int             `json:"boards"`
	Counts   fleet.Counts    `json:"counts"` // of boards that have ended
	Running  int             `json:"running"`
	Waiting  int             `json:"waiting"`
	Unheard  int             `json:"unheard"`           // for longer than the patience
	Results  []RolloutResult `json:"results,omitempty"` // of each board, if they were asked for
}

// Word returns the state of a rollout for people: the wave that runs, if nobody wants it to wait.
func (s RolloutState) Word() string {
	switch {
	case s.Ended:
		return plaintext.Either(s.Wish == Cancel, "stopped", "ended")
	case s.Wish == Pause:
		return "paused"
	case s.Wish == Cancel:
		return "stopping"
	}
	return s.WaveName(s.Wave)
}

// WaveName returns the name of a wave for people.
func (r Rollout) WaveName(wave int) string {
	switch wave {
	case 0:
		return "canaries"
	case r.LastWave():
		return "boards that came later"
	}
	return fmt.Sprintf("wave %d", wave)
}

// RolloutResult is how far a rollout is on a board.
type RolloutResult struct {
	RolloutBoard
	Job    string        `json:"job,omitempty"` // its last attempt
	Tries  int           `json:"tries,omitempty"`
	State  State         `json:"state,omitempty"`  // of the job
	Result *fleet.Result `json:"result,omitempty"` // nil until no other attempt follows
}

// maxOutcomeBytes limits the reports of a rollout, which come from boards, without their logs.
const maxOutcomeBytes = 256 << 20

// Outcome returns what a rollout has done until now as a run of fleet, and the report of each board
// without its logs, an empty one for a board without. Boards that were not begun are in it once the
// rollout has ended.
func (s RolloutState) Outcome(get func(ReportWish) (report.Report, error)) (o fleet.Outcome, reports []report.Report, err error) {
	_, digest, _ := strings.Cut(s.Artifact, "@sha256:")
	o = fleet.Outcome{
		Board: s.Board, Inventory: "hub: " + cmp.Or(s.Pattern, "all"), Started: s.Began, Stopped: s.Why,
		Did: fleet.Work{Command: "rollout of " + StepNames(s.Steps), Sent: []fleet.Sent{{What: "artifact", Name: s.Artifact, SHA256: digest}}},
	}
	if s.At.After(s.Began) && !s.Began.IsZero() {
		o.ElapsedMS = s.At.Sub(s.Began).Milliseconds()
	}
	bytes := 0
	for _, r := range s.Results {
		found := fleet.Result{Kind: fleet.NotBegun}
		if r.Result != nil {
			found = *r.Result
		} else if !s.Ended {
			continue
		}
		found.Host, found.Address, found.Canary, found.Tries, found.Report = r.Name, r.Station, r.Wave == 0, r.Tries, ""
		one := report.Report{}
		if found.Checks > 0 {
			one, _ = get(ReportWish{Station: r.Station, Name: r.Name, Job: r.Job}) // an empty one, if it cannot be read
			one.Logs = nil
			text, _ := json.Marshal(one) // it was read from JSON
			if bytes += len(text); bytes > maxOutcomeBytes {
				return o, nil, fmt.Errorf("the reports of this rollout are larger than %s\nnext: hub report %s  # one board's", plaintext.SizeText(maxOutcomeBytes), r.Name)
			}
		}
		o.Results, reports = append(o.Results, found), append(reports, one)
	}
	o.Work = fmt.Sprintf("%s of %s by %s, on %d of %s", o.Did.Command, cmp.Or(s.Artifact, "no artifact"), s.By, len(o.Results), report.Boards(s.Boards))
	return o, reports, nil
}

// RolloutWish asks to change a rollout, or for its results.
type RolloutWish struct {
	ID      string `json:"id"`
	Wish    Wish   `json:"wish,omitempty"`
	Since   uint64 `json:"since,omitempty"`
	Results bool   `json:"results,omitempty"`
}

// RolloutBack asks for a rollout of what the boards of another one had before it.
type RolloutBack struct {
	ID     string `json:"id"`
	New    string `json:"new,omitempty"`    // ID of the new one
	DryRun bool   `json:"dryRun,omitempty"` // only say what it would do
}
