package suite

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// reboot restarts the board in the middle of a suite.
type reboot struct{ limit time.Duration }

// rebootLimit is how long a restart may take by default.
const rebootLimit = 5 * time.Minute

func readReboot(e *Entry) Probe {
	e.Limit = rebootLimit
	return reboot{limit: e.readTimeout()}
}

// errNoReboot skips the check if the user forbids restarts.
const errNoReboot = Missing("it would restart the board, which --no-reboot forbids (an update forbids it too)")

// Inspect closes the connection to containerd, restarts the board, reads s.identity again, and
// checks that the boot id is a new one. It skips the check if restarts are forbidden.
func (r reboot) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	if s.noReboot {
		return f, errNoReboot
	}
	before, began := s.identity, time.Now()
	s.closeEngine()
	if err := s.reboot(ctx, r.limit); err != nil {
		return f, err
	}
	took := time.Since(began)
	s.identity, _ = s.readIdentity(ctx, s.artifact)
	after := s.identity
	f.Expect(after.BootID != "" && after.BootID != before.BootID, "another boot id than before, "+cmp.Or(before.BootID, "(none)"), "boot id "+cmp.Or(after.BootID, "(none)"))
	f.AddFact(fmt.Sprintf("back after %s", took.Round(100*time.Millisecond)))
	if before.Slot != "" || after.Slot != "" {
		f.AddFact(fmt.Sprintf("slot %s before, %s now", cmp.Or(before.Slot, "(none)"), cmp.Or(after.Slot, "(none)")))
	}
	return f, nil
}

// Alone returns true: no other check runs while the board restarts.
func (r reboot) Alone() bool { return true }

func (r reboot) Next() string {
	return "look at the board's serial console; if it is up again, on the board: journalctl -b -1 -e, for how the boot before ended"
}
