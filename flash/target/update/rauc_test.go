package update_test

import (
	"os"
	"path/filepath"
	"testing"

	"slipway/flash/target/update/updatetest"
)

func TestRAUC(t *testing.T) {
	r := updatetest.StartRAUC(t)
	r.Key(t, "stranger")
	good := r.Make(t, updatetest.Bundle{Name: "good", Version: "2", Content: "system 2"})
	updatetest.Run(t, updatetest.Board{
		Conn: updatetest.Connect(t), Bus: r.Bus, Name: "RAUC", Good: good, New: "system 2",
		Refused: map[string]string{
			"another board's":       r.Make(t, updatetest.Bundle{Name: "other", Compatible: "toaster", Version: "2", Content: "crumbs"}),
			"a stranger's":          r.Make(t, updatetest.Bundle{Name: "stranger", Version: "2", Content: "system 3", Key: "stranger"}),
			"damaged in the middle": damaged(t, good),
		},
		Running: func() string { return r.Slot(r.Booted()) },
		Other:   func() string { return r.Slot(map[string]string{"A": "B", "B": "A"}[r.Booted()]) },
		Restart: func() { r.Restart(t) },
	})
}

func damaged(t *testing.T, file string) string {
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
