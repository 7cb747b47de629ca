package regular

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A file is replaced whole, and a failure leaves the old file and no other.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	failed := errors.New("failed")
	for i, want := range []string{"one", "two", "two"} {
		err := Replace(path, ".file-*", func(f *os.File) error {
			_, err := f.WriteString([]string{"one", "two", "three"}[i])
			if i == 2 {
				err = failed
			}
			return err
		})
		if errors.Is(err, failed) != (i == 2) {
			t.Errorf("Replace = %v", err)
		}
		if got, err := os.ReadFile(path); string(got) != want {
			t.Errorf("the file has %q, %v; want %q", got, err, want)
		}
	}
	if left, err := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("the folder has %v, %v; want one file", left, err)
	}
	if err := Replace(dir, ".dir-*", func(*os.File) error { return nil }); err == nil {
		t.Error("Replace of a folder succeeded")
	}
}
