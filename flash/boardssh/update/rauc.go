package update

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"slipway/flash/boardssh"
	"slipway/images/sbom"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// RAUC's names on the D-Bus.
const (
	raucName      = "de.pengutronix.rauc"
	raucInterface = raucName + ".Installer"
	properties    = "org.freedesktop.DBus.Properties"
	busInterface  = "org.freedesktop.DBus"
)

// rauc drives RAUC through its service on the board's D-Bus.
type rauc struct {
	c       *boardssh.Conn
	socket  string
	version string // "" if unknown
}

// findRAUC looks for RAUC's service on the board's D-Bus, running or not, and returns its engine.
func findRAUC(ctx context.Context, c *boardssh.Conn, socket string) (Engine, error) {
	b, err := openBus(ctx, c, socket)
	if err != nil {
		return nil, fmt.Errorf("RAUC is not there: %w", err)
	}
	defer b.close()
	for _, list := range []string{"ListNames", "ListActivatableNames"} {
		var names []string
		what := "ask the D-Bus of " + c.Address().Host + " for RAUC"
		if err := boardssh.Answer(ctx, startsLimit, what, func(ctx context.Context) error {
			return b.conn.BusObject().CallWithContext(ctx, busInterface+"."+list, 0).Store(&names)
		}); err != nil {
			return nil, boardssh.BoardError(what, err)
		}
		if slices.Contains(names, raucName) {
			return &rauc{c, socket, raucVersion(ctx, c)}, nil
		}
	}
	return nil, errors.New("RAUC is not on its D-Bus")
}

// raucVersion returns the version that "rauc --version" prints on the board, as the service has no
// method for it. It returns "" if that fails.
func raucVersion(ctx context.Context, c *boardssh.Conn) string {
	r, err := c.Ask(ctx, "rauc", "--version")
	if err != nil || r.Status != 0 {
		return ""
	}
	version, ok := strings.CutPrefix(strings.TrimSpace(string(r.Stdout)), "rauc ")
	if !ok {
		return ""
	}
	return truncateText(plaintext.OneLine(version), 40)
}

func (r *rauc) Name() string { return strings.TrimSpace("RAUC " + r.version) }

// loadNBDScript loads the network block device, with which RAUC streams, unless the kernel has it.
const loadNBDScript = `[ -e /sys/module/nbd ] || [ -e /dev/nbd0 ] || modprobe nbd`

// ChooseDelivery returns Streamed if the bundle, the board's RAUC and its kernel support it.
// Otherwise it returns Staged and the reason. It loads the kernel's nbd module for streaming.
func (r *rauc) ChooseDelivery(ctx context.Context, b *Bundle) (Delivery, string) {
	if b.Format == "plain" {
		return Staged, "RAUC streams no bundle of the format plain; make it with format=verity"
	}
	if isOlder(r.version, "1.9") {
		return Staged, fmt.Sprintf("RAUC %s does not stream", r.version)
	}
	result, err := r.c.Ask(ctx, "sh", "-c", loadNBDScript)
	if err != nil || result.Status != 0 {
		return Staged, "the board's kernel has no nbd, which RAUC streams through"
	}
	return Streamed, ""
}

// maxStarts is how often Slipway calls a service that does not start in time. D-Bus waits
// 25 s each time, and a board that has just booted may need longer.
const maxStarts = 12

// Limits for one D-Bus call. RAUC reads the whole of a plain bundle to inspect it.
const (
	startsLimit  = 5 * time.Minute
	inspectLimit = 30 * time.Minute
)

// callRAUC calls a method of the D-Bus interface that RAUC provides.
func (r *rauc) callRAUC(ctx context.Context, b *bus, method string, into []any, args ...any) error {
	return r.callMethod(ctx, b, method, raucInterface+"."+method, into, args...)
}

