package flash

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"slipway/flash/flashtest"
)

// attachSparse attaches a sparse file.
func attachSparse(t *testing.T, size int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
	file := filepath.Join(t.TempDir(), "sparse")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	return flashtest.Attach(t, file)
}

// hold opens a device in another program.
func hold(t *testing.T, device string, flags int) {
	t.Helper()
	f, err := os.OpenFile(device, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	flashtest.Sleep(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{f} })
	f.Close()
}
