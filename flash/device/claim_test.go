package device

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/flashtest"
)

// udev locks a device for the moment in which it looks what is on it.
func TestLockedForAMoment(t *testing.T) {
	defer func(was time.Duration) { LockPatience = was }(LockPatience)
	LockPatience = time.Minute
	device, _ := flashtest.Loop(t, 8*mib)
	other := flashtest.Open(t, device, 0)
	if err := unix.Flock(int(other.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	unlocked := make(chan error, 1)
	go func() {
		time.Sleep(100 * time.Millisecond)
		unlocked <- unix.Flock(int(other.Fd()), unix.LOCK_UN)
	}()
	t.Cleanup(func() { // before the file is closed
		if err := <-unlocked; err != nil {
			t.Error(err)
		}
	})
	d, err := here.examineName(device)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Claim(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestDevicesShowsLoop(t *testing.T) {
	device, file := flashtest.Loop(t, 8*mib)
	devices, err := List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if d.Path == device && d.Model == file && d.SizeBytes == 8*mib && d.Refused == "" {
			return
		}
	}
	t.Errorf("Devices = %+v; want %s over %s among them", devices, device, file)
}

// A device that is only read may be read-only. While it is read, nobody mounts or writes it.
func TestClaimToRead(t *testing.T) {
	disk, _ := flashtest.Loop(t, 16<<20)
	flashtest.MustRun(t, flashtest.E2fs(t, "mke2fs"), "-q", "-F", disk)
	flashtest.MustRun(t, "blockdev", "--setro", disk)
	t.Cleanup(func() { _ = exec.Command("blockdev", "--setrw", disk).Run() })
	if d, err := Examine(disk); err != nil || !strings.HasPrefix(d.Refused, "read-only") {
		t.Errorf("Examine = %q, %v; want a refusal", d.Refused, err)
	}
	d, err := ExamineToRead(disk)
	if err != nil || d.Refused != "" {
		t.Fatalf("ExamineToRead = %q, %v", d.Refused, err)
	}
	f, err := ClaimToRead(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	mount := func() error { return exec.Command("mount", "-o", "ro", disk, at).Run() }
	if mount() == nil {
		t.Error("it was mounted while it was read")
	}
	if _, err := f.WriteAt([]byte{1}, 0); err == nil {
		t.Error("it can be written")
	}
	if _, err := ClaimToRead(t.Context(), d); !errors.Is(err, ErrRefused) {
		t.Errorf("ClaimToRead once more = %v; want ErrRefused", err)
	}
	f.Close()
	if err := mount(); err != nil {
		t.Fatalf("mount: %v", err)
	}
	defer func() { _ = exec.Command("umount", at).Run() }()
	if d, err := ExamineToRead(disk); err != nil || !strings.Contains(d.Refused, "mounted on") {
		t.Errorf("ExamineToRead of a mounted one = %q, %v", d.Refused, err)
	}
	if _, err := ClaimToRead(t.Context(), d); !errors.Is(err, ErrRefused) {
		t.Errorf("ClaimToRead of a mounted one = %v; want ErrRefused", err)
	}
}
