package cdi

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The file is for everybody to read, and what a killed writer left goes with the
// next; what another one writes meanwhile stays.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	path := filepath.Join(dir, "slipway.json")
	if err := Write(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{".slipway-1": time.Hour, ".slipway-2": 0} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if info, statErr := os.Stat(path); err != nil || statErr != nil || string(data) != "new" || info.Mode() != 0o644 {
		t.Errorf("the file holds %q, %v, %v; want new, for everybody to read", data, err, info.Mode())
	}
	left, err := filepath.Glob(dir + "/.*")
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != ".slipway-2" {
		t.Errorf("%q, %v is there; want what another one writes", left, err)
	}
}
