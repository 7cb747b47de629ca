// Package update installs a bundle of this machine by a board's own engine, such as RAUC.
// It writes no slot itself and restarts nothing; see ci.Update for the whole flow. It
// treats a board as hostile: it limits what it reads, and cleans it by plaintext.OneLine.
package update

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"slipway/flash/boardssh"
)

// Engine installs bundles on one board. No method uses cached answers of the board. Each
// method may be repeated. Except for Install, none leaves anything behind when ctx ends.
type Engine interface {
	// Name returns the engine's name, with its release if known.
	Name() string

	// ChooseDelivery returns how a bundle gets to this board, and why not in a better way.
	ChooseDelivery(ctx context.Context, b *Bundle) (d Delivery, why string)

	// Status returns the slots. If the engine does not know them, there is one, the running one.
	Status(ctx context.Context) (Status, error)

	// Inspect lets the engine verify a bundle and its signature, and writes nothing.
	// ErrNoInspection means that the engine verifies only while it installs.
	Inspect(ctx context.Context, from *Source) (Claims, error)

	// Images returns a bundle's images, or ErrNoInspection.
	Images(ctx context.Context, from *Source) ([]Image, error)

	// Install writes the bundle to the slot that does not run, and makes the boot loader
	// try that slot next. It never writes the running slot. It returns when the engine has
	// ended. It returns ErrBusy, and has changed nothing, if an installation is under way.
	// It returns ErrLost if the result is unknown: then call WaitUntilIdle and Status on
	// a new connection. When ctx ends, Install stops the installation on the board too, if
	// the board still answers. The written slot is then not bootable, and the board stays on
	// the running system. The percents of tell never decrease.
	Install(ctx context.Context, from *Source, tell func(percent int, text string)) error

	// WaitUntilIdle waits until no installation is under way. If ctx ends with ErrBusy, it adds
	// what the user does next.
	WaitUntilIdle(ctx context.Context) error

	// MarkGood makes the running system permanent. Until then a boot counter may roll it back.
	MarkGood(ctx context.Context) error

	// MarkBad makes the boot loader start the other system next.
	MarkBad(ctx context.Context) error
}

// Delivery is how a bundle gets to a board.
type Delivery string

// The deliveries.
const (
	Streamed Delivery = "streamed" // the engine fetches the blocks that it lacks, by HTTP through the SSH connection
	Staged   Delivery = "staged"   // as a file on the board, which is removed afterwards
	Piped    Delivery = "piped"    // as the standard input of the engine's program
)

// Status is a board's state, from its engine.
type Status struct {
	Compatible string `json:"compatible,omitempty"` // the kind of board that bundles must be for
	Slots      []Slot `json:"slots"`
	Primary    string `json:"primary,omitempty"` // the slot that the boot loader tries next
}

// Slot is one of the places for a system, such as a root partition.
type Slot struct {
	Name    string `json:"name"`
	Boot    string `json:"boot,omitempty"` // its name for the boot loader; "" if it is not bootable
	Device  string `json:"device,omitempty"`
	State   string `json:"state,omitempty"` // good or bad; "" if unknown
	Booted  bool   `json:"booted"`
	Version string `json:"version,omitempty"` // of the bundle that was installed into the slot
	Failed  bool   `json:"failed,omitempty"`  // its last installation failed

	// Installation identifies an installation. It differs even if the same bundle is
	// installed again. It is "" if the engine keeps no record.
	Installation string `json:"installation,omitempty"`

	// Class names the images that fit the slot, and Parent is the slot that this one belongs to. At
	// the time Activated, the slot was chosen for the next boot.
	Class, Parent, SHA256, Activated string `json:"-"`
}

// The states of a slot.
const (
	Good = "good"
	Bad  = "bad"
)

// BootedSlot returns the running slot, or false if the engine marks none.
func (s Status) BootedSlot() (Slot, bool) {
	for _, slot := range s.Slots {
		if slot.Booted {
			return slot, true
		}
	}
	return Slot{}, false
}

// OtherSlot returns the first slot with a Boot name that is not booted, or false if there is none.
// The next bundle goes to it.
func (s Status) OtherSlot() (Slot, bool) {
	for _, slot := range s.Slots {
		if !slot.Booted && slot.Boot != "" {
			return slot, true
		}
	}
	return Slot{}, false
}

// WaitsForRestart reports whether the boot loader will start another slot than the booted one, so
// an installed system has not run yet.
func (s Status) WaitsForRestart() bool {
	booted, ok := s.BootedSlot()
	return ok && s.Primary != "" && s.Primary != booted.Name
}

// Image is an image in a bundle, for the slots of its class.
type Image struct{ Class, SHA256 string }

// Claims are what a bundle says about itself. Compatible is the kind of board that it is for.
type Claims struct {
	Compatible string `json:"compatible,omitempty"`
	Version    string `json:"version,omitempty"`
}

// Errors that a caller branches on.
var (
	ErrNoEngine     = errors.New("no update engine")
	ErrBusy         = errors.New("an installation is under way on the board")
	ErrLost         = errors.New("no answer from the board's engine")
	ErrNoInspection = errors.New("the engine judges a bundle only while it installs it")
)

// SystemBus is the usual socket of a board's D-Bus.
const SystemBus = "/run/dbus/system_bus_socket"

// FindEngine looks for an update engine on the board and returns the first that it finds, or
// ErrNoEngine. bus is the path of the board's D-Bus socket. It asks the board each time, because an
// image may have changed since it was built.
func FindEngine(ctx context.Context, c *boardssh.Conn, bus string) (Engine, error) {
	var why []string
	for _, kind := range engines() {
		e, err := kind.find(ctx, c, bus)
		switch {
		case err == nil:
			return e, nil
		case ctx.Err() != nil, errors.Is(err, boardssh.ErrSilent), errors.Is(err, boardssh.ErrShell):
			return nil, err
		}
		why = append(why, err.Error())
	}
	return nil, fmt.Errorf("%w on %s: %s\n  files and containers can be brought to it as they are: deploy, or rsync over the same SSH connection",
		ErrNoEngine, c.Address().Host, strings.Join(why, "; "))
}
