package cdi

import (
	"os"
	"path/filepath"
	"testing"
)

// The file is for everybody to read, and nothing else is left.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	path := filepath.Join(dir, "slipway.json")
	if err := Write(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if info, statErr := os.Stat(path); err != nil || statErr != nil || string(data) != "new" || info.Mode() != 0o644 {
		t.Errorf("the file holds %q, %v, %v; want new, for everybody to read", data, err, info.Mode())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v is there; want the file alone", left, err)
	}
}
