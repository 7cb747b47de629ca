package job

import (
	"errors"
	"fmt"

	"slipway/ci/fleet"
)

// Rollout is one work on many boards of a hub, in waves.
type Rollout struct {
	V        int    `json:"v"`
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

	By     string         `json:"by"`
	Wish   Wish           `json:"wish"`
	WishBy string         `json:"wishBy,omitempty"`
	Wave   int            `json:"wave"` // that has begun; 0 is the canaries
	Why    string         `json:"why,omitempty"`
	Ended  bool           `json:"ended,omitempty"`
	Plan   []RolloutBoard `json:"plan,omitempty"` // written once
	From   string         `json:"from,omitempty"` // rollout that this one takes back
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

// maxPlan is how many boards a rollout can have: its plan must fit into one message.
const maxPlan = 50_000

// Check returns an error for a rollout that no hub may begin. Its boards are checked when they are
// chosen.
func (r Rollout) Check() error {
	j := Job{V: Version, ID: NewID(), Station: "s", Name: "n", Board: r.Board, Artifact: r.Artifact, Project: r.Project, Steps: r.Steps, LimitMS: r.LimitMS, StartWithinMS: 1}
	err := j.Check()
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
	if len(r.Plan) == 0 || len(r.Plan) > maxPlan {
		return fmt.Errorf("a rollout has 1 to %d boards, and this one has %d", maxPlan, len(r.Plan))
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

// Rollouts are all rollouts.
type Rollouts struct {
	Rollouts []RolloutState `json:"rollouts"`
}

// RolloutState is a rollout without its plan, and how far it is.
type RolloutState struct {
	Rollout
	Revision uint64                   `json:"revision"`
	Boards   int                      `json:"boards"`
	Counts   map[fleet.Kind]int       `json:"counts"` // of boards that have ended
	Running  int                      `json:"running"`
	Waiting  int                      `json:"waiting"`
	Unheard  int                      `json:"unheard"`           // for longer than the patience
	Results  map[string]*fleet.Result `json:"results,omitempty"` // by name, if they were asked for
}

// RolloutWish asks to change a rollout, or for its results.
type RolloutWish struct {
	ID      string `json:"id"`
	Wish    Wish   `json:"wish,omitempty"`
	Since   uint64 `json:"since,omitempty"`
	Results bool   `json:"results,omitempty"`
}
