package update

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"slipway/flash/target"
)

// Finding is one thing that was looked at before anything is written.
type Finding struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Saw     string  `json:"saw"`
	Next    string  `json:"next,omitempty"` // what to do, where it was refused
}

// Verdict is what came of it.
type Verdict string

// The verdicts.
const (
	Checked       Verdict = "checked"
	Refused       Verdict = "refused"
	NotApplicable Verdict = "not applicable"
)

// Rules say what of an update somebody allows.
type Rules struct {
	Downgrade bool // an older version than the one that runs
}

// preflight is what the preflight knows of a board and of a bundle.
type preflight struct {
	ctx      context.Context
	c        *target.Conn
	engine   Engine
	bundle   *Bundle
	rules    Rules
	status   Status
	delivery Delivery
	why      string
}

// preflights are what is looked at, in the order in which it is shown.
var preflights = []struct {
	name string
	look func(preflight) Finding
}{
	{"bundle", preflight.checkFormat},
	{"user", preflight.checkUser},
	{"slots", preflight.checkSlots},
	{"earlier update", preflight.checkEarlierUpdate},
	{"compatible", preflight.checkCompatible},
	{"version", preflight.checkVersion},
	{"firmware", preflight.checkFirmware},
	{"delivery", preflight.checkDelivery},
}

// Preflight looks whether a bundle can be installed, and writes nothing. The
// signature is Judge's, as the engine has to get at the bundle for it.
func Preflight(ctx context.Context, c *target.Conn, e Engine, b *Bundle, rules Rules) ([]Finding, Status, error) {
	status, err := e.Status(ctx)
	if err != nil {
		return nil, status, err
	}
	l := preflight{ctx: ctx, c: c, engine: e, bundle: b, rules: rules, status: status}
	l.delivery, l.why = e.ChooseDelivery(ctx, b)
	var all []Finding
	for _, p := range preflights {
		f := p.look(l)
		f.Name = p.name
		all = append(all, f)
	}
	if ctx.Err() != nil {
		return all, status, context.Cause(ctx)
	}
	return all, status, nil
}

// CheckSignature has the engine judge a bundle that was offered to it, and holds what it
// reads there to the same rules: a plain bundle of RAUC's says nothing to others. The
// error is of a board that could not be asked, which says nothing of the bundle.
func CheckSignature(ctx context.Context, e Engine, from *Source, board Status, rules Rules) ([]Finding, error) {
	claims, err := e.Inspect(ctx, from)
	signature := checkedFinding("%s trusts it", e.Name())
	switch {
	case errors.Is(err, ErrLost), errors.Is(err, ErrBusy):
		return nil, err
	case errors.Is(err, ErrNoInspection):
		signature = notApplicableFinding("%v", err)
	case err != nil:
		signature = from.refuseUntrusted(ctx, err)
	}
	signature.Name = "signature"
	all := []Finding{signature}
	if err == nil {
		kind, version := compareCompatible(claims, board), compareVersion(claims, board, rules)
		kind.Name, version.Name = "compatible, by the engine", "version, by the engine"
		all = append(all, kind, version)
	}
	return all, nil
}

// RefusedError is an error that names what was refused, nil where nothing was.
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

// ErrRefused is of an update that was not begun.
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

func (l preflight) checkFormat() Finding {
	b := l.bundle
	if !strings.HasPrefix(l.engine.Name(), string(b.Kind)) {
		return refusedFinding("take a bundle for the engine that the board has", "%s is for %s, and the board has %s", b.File, b.Kind, l.engine.Name())
	}
	words := []string{string(b.Kind), b.Format, fmt.Sprintf("%d KiB", b.SizeBytes>>10)}
	if b.Signer != "" {
		words = append(words, "says that it was signed by "+b.Signer)
	}
	return checkedFinding("%s", strings.Join(words, ", "))
}

// checkUser asks who is logged in: engines write slots for root alone, and say so late.
func (l preflight) checkUser() Finding {
	id, err := userID(l.ctx, l.c)
	if err == nil && id == "0" {
		return checkedFinding("root")
	}
	next := fmt.Sprintf("log in as root: root@%s (images of bitbake's open to it with SLIPWAY_ROOT_LOGIN=1), or add -become where the user has sudo", l.c.Address().Host)
	if err != nil {
		return refusedFinding(next, "%v", err)
	}
	return refusedFinding(next, "user %s, who may not install", id)
}

func (l preflight) checkSlots() Finding {
	booted, ok := l.status.BootedSlot()
	other, has := l.status.OtherSlot()
	switch {
	case !ok:
		return refusedFinding("look on the board which slot runs: cat /proc/cmdline", "%s does not know which slot runs", l.engine.Name())
	case len(l.status.Slots) == 1:
		return notApplicableFinding("%s tells of no slots", l.engine.Name())
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

func (l preflight) checkEarlierUpdate() Finding {
	if l.status.WaitsForRestart() {
		return refusedFinding("restart the board and look whether that system is good (reboot, smoke, then mark it good); or have the one that runs stay (with RAUC: rauc status mark-active booted)",
			"%s was installed earlier and waits for a restart", l.status.Primary)
	}
	return checkedFinding("none waits for a restart")
}

func (l preflight) checkCompatible() Finding {
	if l.bundle.Compatible == "" {
		return notApplicableFinding("the bundle says it only to the engine")
	}
	return compareCompatible(l.bundle.Claims, l.status)
}

func compareCompatible(c Claims, board Status) Finding {
	switch {
	case board.Compatible == "" || c.Compatible == "":
		return notApplicableFinding("the engine compares it when it reads the bundle")
	case c.Compatible != board.Compatible:
		return refusedFinding("take the bundle of this kind of board", "the bundle is for %q, and the board is %q", c.Compatible, board.Compatible)
	}
	return checkedFinding("%s", c.Compatible)
}

func (l preflight) checkVersion() Finding {
	if l.bundle.Version == "" {
		return notApplicableFinding("the bundle says it only to the engine")
	}
	return compareVersion(l.bundle.Claims, l.status, l.rules)
}

func compareVersion(c Claims, board Status, rules Rules) Finding {
	booted, _ := board.BootedSlot()
	switch {
	case booted.Version == "":
		return notApplicableFinding("%q comes; the engine does not know the version of what runs, as it did not install it", c.Version)
	case c.Version == "":
		return notApplicableFinding("the bundle has none; %s runs", booted.Version)
	case !isOlder(c.Version, booted.Version):
		return checkedFinding("%s runs, %s comes", booted.Version, c.Version)
	case rules.Downgrade:
		return checkedFinding("%s runs, the older %s comes, which was allowed", booted.Version, c.Version)
	}
	return refusedFinding("give -downgrade if that is wanted", "%s runs, and the bundle holds the older %s", booted.Version, c.Version)
}

func (l preflight) checkDelivery() Finding {
	if l.delivery != Staged {
		return checkedFinding("%s, so no room is needed on the board", l.delivery)
	}
	dir, err := findStageDir(l.ctx, l.c, l.bundle.SizeBytes+spareBytes)
	if err != nil {
		return refusedFinding("remove files there, or take a bundle that can be streamed", "%s; %v", l.why, err)
	}
	return checkedFinding("put into %s of the board first: %s", dir, l.why)
}
