package update_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/update"
)

func TestRAUC(t *testing.T) {
	r := boardtest.StartRAUC(t)
	r.Key(t, "other-signer")
	good := r.Make(t, boardtest.Bundle{Name: "good", Version: "2", Content: "system 2"})
	runSuite(t, board{
		Conn: boardtest.Connect(t), Bus: r.Bus, Name: "RAUC", Good: good, New: "system 2",
		Refused: map[string]string{
			"another board's":       r.Make(t, boardtest.Bundle{Name: "other", Compatible: "toaster", Version: "2", Content: "crumbs"}),
			"another signer's":      r.Make(t, boardtest.Bundle{Name: "other-signer", Version: "2", Content: "system 3", Key: "other-signer"}),
			"damaged in the middle": damageFile(t, good),
		},
		Running: func() string { return r.Slot(r.Booted()) },
		Other:   func() string { return r.Slot(map[string]string{"A": "B", "B": "A"}[r.Booted()]) },
		Restart: func() { r.Restart(t) },
	})
}

// On a busy board, D-Bus stops waiting for RAUC's service before it is ready. Slipway repeats
// the call. Otherwise a new system would count as lost. After a broken connection, the first
// call reads a property.
func TestRAUCThatStartsLate(t *testing.T) {
	for name, first := range map[string]func(context.Context, update.Engine) error{
		"status": func(ctx context.Context, e update.Engine) error {
			s, err := e.Status(ctx)
			if booted, ok := s.BootedSlot(); err == nil && (!ok || booted.Name != "rootfs.0") {
				err = fmt.Errorf("Status = %+v; want rootfs.0, which runs", s)
			}
			return err
		},
		"wait until idle": func(ctx context.Context, e update.Engine) error { return e.WaitUntilIdle(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			r := boardtest.StartRAUC(t)
			e, err := update.FindEngine(t.Context(), boardtest.Connect(t), r.Bus)
			if err != nil {
				t.Fatal(err)
			}
			startLate(t, r)
			if err := first(t.Context(), e); err != nil {
				t.Error(err)
			}
			if n := countStarts(r); n < 2 {
				t.Errorf("the D-Bus started RAUC %d times; want a second time", n)
			}
		})
	}
}

// startingEngine is the engine of a board that starts: at first its system is not marked good.
type startingEngine struct {
	update.Engine
	bad int // how many times Status still says so
}

func (e *startingEngine) Status(ctx context.Context) (update.Status, error) {
	status, err := e.Engine.Status(ctx)
	for i, slot := range status.Slots {
		if slot.Booted && e.bad > 0 {
			status.Slots[i].State = update.Bad
		}
	}
	e.bad--
	return status, err
}

// A board that still starts gets the time to mark its system good.
func TestPreflightWaitsForStart(t *testing.T) {
	r := boardtest.StartRAUC(t)
	b, err := update.OpenBundle(t.Context(), r.Make(t, boardtest.Bundle{Name: "good", Version: "2", Content: "system 2"}))
	if err != nil {
		t.Fatal(err)
	}
	c := boardtest.Connect(t)
	for bad, want := range map[int]update.Verdict{0: update.Checked, 1: update.Checked, 2: update.Refused} {
		engine, err := update.FindEngine(t.Context(), c, r.Bus)
		if err != nil {
			t.Fatal(err)
		}
		findings, _, err := update.Preflight(t.Context(), c, &startingEngine{engine, bad}, b, false)
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(findings, func(f update.Finding) bool { return f.Name == "slots" }); findings[i].Verdict != want {
			t.Errorf("not good for %d looks: %s, %s; want %s", bad, findings[i].Verdict, findings[i].Saw, want)
		}
	}
}

func damageFile(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	name := filepath.Join(t.TempDir(), "damaged.raucb")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// late is a service that hangs at its first start.
const late = `#!/bin/sh
echo start >>@/starts
[ "$(wc -l <@/starts)" -gt 1 ] || exec sleep 60
export DBUS_SYSTEM_BUS_ADDRESS=unix:path=@/bus
exec rauc --conf=@/system.conf --override-boot-slot=A service
`

// startLate kills the service. At the next call, D-Bus starts the script late, which hangs once.
func startLate(t *testing.T, r *boardtest.RAUC) {
	t.Helper()
	r.Kill(t)
	r.Write(t, "late", strings.ReplaceAll(late, "@", string(r.Folder)))
	r.Write(t, "services/rauc.service", "[D-BUS Service]\nName=de.pengutronix.rauc\nExec=/bin/sh "+r.File("late")+"\n")
	conn, err := dbus.Connect("unix:path=" + r.Bus)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.BusObject().Call("org.freedesktop.DBus.ReloadConfig", 0).Err; err != nil {
		t.Fatal(err)
	}
}

// countStarts returns how often D-Bus started the service.
func countStarts(r *boardtest.RAUC) int { return len(strings.Fields(r.Read("starts"))) }
