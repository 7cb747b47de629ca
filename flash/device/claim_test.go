package device

import (
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
