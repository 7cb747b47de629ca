package write

import (
	"os"
	"strings"
	"testing"

	"slipway/flash/source"
)

// Errors of direct I/O name the device, and not the descriptor by which it was opened
// again.
func TestErrorsNameTheDevice(t *testing.T) {
	path := t.TempDir() + "/card"
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := OpenDisk(f)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.direct == nil {
		t.Skip("no direct I/O on the file system of TMPDIR")
	}
	if _, err := d.WriteAt(source.Buffer(4096), 0); err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "/proc/self/fd") {
		t.Errorf("WriteAt = %v; want an error that names %s", err, path)
	}
}
