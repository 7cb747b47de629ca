package bench

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A variant that frees parts of the device leaves work to the next one, and
// takes it over from the last.
func TestSettleEmptiesTheDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a loop device")
	}
	b := &flashBench{dir: t.TempDir()}
	t.Cleanup(func() { b.close() })
	if err := b.attach(t.Context()); err != nil {
		t.Skipf("cannot make a loop device (Debian package mount): %v", err)
	}
	f, err := os.OpenFile(b.device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = 1
	}
	for range 16 {
		if _, err := f.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if got := b.heldBytes(t); got < 16<<20 {
		t.Fatalf("the device's file holds %d bytes; want the 16 MiB that were written", got)
	}
	if err := b.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.heldBytes(t); got > 1<<16 {
		t.Errorf("the device's file holds %d bytes after settle; want next to nothing", got)
	}
	f, err = os.Open(b.device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadFull(f, data); err != nil || data[0] != 0 {
		t.Errorf("the device begins with %d, %v after settle; want 0", data[0], err)
	}
}

func (b *flashBench) heldBytes(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(b.dir, "device"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