// callMethod calls a D-Bus method of the RAUC service and stores the answer in results. It repeats
// the call, up to maxStarts times, while the service starts. A service that ended is an ErrLost,
// and a busy one an ErrBusy. about names the call in errors.
func (r *rauc) callMethod(ctx context.Context, b *bus, about, method string, results []any, args ...any) error {
	what, limit := fmt.Sprintf("RAUC on %s, %s", r.c.Address().Host, about), startsLimit
	if method == raucInterface+".InspectBundle" || method == raucInterface+".Info" {
		limit = inspectLimit
	}
	err := boardssh.Answer(ctx, limit, what, func(ctx context.Context) (err error) {
		for range maxStarts {
			err = b.conn.Object(raucName, "/").CallWithContext(ctx, method, 0, args...).Store(results...)
			if errorName(err) != "TimedOut" { // that is a service that did not start, nor get the call
				break
			}
		}
		return err
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, boardssh.ErrSilent):
		return fmt.Errorf("%w\nnext: systemctl status dbus rauc  # on the board", err)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case isUnanswered(err):
		return fmt.Errorf("%w: %w", ErrLost, boardssh.BoardError(what, err))
	case strings.Contains(err.Error(), "already processing a different method"):
		return fmt.Errorf("%w: %w", ErrBusy, boardssh.BoardError(what, err))
	}
	return boardssh.BoardError(what, err)
}

// isUnanswered reports whether a call got no answer because the service or the D-Bus ended.
func isUnanswered(err error) bool {
	ended := slices.Contains([]string{"NoReply", "ServiceUnknown", "NameHasNoOwner", "Disconnected"}, errorName(err))
	return ended || errors.Is(err, dbus.ErrClosed) || errors.Is(err, io.EOF)
}

// errorName returns the name of a D-Bus error, such as NoReply; "" for another error.
func errorName(err error) string {
	var failed dbus.Error
	errors.As(err, &failed)
	return strings.TrimPrefix(failed.Name, "org.freedesktop.DBus.Error.")
}

// readProperty reads a text property from RAUC, shortened if it is long; "" if it is no text.
func (r *rauc) readProperty(ctx context.Context, b *bus, name string) (string, error) {
	var v dbus.Variant
	if err := r.callMethod(ctx, b, name, properties+".Get", []any{&v}, raucInterface, name); err != nil {
		return "", err
	}
	text, _ := v.Value().(string)
	return truncateText(plaintext.OneLine(text), 4*maxTextBytes), nil
}

