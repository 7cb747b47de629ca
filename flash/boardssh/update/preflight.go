package update

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"slipway/flash/boardssh"
	"slipway/layers/progress"
)

// Finding is the result of one check before anything is written.
type Finding struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Saw     string  `json:"saw"`
	Next    string  `json:"next,omitempty"` // what the user does after Refused
}

// Verdict is the result of a check.
type Verdict string

// The verdicts.
const (
	Checked       Verdict = "checked"
	Refused       Verdict = "refused"
	NotApplicable Verdict = "not applicable"
)

// preflight is the input of the checks: a board with its status, a bundle, and the delivery.
type preflight struct {
	ctx       context.Context
	c         *boardssh.Conn
	engine    Engine
	bundle    *Bundle
	downgrade bool // the user allows a version older than the running one
	status    Status
	delivery  Delivery
	why       string // why not a better delivery
}

// preflights are the checks, in the order in which they run.
var preflights = []struct {
	name  string
	check func(preflight) Finding
}{
	{"bundle", preflight.checkFormat},
	{"user", preflight.checkUser},
	{"slots", preflight.checkSlots},
	{"earlier update", preflight.checkEarlierUpdate},
	{"compatible", func(p preflight) Finding { return compareCompatible(p.bundle.Claims, p.status) }},
	{"version", preflight.checkVersion},
	{"firmware", preflight.checkFirmware},
	{"delivery", preflight.checkDelivery},
}

// Preflight runs all checks before an update and returns their findings and the board's status,
// after the wait of statusAfterBoot. It writes no bundle, but may load the board's nbd module.
// CheckSignature checks the signature, as the engine needs the bundle for it.
func Preflight(ctx context.Context, c *boardssh.Conn, e Engine, b *Bundle, downgrade bool) ([]Finding, Status, error) {
	status, err := statusAfterBoot(ctx, c, e)
	if err != nil {
		return nil, status, err
	}
	input := preflight{ctx: ctx, c: c, engine: e, bundle: b, downgrade: downgrade, status: status}
	input.delivery, input.why = e.ChooseDelivery(ctx, b)
	var all []Finding
	for _, p := range preflights {
		f := p.check(input)
		f.Name = p.name
		all = append(all, f)
	}
	if ctx.Err() != nil {
		return all, status, context.Cause(ctx)
	}
	return all, status, nil
}

// startLimit is how long statusAfterBoot waits for a board that is still starting.
const startLimit = time.Minute

// statusAfterBoot returns the engine's status. If the booted slot is marked bad, it first waits up
// to startLimit for systemd to finish the boot, at whose end a board marks the slot as good.
func statusAfterBoot(ctx context.Context, c *boardssh.Conn, e Engine) (Status, error) {
	status, err := e.Status(ctx)
	if booted, _ := status.BootedSlot(); err != nil || booted.State != Bad {
		return status, err
	}
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = progress.Run(limited, "start", func(s *progress.Step) (string, error) {
		s.Detail("the system that runs is not marked good; waiting until the board has started")
		// The exit status does not matter: it is not 0 without systemd, or if a unit has failed.
		_, err := c.Run(limited, "systemctl", "is-system-running", "--wait")
		return "", err
	})
	if ctx.Err() != nil {
		return status, context.Cause(ctx)
	}
	if err != nil && limited.Err() == nil {
		return status, err
	}
	return e.Status(ctx)
}

// CheckSignature makes the board's engine verify the bundle's signature and returns the finding. If
// the engine accepts it, CheckSignature also compares compatible and version, as the engine read
// them, with the board: only RAUC can read them in a plain bundle. An error means that the engine
// did not answer or was busy, and says nothing about the bundle.
func CheckSignature(ctx context.Context, e Engine, from *Source, board Status, downgrade bool) ([]Finding, error) {
	claims, err := e.Inspect(ctx, from)
	signature := checkedFinding("%s trusts it", e.Name())
	switch {
	case errors.Is(err, ErrLost), errors.Is(err, ErrBusy), errors.Is(err, boardssh.ErrSilent):
		return nil, err
	case errors.Is(err, ErrNoInspection):
		signature = notApplicableFinding("%v", err)
	case err != nil:
		signature = refusedFinding("take a bundle that was signed for this board and is whole", "%v", err)
	}
	signature.Name = "signature"
	all := []Finding{signature}
	if err == nil {
		kind, version := compareCompatible(claims, board), compareVersion(claims, board, downgrade)
		kind.Name, version.Name = "compatible, by the engine", "version, by the engine"
		all = append(all, kind, version)
	}
	return all, nil
}

