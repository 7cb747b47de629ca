package update_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"slipway/flash/target/update"
	"slipway/flash/target/update/updatetest"
)

func TestRAUC(t *testing.T) {
	r := updatetest.StartRAUC(t)
	r.Key(t, "other-signer")
	good := r.Make(t, updatetest.Bundle{Name: "good", Version: "2", Content: "system 2"})
	updatetest.Run(t, updatetest.Board{
		Conn: updatetest.Connect(t), Bus: r.Bus, Name: "RAUC", Good: good, New: "system 2",
		Refused: map[string]string{
			"another board's":       r.Make(t, updatetest.Bundle{Name: "other", Compatible: "toaster", Version: "2", Content: "crumbs"}),
			"another signer's":      r.Make(t, updatetest.Bundle{Name: "other-signer", Version: "2", Content: "system 3", Key: "other-signer"}),
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
			r := updatetest.StartRAUC(t)
			e, err := update.FindEngine(t.Context(), updatetest.Connect(t), r.Bus)
			if err != nil {
				t.Fatal(err)
			}
			r.Late(t)
			if err := first(t.Context(), e); err != nil {
				t.Error(err)
			}
			if n := r.Starts(); n < 2 {
				t.Errorf("the D-Bus started RAUC %d times; want a second time", n)
			}
		})
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
