// Package update has a board's own engine (RAUC, SWUpdate, Mender) install a
// bundle of this machine, and asks it which system runs. It writes no slot itself
// and restarts nothing; see ci.Update for the whole flow.
//
// A board is hostile here too: what it says has a limit, and is shown to a person
// by plaintext.OneLine.
package update

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"slipway/flash/target"
)

// Engine installs bundles on one board. All methods ask the board anew; each may
// be repeated, and none leaves anything behind when ctx ends, but for Install.
type Engine interface {
	// Name is what people call it, with its release where it tells that.
	Name() string

	// ChooseDelivery says how a bundle gets to this board, and why not in a better way.
	ChooseDelivery(ctx context.Context, b *Bundle) (way Delivery, why string)

	// Status tells which slots there are. A board whose engine knows none has the
	// one that runs.
	Status(ctx context.Context) (Status, error)

	// Inspect has the engine judge a bundle, its signature too, and writes nothing.
	// ErrUnjudged says that it judges only while it installs.
	Inspect(ctx context.Context, from *Source) (Claims, error)

	// Install writes the bundle to the slot that does not run and has the boot
	// loader try that next. It returns when the engine has ended, with ErrBusy
	// before it touched anything if an installation is under way, and with ErrLost
	// if the board could not be asked how it ended: then Settle tells, on a new
	// connection. The slot that runs is never written. When ctx ends the
	// installation is broken off on the board too, as far as that still answers;
	// the slot that was written is then not bootable, and the board stays on the
	// system that runs. tell gets percents that never fall.
	Install(ctx context.Context, from *Source, tell func(percent int, text string)) error

	// WaitUntilIdle waits until no installation is under way any more.
	WaitUntilIdle(ctx context.Context) error

	// MarkGood makes the system that runs the one that stays. Until then a boot
	// loader that counts may go back.
	MarkGood(ctx context.Context) error

	// MarkBad has the boot loader start the other system next.
	MarkBad(ctx context.Context) error
}

// Delivery is how a bundle gets to a board.
type Delivery string

// The ways.
const (
	Streamed Delivery = "streamed" // the engine fetches what it lacks from us, by HTTP through the SSH connection
	Staged   Delivery = "staged"   // as a file on the board, which is removed afterwards
	Piped    Delivery = "piped"    // as the standard input of the engine's program
)

// Status is a board as its engine sees it.
type Status struct {
	Compatible string `json:"compatible,omitempty"` // what bundles must be for
	Slots      []Slot `json:"slots"`
	Primary    string `json:"primary,omitempty"` // the slot that the boot loader tries next
}

// Slot is one place for a system.
type Slot struct {
	Name    string `json:"name"`
	Boot    string `json:"boot,omitempty"` // its name for the boot loader; "" where it cannot be booted
	Device  string `json:"device,omitempty"`
	State   string `json:"state,omitempty"` // good or bad; "" where nobody knows
	Booted  bool   `json:"booted"`
	Version string `json:"version,omitempty"` // of the bundle that was installed into it
	Failed  bool   `json:"failed,omitempty"`  // its last installation did not end well

	// Installation tells what was installed here from what is installed later, also if
	// the bundle is the same; "" where the engine keeps no record.
	Installation string `json:"installation,omitempty"`
}

// The states of a slot.
const (
	Good = "good"
	Bad  = "bad"
)

// BootedSlot is the slot that runs.
func (s Status) BootedSlot() (Slot, bool) {
	for _, slot := range s.Slots {
		if slot.Booted {
			return slot, true
		}
	}
	return Slot{}, false
}

// OtherSlot is the slot that the next bundle goes to.
func (s Status) OtherSlot() (Slot, bool) {
	for _, slot := range s.Slots {
		if !slot.Booted && slot.Boot != "" {
			return slot, true
		}
	}
	return Slot{}, false
}

// WaitsForRestart says whether a system was installed that has not run yet.
func (s Status) WaitsForRestart() bool {
	booted, ok := s.BootedSlot()
	return ok && s.Primary != "" && s.Primary != booted.Name
}

// Claims are what a bundle says of itself.
type Claims struct {
	Compatible string `json:"compatible,omitempty"`
	Version    string `json:"version,omitempty"`
	Signer     string `json:"signer,omitempty"` // the certificate's subject
}

// Errors that a caller branches on.
var (
	ErrNoEngine     = errors.New("no update engine")
	ErrBusy         = errors.New("an installation is under way on the board")
	ErrLost         = errors.New("no answer from the board's engine")
	ErrNoInspection = errors.New("the engine judges a bundle only while it installs it")
)

// SystemBus is where boards have their D-Bus.
const SystemBus = "/run/dbus/system_bus_socket"

// finders ask a board for one kind of engine each; nil where it has none.
var finders = []func(ctx context.Context, c *target.Conn, bus string) (Engine, error){
	findRAUC, findSWUpdate, findMender,
}

// FindEngine returns the engine of the board. It is asked, not told: an image may have
// been changed since somebody wrote down what is in it.
func FindEngine(ctx context.Context, c *target.Conn, bus string) (Engine, error) {
	var why []string
	for _, find := range finders {
		e, err := find(ctx, c, bus)
		switch {
		case err == nil:
			return e, nil
		case ctx.Err() != nil:
			return nil, err
		}
		why = append(why, err.Error())
	}
	return nil, fmt.Errorf("%w on %s: %s\n  files and containers can be brought to it as they are: deploy, or rsync over the same SSH connection",
		ErrNoEngine, c.Address().Host, strings.Join(why, "; "))
}
