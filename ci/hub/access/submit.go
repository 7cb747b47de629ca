package access

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/ci/report"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// FindBoard returns the board that a person names: NAME, or STATION/NAME if several have one.
func FindBoard(ctx context.Context, c *Client, name string) (job.HubBoard, error) {
	_, short, hasStation := strings.Cut(name, "/")
	if !hasStation {
		short = name
	}
	list, err := List[job.BoardList](ctx, c, job.VerbBoardList, job.ListWish{Board: short})
	if err == nil && len(list.Boards) == 0 {
		list, err = List[job.BoardList](ctx, c, job.VerbBoardList, job.ListWish{}) // for a name that is much like it
	}
	if err != nil {
		return job.HubBoard{}, err
	}
	var found []job.HubBoard
	var names []string
	for _, b := range list.Boards {
		names = append(names, b.Name)
		if b.Name == name || b.Station+"/"+b.Name == name {
			found = append(found, b)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return job.HubBoard{}, fmt.Errorf("%s has no board %q%s\nnext: hub boards", c.Hub, name, plaintext.DidYouMean(name, names))
	}
	return job.HubBoard{}, fmt.Errorf("%d stations have a board %q: name one as %s/%s", len(found), name, found[0].Station, name)
}

// WaitForBoard waits until a station has announced a board.
func WaitForBoard(ctx context.Context, c *Client, name string) error {
	for {
		list, err := List[job.BoardList](ctx, c, job.VerbBoardList, job.ListWish{Board: name})
		if err != nil || slices.ContainsFunc(list.Boards, func(b job.HubBoard) bool { return b.Name == name && b.Heard }) {
			return err
		}
		if err := run.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// BuilderArch returns the architecture of a builder, if possible of one that is heard, and that of this
// machine. It warns if none is heard.
func BuilderArch(ctx context.Context, c *Client) (string, error) {
	list, err := Ask[job.StationList](ctx, c, job.VerbStationList, nil)
	if err != nil {
		return "", err
	}
	arch, heard := builderArch(list.Stations)
	if !heard {
		progress.Warn(ctx, "no builder is heard; the job waits for one")
	}
	return arch, nil
}

// builderArch returns the architecture of the best builder, and whether that is heard. If there is no
// builder, the hub refuses the job and says so.
func builderArch(stations []job.HubStation) (arch string, heard bool) {
	builders := slices.DeleteFunc(slices.Clone(stations), func(s job.HubStation) bool { return !s.Builds })
	if len(builders) == 0 {
		return runtime.GOARCH, true
	}
	rank := func(s job.HubStation) int {
		switch isOwn := s.Arch == runtime.GOARCH; {
		case s.Heard && isOwn:
			return 0
		case s.Heard:
			return 1
		case isOwn:
			return 2
		}
		return 3
	}
	best := slices.MinFunc(builders, func(a, b job.HubStation) int { return rank(a) - rank(b) })
	return best.Arch, best.Heard
}

// Submit adds a job, under a new ID each time. It is one job, also if the hub's answer is lost.
func Submit(ctx context.Context, c *Client, j job.Job) (job.Change, error) {
	j.V, j.ID = job.Version, job.NewID()
	return AskOn[job.Change](ctx, c, job.VerbJobAdd, j)
}

// Follow shows a job's events until it has ended, and returns it.
func Follow(ctx context.Context, c *Client, j job.Job, show func(progress.Event)) (job.Job, error) {
	station := "*" // a build has none yet
	if j.Station != "" {
		station = bus.Token(j.Station)
	}
	subject := "prog." + station + "." + bus.Key(j.Name, j.ID)
	sub, err := c.Subscribe(subject, func(m *nats.Msg) {
		var e progress.Event
		if json.Unmarshal(m.Data, &e) == nil { // a line that cannot be read is left out of the bars
			show(e)
		}
	})
	if err != nil {
		return j, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection ends, too
	return Wait(ctx, c, j.ID)
}

// Wait waits until a job has ended, also while the hub is away.
func Wait(ctx context.Context, c *Client, id string) (job.Job, error) {
	for change := (job.Change{}); ; {
		var err error
		change, err = AskOn[job.Change](ctx, c, job.VerbJobWait, job.Wait{ID: id, Since: change.Revision})
		if err != nil || change.Job.State == job.Ended {
			return change.Job, err
		}
	}
}

// Err returns a job's result as the error of the command that a person would have typed, or nil.
func Err(j job.Job) error {
	r := j.Result
	if r == nil || r.Kind.Done() {
		return nil
	}
	text := fmt.Sprintf("%s of %s: %s", j.Subject(), j.Station, r.Kind)
	if r.Saw != "" {
		text += ": " + r.Saw
	}
	next := r.Kind.Next()
	if r.Kind == fleet.Other || next == "" {
		next = "see the job's log"
	}
	err := fmt.Errorf("%s\nnext: slipway job log %s  # %s", plaintext.Printable(text), j.ID, strings.TrimSpace(next))
	return report.Because(context.Background(), report.OfStatus(r.Status()), err)
}

// Patience is that of a rollout with boards that are not heard, if nobody says otherwise.
const Patience = 15 * time.Minute

// NextOf waits until a rollout differs, also while the hub is away, and returns it without results.
func NextOf(ctx context.Context, c *Client, s job.RolloutState) (job.RolloutState, error) {
	_ = run.Sleep(ctx, time.Second/5) // each job changes it
	return AskOn[job.RolloutState](ctx, c, job.VerbRolloutShow, job.RolloutWish{ID: s.ID, Since: s.Revision})
}

// WriteRollout writes what a rollout has done until now as fleet writes a run: fleet.json, index.html
// and junit.xml in a folder, and the report of each board in a folder there.
func WriteRollout(ctx context.Context, c *Client, s job.RolloutState, dir string) (err error) {
	o, reports, tooMany := s.Outcome(func(w job.ReportWish) (one report.Report, _ error) {
		sent, unread := Ask[job.Report](ctx, c, job.VerbReportGet, w)
		if unread == nil {
			one, unread = sent.Only()
		}
		if unread == nil && one.Board != "" {
			err = errors.Join(err, report.WriteAll(filepath.Join(dir, w.Name), []report.Report{one}))
		}
		return one, unread
	})
	if tooMany != nil {
		return tooMany
	}
	for i, r := range reports {
		if r.Board != "" {
			name := o.Results[i].Host
			o.Results[i].Report = filepath.Join(name, report.ReportHTML)
		}
	}
	return cmp.Or(errors.Join(err, context.Cause(ctx)), o.Write(dir, reports))
}

// RolloutErr returns how a rollout ended as an error, or nil if all boards have what it deploys.
func RolloutErr(s job.RolloutState) error {
	failed := s.Counts.Failed()
	switch {
	case s.Wish == job.Pause:
		return fmt.Errorf("the rollout waits for a person: %s\nnext: slipway rollout resume %s", s.Why, s.ID)
	case failed > 0 || s.Wish == job.Cancel:
		return fmt.Errorf("%d of %d boards failed: %w\nnext: slipway rollout show %s", failed, s.Boards, report.ErrFailed, s.ID)
	}
	return nil
}
