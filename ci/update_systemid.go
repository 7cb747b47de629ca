package ci

import (
	"context"
	"fmt"

	boardupdate "slipway/flash/boardssh/update"
)

// SystemID identifies an installed system by its slot and the engine's record of its installation.
type SystemID struct {
	Slot      string `json:"slot"`
	Version   string `json:"version,omitempty"`
	Installed string `json:"installed,omitempty"` // update.Slot's Installation
}

// Earlier is the record of an earlier update of this board with this bundle. The process that wrote
// it may have been killed at any moment.
type Earlier struct {
	From SystemID  `json:"from"`         // the system before a slot was written
	To   *SystemID `json:"to,omitempty"` // the system that was marked good; nil: the end is not recorded
}

// SystemID returns the identity of the system that runs after the update.
func (o Outcome) SystemID() SystemID { return SystemID{o.Slot, o.Version, o.Installed} }

// updatePhase is how far an earlier update got.
type updatePhase int

const (
	phaseNone      updatePhase = iota
	phaseInstalled             // the new system starts with the next restart
	phaseStarted               // the new system runs, but may not be marked good
	phaseCommitted             // the new system was marked good
)

// resumeEarlier sets u.reached to the phase that an earlier update reached, and if there is one,
// u.before to the system before that update, and the outcome. A board that was flashed or updated
// since then counts as having no part of the bundle, because its systems have other identities.
func (u *updateRun) resumeEarlier(ctx context.Context, e Earlier) error {
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

// phaseReached returns how far the earlier update got, by the systems that are on the board now. It
// returns phaseNone if they are not those of the record, or a waiting slot has a checksum.
func (u *updateRun) phaseReached(e Earlier, status boardupdate.Status) updatePhase {
	booted, ok := status.BootedSlot()
	now := SystemID{booted.Name, booted.Version, booted.Installation}
	switch {
	case !ok:
	case e.To != nil:
		if now == *e.To {
			return phaseCommitted
		}
	case now == e.From:
		other, _ := status.OtherSlot()
		// With a checksum, the preflight compares the slot with the bundle.
		if status.WaitsForRestart() && other.Name == status.Primary && other.SHA256 == "" && u.canHaveBundle(other) {
			return phaseInstalled
		}
	case now.Slot != e.From.Slot && isOldSlotUnchanged(status, e.From) && u.canHaveBundle(booted):
		return phaseStarted
	}
	return phaseNone
}

// canHaveBundle reports whether a slot's installation did not fail and known versions are equal.
func (u *updateRun) canHaveBundle(s boardupdate.Slot) bool {
	return !s.Failed && (s.Version == "" || u.bundle.Version == "" || s.Version == u.bundle.Version)
}

// isOldSlotUnchanged reports whether the old system is in its slot, or the engine does not list it.
func isOldSlotUnchanged(status boardupdate.Status, from SystemID) bool {
	for _, s := range status.Slots {
		if s.Name == from.Slot {
			return s.Installation == from.Installed
		}
	}
	return true
}

// summarizePreflight returns the result of the preflight in a few words.
func (u *updateRun) summarizePreflight() string {
	switch u.reached {
	case phaseInstalled:
		return u.outcome.Engine + "; an earlier run installed this bundle, and the board is to be restarted"
	case phaseStarted, phaseCommitted:
		return fmt.Sprintf("%s; the board has this bundle already, in %s", u.outcome.Engine, u.outcome.Slot)
	}
	return u.outcome.Engine
}

// announceWrite records the policies' decision, and calls how.Writing if it was not called before.
// The update calls it before a slot is written.
func (u *updateRun) announceWrite() error {
	if err := u.admitted.Record(); err != nil {
		return err
	}
	if u.how.Writing == nil || u.writeAnnounced {
		return nil
	}
	booted, _ := u.before.BootedSlot()
	u.writeAnnounced = true
	return u.how.Writing(SystemID{booted.Name, booted.Version, booted.Installation})
}