// RefusedError returns an ErrRefused with all findings that are Refused, or nil without any.
func RefusedError(all []Finding) error {
	var lines []string
	for _, f := range all {
		if f.Verdict == Refused {
			lines = append(lines, fmt.Sprintf("%s: %s\n  next: %s", f.Name, f.Saw, f.Next))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrRefused, strings.Join(lines, "\n"))
}

// ErrRefused means that the update did not begin.
var ErrRefused = errors.New("refused, and nothing was written")

func checkedFinding(format string, args ...any) Finding {
	return Finding{Verdict: Checked, Saw: fmt.Sprintf(format, args...)}
}

func notApplicableFinding(format string, args ...any) Finding {
	return Finding{Verdict: NotApplicable, Saw: fmt.Sprintf(format, args...)}
}

func refusedFinding(next, format string, args ...any) Finding {
	return Finding{Verdict: Refused, Saw: fmt.Sprintf(format, args...), Next: next}
}

// checkFormat refuses a bundle that is for another engine than the board's.
func (p preflight) checkFormat() Finding {
	b := p.bundle
	if !strings.HasPrefix(p.engine.Name(), string(b.Kind)) {
		return refusedFinding("take a bundle for the engine that the board has", "%s is for %s, and the board has %s", b.File, b.Kind, p.engine.Name())
	}
	return checkedFinding("%s, %d KiB", strings.TrimSpace(string(b.Kind)+" "+b.Format), b.SizeBytes>>10)
}

// checkUser checks that programs run as root on the board. Engines fail late without it.
func (p preflight) checkUser() Finding {
	id, err := userID(p.ctx, p.c)
	if err == nil && id == "0" {
		return checkedFinding("root")
	}
	next := fmt.Sprintf("log in as root: root@%s (images of bitbake's open to it with SLIPWAY_ROOT_LOGIN=1), or add --become if the user has sudo", p.c.Address().Host)
	if err != nil {
		return refusedFinding(next, "%v", err)
	}
	return refusedFinding(next, "user %s, who may not install", id)
}

// checkSlots refuses an unknown or bad booted slot, and a board without a slot on another device to
// write. For an engine that names only one slot, it is not applicable.
func (p preflight) checkSlots() Finding {
	booted, ok := p.status.BootedSlot()
	other, has := p.status.OtherSlot()
	switch {
	case !ok:
		return refusedFinding("look on the board which slot runs: cat /proc/cmdline", "%s does not know which slot runs", p.engine.Name())
	case len(p.status.Slots) == 1:
		return notApplicableFinding("%s tells of no slots", p.engine.Name())
	case !has:
		return refusedFinding("flash the board with an image that has two slots", "there is no other slot than %s, which runs", booted.Name)
	case other.Device != "" && other.Device == booted.Device:
		return refusedFinding("fix the engine's configuration on the board", "%s and %s, which runs, are both %s", other.Name, booted.Name, other.Device)
	case booted.State == Bad:
		return refusedFinding("prove that the system that runs is good, then have it marked so (with RAUC: rauc status mark-good); otherwise no good one is left when its other slot is written",
			"%s runs, and is marked bad or on trial", booted.Name)
	}
	return checkedFinding("%s runs, %s will be written", booted.Name, other.Name)
}

// checkEarlierUpdate refuses if an installed system waits for a restart and the engine has no
// checksum of it. With a checksum, CheckWaiting compares it with the bundle.
func (p preflight) checkEarlierUpdate() Finding {
	if !p.status.WaitsForRestart() {
		return checkedFinding("none waits for a restart")
	}
	if other, _ := p.status.OtherSlot(); other.SHA256 == "" {
		return refusedFinding(nextIfWaiting, "%s was installed earlier and waits for a restart, and %s has no checksum of it", p.status.Primary, p.engine.Name())
	}
	return checkedFinding("%s waits for a restart; Slipway compares it with the bundle, and restarts the board only if it is the same", p.status.Primary)
}

const nextIfWaiting = "restart the board and look whether that system is good (reboot, smoke, then mark it good); or have the one that runs stay (with RAUC: rauc status mark-active booted) and repeat the line"

// CheckWaiting returns an ErrRefused if an installed system waits for a restart and is not
// certainly the one in the bundle. It compares the engine's records and does not read the slots.
func CheckWaiting(ctx context.Context, e Engine, from *Source, before Status) error {
	if !before.WaitsForRestart() {
		return nil
	}
	images, err := e.Images(ctx, from)
	status, errStatus := e.Status(ctx)
	if err = cmp.Or(err, errStatus); err == nil {
		err = status.compareWaiting(images)
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, ErrLost) || errors.Is(err, boardssh.ErrSilent) {
		return err
	}
	f := refusedFinding(nextIfWaiting, "an installed system waits for a restart, and it is not certain that this bundle is in it: %v", err)
	f.Name = "earlier update"
	return RefusedError([]Finding{f})
}

// compareWaiting returns an error unless the slots that wait for a restart have these images, and
// were chosen for the next boot within a minute after they were written.
func (s Status) compareWaiting(images []Image) error {
	activated, last := "", ""
	for _, image := range images {
		i := slices.IndexFunc(s.Slots, func(slot Slot) bool {
			return slot.Class == image.Class && !slot.Booted && s.Primary != "" && (slot.Name == s.Primary || slot.Parent == s.Primary)
		})
		if i < 0 {
			return fmt.Errorf("the bundle has an image for %q, and %q has no such slot", image.Class, s.Primary)
		}
		slot := s.Slots[i]
		if slot.Failed || len(slot.SHA256) != 64 || slot.SHA256 != image.SHA256 {
			return fmt.Errorf("%s has the checksum %q, and the bundle's image has %q", slot.Name, slot.SHA256, image.SHA256)
		}
		last = max(last, strings.TrimSuffix(slot.Installation, " "+slot.SHA256)) // of timestamps in UTC
		if slot.Name == s.Primary {
			activated = slot.Activated
		}
	}
	written, errWritten := time.Parse(time.RFC3339, last)
	chosen, err := time.Parse(time.RFC3339, activated)
	// A later time means that somebody chose the slot again. It may have run and changed since.
	if took := chosen.Sub(written); err != nil || errWritten != nil || took < 0 || took > time.Minute {
		return fmt.Errorf("%q was not chosen for the next boot just when the bundle's images were written, but at %q", s.Primary, activated)
	}
	return nil
}

// compareCompatible refuses a bundle for another kind of board; not applicable if one is unknown.
func compareCompatible(c Claims, board Status) Finding {
	switch {
	case board.Compatible == "" || c.Compatible == "":
		return notApplicableFinding("the engine compares it when it reads the bundle")
	case c.Compatible != board.Compatible:
		return refusedFinding("take the bundle of this kind of board", "the bundle is for %q, and the board is %q", c.Compatible, board.Compatible)
	}
	return checkedFinding("%s", c.Compatible)
}

// checkVersion is compareVersion for the version that Slipway could read from the bundle.
func (p preflight) checkVersion() Finding {
	if p.bundle.Version == "" {
		return notApplicableFinding("the bundle says it only to the engine")
	}
	return compareVersion(p.bundle.Claims, p.status, p.downgrade)
}

// compareVersion refuses an older version than the booted slot's, unless the user allows it. It is
// not applicable if either version is unknown.
func compareVersion(c Claims, board Status, downgrade bool) Finding {
	booted, _ := board.BootedSlot()
	switch {
	case booted.Version == "":
		return notApplicableFinding("%q comes; the engine does not know the version of what runs, as it did not install it", c.Version)
	case c.Version == "":
		return notApplicableFinding("the bundle has none; %s runs", booted.Version)
	case !isOlder(c.Version, booted.Version):
		return checkedFinding("%s runs, %s comes", booted.Version, c.Version)
	case downgrade:
		return checkedFinding("%s runs, the older %s comes, which was allowed", booted.Version, c.Version)
	}
	return refusedFinding("take a newer bundle", "%s runs, and the bundle holds the older %s; --downgrade allows it", booted.Version, c.Version)
}

// checkDelivery checks that the board has a folder with space if the bundle must be staged.
func (p preflight) checkDelivery() Finding {
	if p.delivery != Staged {
		return checkedFinding("%s, so no room is needed on the board", p.delivery)
	}
	dir, err := findStageDir(p.ctx, p.c, p.bundle.SizeBytes+spareBytes)
	if err != nil {
		return refusedFinding("remove files there, or take a bundle that can be streamed", "%s; %v", p.why, err)
	}
	return checkedFinding("put into %s of the board first: %s", dir, p.why)
}
