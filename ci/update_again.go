package ci

import (
	"context"
	"fmt"

	boardupdate "slipway/flash/target/update"
)

// Ran is which system ran on a board, as its engine tells systems apart.
type Ran struct {
	Slot      string `json:"slot"`
	Version   string `json:"version,omitempty"`
	Installed string `json:"installed,omitempty"` // update.Slot's Installation
}

// Earlier is what a record says of an update of this board with this bundle. Who kept
// the record may have been killed at any moment.
type Earlier struct {
	From Ran  `json:"from"`         // ran before a slot was written
	To   *Ran `json:"to,omitempty"` // was marked good; nil: how it ended is not recorded
}

// Ran is which system an update left running.
func (o Outcome) Ran() Ran { return Ran{o.Slot, o.Version, o.Installed} }

// headway is how far an earlier update came.
type headway int

const (
	newWork   headway = iota
	installed         // the new system waits for the restart
	started           // it runs, and may not be marked good
	stays             // it was marked good
)

// goOn asks the board how far an earlier update came, and has this one begin there. What
// runs is known by its slot and by the engine's record of the installation, so that a
// board that was flashed or updated since is not mistaken for one that has the bundle.
func (u *updating) goOn(ctx context.Context, e Earlier) error {
	limited, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if err := u.engine.Settle(limited); err != nil {
		return err
	}
	status, err := u.engine.Status(ctx)
	if err != nil {
		return err
	}
	if u.arrived = u.howFar(e, status); u.arrived == newWork {
		return nil
	}
	u.before = boardupdate.Status{Slots: []boardupdate.Slot{{Name: e.From.Slot, Version: e.From.Version, Booted: true}}}
	u.runs(status)
	u.outcome.Already = u.arrived >= started
	u.outcome.Restarted = u.arrived == started
	u.outcome.Committed = u.arrived == stays
	return nil
}

func (u *updating) howFar(e Earlier, status boardupdate.Status) headway {
	booted, ok := status.Booted()
	now := Ran{booted.Name, booted.Version, booted.Installation}
	switch {
	case !ok:
	case e.To != nil:
		if now == *e.To {
			return stays
		}
	case now == e.From:
		other, _ := status.Other()
		if status.Waiting() && other.Name == status.Primary && u.brought(other) {
			return installed
		}
	case now.Slot != e.From.Slot && untouched(status, e.From) && u.brought(booted):
		return started
	}
	return newWork
}

// brought says whether a slot can have this bundle: the versions are the same, where
// both are known.
func (u *updating) brought(s boardupdate.Slot) bool {
	return !s.Failed && (s.Version == "" || u.bundle.Version == "" || s.Version == u.bundle.Version)
}

// untouched says whether the system that ran before is still where it was, as far as the
// engine lists slots that do not run.
func untouched(status boardupdate.Status, from Ran) bool {
	for _, s := range status.Slots {
		if s.Name == from.Slot {
			return s.Installation == from.Installed
		}
	}
	return true
}

// preflightWords say what the preflight came to.
func (u *updating) preflightWords() string {
	switch u.arrived {
	case installed:
		return u.outcome.Engine + "; an earlier run installed this bundle, and the board is to be restarted"
	case started, stays:
		return fmt.Sprintf("%s; the board has this bundle already, in %s", u.outcome.Engine, u.outcome.Slot)
	}
	return u.outcome.Engine
}

// writes tells, once, that a slot is about to be written.
func (u *updating) writes() error {
	if u.how.Writing == nil || u.told {
		return nil
	}
	booted, _ := u.before.Booted()
	u.told = true
	return u.how.Writing(Ran{booted.Name, booted.Version, booted.Installation})
}
