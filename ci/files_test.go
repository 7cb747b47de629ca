package ci

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFIFOIsNoFileToDeploy(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, remove, err := asFolder(fifo)
		if err == nil {
			remove()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || err.Error() != fifo+" is no regular file" {
			t.Errorf("asFolder = %v; want that it is no regular file", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("asFolder waits for a FIFO")
	}
}