// openBus connects to the board's D-Bus for one call or one installation. Slipway keeps no such
// connection, since a restart would break it. A failure is an ErrLost, unless ctx has ended.
func (r *rauc) openBus(ctx context.Context) (*bus, error) {
	b, err := openBus(ctx, r.c, r.socket)
	if err != nil && ctx.Err() == nil { // it worked when the engine was found
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	return b, err
}

type slotStatus struct {
	Name   string
	Fields map[string]dbus.Variant
}

// maxSlots is more than any board has.
const maxSlots = 64

// Status reads the slots, up to maxSlots, the primary slot and the compatible string from RAUC.
// Primary is "" if no slot is bootable.
func (r *rauc) Status(ctx context.Context) (Status, error) {
	b, err := r.openBus(ctx)
	if err != nil {
		return Status{}, err
	}
	defer b.close()
	var slots []slotStatus
	if err := r.callRAUC(ctx, b, "GetSlotStatus", []any{&slots}); err != nil {
		return Status{}, err
	}
	var s Status
	// RAUC returns an error if no slot is bootable, as after the running slot was marked bad.
	if err := r.callRAUC(ctx, b, "GetPrimary", []any{&s.Primary}); err != nil && (ctx.Err() != nil || errors.Is(err, ErrLost) || errors.Is(err, ErrBusy) || errors.Is(err, boardssh.ErrSilent)) {
		return Status{}, err
	}
	s.Primary = truncateText(plaintext.OneLine(s.Primary), maxTextBytes)
	if s.Compatible, err = r.readProperty(ctx, b, "Compatible"); err != nil {
		return Status{}, err
	}
	for _, slot := range slots[:min(len(slots), maxSlots)] {
		s.Slots = append(s.Slots, slot.toSlot())
	}
	return s, nil
}

// toSlot makes a Slot of the fields that RAUC reports for a slot.
func (s slotStatus) toSlot() Slot {
	text := func(key string) string {
		value, _ := s.Fields[key].Value().(string)
		return truncateText(plaintext.OneLine(value), maxTextBytes)
	}
	slot := Slot{
		Name: truncateText(plaintext.OneLine(s.Name), maxTextBytes), Boot: text("bootname"), Device: text("device"),
		Booted: text("state") == "booted", Version: text("bundle.version"),
		Class: text("class"), Parent: text("parent"), SHA256: text("sha256"), Activated: text("activated.timestamp"),
	}
	if at := text("installed.timestamp"); at != "" {
		slot.Installation = at + " " + text("sha256")
	}
	if state := text("boot-status"); state == Good || state == Bad {
		slot.State = state
	}
	// RAUC sets the status "ok" when a slot is written completely.
	if state := text("status"); state != "" && state != "ok" {
		slot.Failed = true
	}
	return slot
}

// Inspect makes RAUC verify and read the bundle. It returns ErrBusy during an installation.
// RAUC before 1.10 has no InspectBundle, but the method Info.
func (r *rauc) Inspect(ctx context.Context, from *Source) (Claims, error) {
	b, err := r.openBus(ctx)
	if err != nil {
		return Claims{}, err
	}
	defer b.close()
	if err := r.checkIdle(ctx, b); err != nil {
		return Claims{}, err
	}
	var info map[string]dbus.Variant
	var old Claims
	err = r.callRAUC(ctx, b, "InspectBundle", []any{&info}, from.Where, map[string]dbus.Variant{})
	switch {
	case err == nil:
		return parseClaims(info), nil
	case errorName(err) != "UnknownMethod":
		return Claims{}, err
	}
	// RAUC before 1.10 has no InspectBundle.
	err = r.callRAUC(ctx, b, "Info", []any{&old.Compatible, &old.Version}, from.Where)
	old.Compatible, old.Version = truncateText(plaintext.OneLine(old.Compatible), maxTextBytes), truncateText(plaintext.OneLine(old.Version), maxTextBytes)
	return old, err
}

// Images runs "rauc info" on the board, because RAUC's D-Bus service before 1.10 lacks this, and
// returns the bundle's images with their checksums.
func (r *rauc) Images(ctx context.Context, from *Source) (all []Image, err error) {
	var result boardssh.Result
	var info struct {
		Images []map[string]struct{ Checksum string }
	}
	what := "run rauc info on " + r.c.Address().Host
	err = boardssh.Answer(ctx, inspectLimit, what, func(ctx context.Context) (err error) {
		result, err = r.c.Run(ctx, "rauc", "info", "--output-format=json", from.Where)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	if err := json.Unmarshal(result.Stdout, &info); err != nil || result.Status != 0 {
		return nil, boardssh.BoardError(what, fmt.Errorf("status %d: %s", result.Status, lastLines(result.Stderr)))
	}
	for _, image := range info.Images {
		for class, about := range image {
			all = append(all, Image{class, about.Checksum})
		}
	}
	return all, nil
}

// parseClaims returns the compatible and version of the group update in InspectBundle's answer.
func parseClaims(info map[string]dbus.Variant) Claims {
	about, _ := info["update"].Value().(map[string]dbus.Variant)
	text := func(key string) string {
		value, _ := about[key].Value().(string)
		return truncateText(plaintext.OneLine(value), maxTextBytes)
	}
	return Claims{Compatible: text("compatible"), Version: text("version")}
}

// installSignals are the D-Bus signals that show an installation's progress and end.
var installSignals = [][]dbus.MatchOption{
	{dbus.WithMatchSender(raucName), dbus.WithMatchObjectPath("/")},
	{dbus.WithMatchSender(busInterface), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, raucName)},
}

// Install calls InstallBundle and waits for its end. ctx's end stops RAUC. A busy RAUC is ErrBusy.
func (r *rauc) Install(ctx context.Context, from *Source, tell func(int, string)) error {
	b, err := r.openBus(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	if err := r.checkIdle(ctx, b); err != nil {
		return err
	}
	for _, match := range installSignals {
		if err := b.conn.AddMatchSignalContext(ctx, match...); err != nil {
			return boardssh.BoardError("follow RAUC's signals", err)
		}
	}
	if err := r.callRAUC(ctx, b, "InstallBundle", nil, from.Where, map[string]dbus.Variant{}); err != nil {
		return err
	}
	return r.followInstallation(ctx, b, tell)
}

// checkIdle returns ErrBusy if an installation is under way.
func (r *rauc) checkIdle(ctx context.Context, b *bus) error {
	operation, err := r.readProperty(ctx, b, "Operation")
	if err == nil && operation != "idle" {
		err = fmt.Errorf("%w (RAUC says %q)", ErrBusy, operation)
	}
	return err
}

// followInstallation waits for an installation, calls tell with its progress, and stops RAUC if ctx
// ends. If the D-Bus or RAUC ends meanwhile, it returns ErrLost.
func (r *rauc) followInstallation(ctx context.Context, b *bus, tell func(int, string)) error {
	for {
		select {
		case <-b.signals.changed:
		case <-b.conn.Context().Done():
			return ErrLost
		case <-ctx.Done():
			return r.stopInstallation(ctx)
		}
		b.signals.mu.Lock()
		percent, text, completed, result, gone := b.signals.percent, b.signals.text, b.signals.completed, b.signals.result, b.signals.gone
		b.signals.mu.Unlock()
		tell(percent, text)
		switch {
		case completed && result == 0:
			return nil
		case completed:
			return r.readInstallError(ctx, b)
		case gone:
			return fmt.Errorf("%w: RAUC's service on the board ended while it installed; look there: journalctl -u rauc", ErrLost)
		}
	}
}

// readInstallError returns an error with RAUC's property LastError.
func (r *rauc) readInstallError(ctx context.Context, b *bus) error {
	text, err := r.readProperty(ctx, b, "LastError")
	if err != nil || text == "" {
		return errors.New("RAUC could not install the bundle and does not say why; look on the board: journalctl -u rauc")
	}
	return fmt.Errorf("RAUC could not install the bundle: %s", text)
}

// cleanupLimit is how long a board may need to stop a service or to remove a bundle.
const cleanupLimit = 30 * time.Second

// stopInstallation stops RAUC's service, the only way to end an installation. It returns why ctx
// ended, and also ErrLost if the service was not stopped. RAUC has marked the slot as bad before it
// wrote to it. The next call starts the service again.
func (r *rauc) stopInstallation(ctx context.Context) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	defer cancel()
	result, err := r.c.Run(limited, "systemctl", "stop", "rauc.service")
	if err != nil || result.Status != 0 {
		return fmt.Errorf("%w; RAUC on the board could not be stopped and may go on: %w", context.Cause(ctx), ErrLost)
	}
	return context.Cause(ctx)
}

// pollInterval is the time between two queries of an engine's state.
const pollInterval = time.Second

// WaitUntilIdle reads RAUC's property Operation every pollInterval until it is "idle".
func (r *rauc) WaitUntilIdle(ctx context.Context) (err error) {
	defer func() {
		if errors.Is(err, ErrBusy) {
			err = fmt.Errorf("%w\nnext: rauc status  # on the board, until it has ended; then repeat the line", err)
		}
	}()
	b, err := r.openBus(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	for {
		operation, err := r.readProperty(ctx, b, "Operation")
		if err != nil || operation == "idle" {
			return err
		}
		if err := run.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

func (r *rauc) MarkGood(ctx context.Context) error { return r.markSlot(ctx, "good", "booted") }

// MarkBad marks the running slot as bad, and the other one as active. With only the first mark, the
// boot loader could have no bootable slot left.
func (r *rauc) MarkBad(ctx context.Context) error {
	if err := r.markSlot(ctx, "bad", "booted"); err != nil {
		return err
	}
	return r.markSlot(ctx, "active", "other")
}

// markSlot calls RAUC's method Mark with a state (good, bad, active) for a slot (booted, other).
func (r *rauc) markSlot(ctx context.Context, state, slot string) error {
	b, err := r.openBus(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	var name, message string
	return r.callRAUC(ctx, b, "Mark", []any{&name, &message}, state, slot)
}

// isOlder reports whether a is older than b in dpkg's order, without a "v", and neither is empty.
func isOlder(a, b string) bool {
	return a != "" && b != "" && sbom.CompareVersions(strings.TrimPrefix(a, "v"), strings.TrimPrefix(b, "v")) < 0
}
