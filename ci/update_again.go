package ci

import (
	"context"
	"fmt"

	boardupdate "slipway/flash/target/update"
)

// SystemID is which system ran on a board, as its engine tells systems apart.
type SystemID struct {
	Slot      string `json:"slot"`
	Version   string `json:"version,omitempty"`
	Installed string `json:"installed,omitempty"` // update.Slot's Installation
}

// Earlier is what a record says of an update of this board with this bundle. Who kept
// the record may have been killed at any moment.
type Earlier struct {
	From SystemID  `json:"from"`         // ran before a slot was written
	To   *SystemID `json:"to,omitempty"` // was marked good; nil: how it ended is not recorded
}

// SystemID is which system an update left running.
func (o Outcome) SystemID() SystemID { return SystemID{o.Slot, o.Version, o.Installed} }

// updatePhase is how far an earlier update came.
type updatePhase int

const (
	phaseNone      updatePhase = iota
	phaseInstalled             // the new system waits for the restart
	phaseStarted               // it runs, and may not be marked good
	phaseCommitted             // it was marked good
)

// resumeEarlier asks the board how far an earlier update came, and has this one begin there. What
// runs is known by its slot and by the engine's record of the installation, so that a
// board that was flashed or updated since is not mistaken for one that has the bundle.
func (u *updateRun) resumeEarlier(ctx context.Context, e Earlier) error {
	limited, cancel := context.WithTimeout(ctx, installationLimit)
	defer cancel()
	if err := u.engine.Settle(limited); err != nil {
		return err
	}
	status, err := u.engine.Status(ctx)
	if err != nil {
		return err
	}
	if u.reached = u.phaseReached(e, status); u.reached == phaseNone {
		return nil
	}
	u.before = boardupdate.Status{Slots: []boardupdate.Slot{{Name: e.From.Slot, Version: e.From.Version, Booted: true}}}
	u.recordSystem(status)
	u.outcome.Already = u.reached >= phaseStarted
	u.outcome.Restarted = u.reached == phaseStarted
	u.outcome.Committed = u.reached == phaseCommitted
	return nil
}

func (u *updateRun) phaseReached(e Earlier, status boardupdate.Status) updatePhase {
	booted, ok := status.Booted()
	now := SystemID{booted.Name, booted.Version, booted.Installation}
	switch {
	case !ok:
	case e.To != nil:
		if now == *e.To {
			return phaseCommitted
		}
	case now == e.From:
		other, _ := status.Other()
		if status.Waiting() && other.Name == status.Primary && u.canHaveBundle(other) {
			return phaseInstalled
		}
	case now.Slot != e.From.Slot && isOldSlotUnchanged(status, e.From) && u.canHaveBundle(booted):
		return phaseStarted
	}
	return phaseNone
}

// canHaveBundle says whether a slot can have this bundle: the versions are the same, where
// both are known.
func (u *updateRun) canHaveBundle(s boardupdate.Slot) bool {
	return !s.Failed && (s.Version == "" || u.bundle.Version == "" || s.Version == u.bundle.Version)
}

// isOldSlotUnchanged says whether the system that ran before is still where it was, as far as the
// engine lists slots that do not run.
func isOldSlotUnchanged(status boardupdate.Status, from SystemID) bool {
	for _, s := range status.Slots {
		if s.Name == from.Slot {
			return s.Installation == from.Installed
		}
	}
	return true
}

// summarizePreflight say what the preflight came to.
func (u *updateRun) summarizePreflight() string {
	switch u.reached {
	case phaseInstalled:
		return u.outcome.Engine + "; an earlier run installed this bundle, and the board is to be restarted"
	case phaseStarted, phaseCommitted:
		return fmt.Sprintf("%s; the board has this bundle already, in %s", u.outcome.Engine, u.outcome.Slot)
	}
	return u.outcome.Engine
}

// announceWrite tells, once, that a slot is about to be written.
func (u *updateRun) announceWrite() error {
	if u.how.Writing == nil || u.writeAnnounced {
		return nil
	}
	booted, _ := u.before.Booted()
	u.writeAnnounced = true
	return u.how.Writing(SystemID{booted.Name, booted.Version, booted.Installation})
}
