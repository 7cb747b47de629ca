package flash

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/flash/device"
	"slipway/flash/flashtest"
)

// badCard is a loop device over a file for which its file system has no space: writes to
// it fail as those to a broken card.
func badCard(t *testing.T, size int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	file := filepath.Join(dir, "card")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	return flashtest.Attach(t, file)
}

// fullFolder is a file in a file system with too little space for an image.
func fullFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return filepath.Join(dir, "a.img")
}

// One card that is bad, and one that somebody takes meanwhile, do not stop the others.
func TestBadCardAmongOthers(t *testing.T) {
	impatient(t)
	a := artifact(t)
	first, _ := flashtest.Loop(t, deviceSize)
	busy, _ := flashtest.Loop(t, deviceSize)
	last, _ := flashtest.Loop(t, deviceSize)
	devices := []string{first, badCard(t, deviceSize), busy, last}
	before := read(t, busy)
	receipts, err := WriteAll(t.Context(), spec, a, devices, Options{Confirm: func([]device.Device) error {
		hold(t, busy, os.O_RDONLY|unix.O_EXCL)
		return nil
	}})
	if len(receipts) != 2 || receipts[0].Device.Path != first || receipts[1].Device.Path != last {
		t.Fatalf("WriteAll = %+v, %v; want the first and the last card whole", receipts, err)
	}
	for _, device := range []string{first, last} {
		same(t, device, read(t, device)[:imageSize], image(t, a))
	}
	same(t, "busy", read(t, busy), before)
	f := &Failed{}
	if !errors.As(err, &f) || len(f.Receipts) != 2 {
		t.Fatalf("WriteAll = %#v; want the receipts of those that failed", err)
	}
	for i, want := range []struct{ device, reason string }{{devices[1], "device"}, {busy, "refused"}} {
		if r := f.Receipts[i]; r.Device.Path != want.device || r.Reason != want.reason || r.Error == "" || r.ReadBack {
			t.Errorf("receipt = %+v; want one of %s, %s", r, want.device, want.reason)
		}
		if !strings.Contains(err.Error(), want.device+": ") {
			t.Errorf("WriteAll = %v; want it to name %s", err, want.device)
		}
	}
	if !errors.Is(err, ErrDevice) || !errors.Is(err, ErrRefused) || errors.Is(err, ErrImage) {
		t.Errorf("WriteAll = %v; want the kinds of both", err)
	}
}

// A script can tell what to do next: another device, another image, another card.
func TestKindsOfFailure(t *testing.T) {
	a, dir := artifact(t), t.TempDir()
	damaged := artifact(t)
	damage(t, filepath.Join(damaged.Dir(), "disk.img"), unsampled)
	tests := []struct {
		name   string
		device func(t *testing.T) string
		o      Options
		want   error
		word   string
	}{
		{"no such device", func(*testing.T) string { return "/dev/sdzz" }, Options{}, ErrRefused, "refused"},
		{"not confirmed", func(t *testing.T) string { device, _ := flashtest.Loop(t, littleDevice); return device }, Options{}, ErrRefused, "refused"},
		{"too small", func(t *testing.T) string { device, _ := flashtest.Loop(t, littleDevice); return device }, byAnswer, ErrRefused, "refused"},
		{"no image", func(*testing.T) string { return filepath.Join(dir, "a.img") }, Options{Image: "/nothing.img"}, ErrImage, "image"},
		{"wrong digest", func(*testing.T) string { return filepath.Join(dir, "a.img") }, Options{Digest: "sha256:" + sumOf(nil)}, ErrImage, "image"},
		{"none of a disk", func(*testing.T) string { return filepath.Join(dir, "a.img") }, Options{Image: "/proc/self/exe"}, ErrImage, "image"},
		{"a folder that cannot be written", func(*testing.T) string { return "/proc/a.img" }, Options{}, ErrRefused, "refused"},
		{"a full file system", fullFolder, Options{}, ErrRefused, "refused"},
		{"bad card", func(t *testing.T) string { return badCard(t, deviceSize) }, byAnswer, ErrDevice, "device"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := test.device(t)
			_, err := Write(t.Context(), spec, a, name, test.o)
			f := &Failed{}
			if !errors.Is(err, test.want) || !errors.As(err, &f) || len(f.Receipts) != 1 || f.Receipts[0].Reason != test.word || f.Receipts[0].Device.Path != name {
				t.Errorf("Write = %#v; want %v, and a receipt that says %s", err, test.want, test.word)
			}
		})
	}
	device, _ := flashtest.Loop(t, deviceSize)
	if _, err := Write(t.Context(), spec, damaged, device, byAnswer); !errors.Is(err, ErrImage) || errors.Is(err, ErrDevice) {
		t.Errorf("an image that turns out to be damaged: %v; want it to be its fault", err)
	}
	if _, err := Write(interrupted(t), spec, a, device, byAnswer); err == nil || errors.Is(err, ErrImage) || errors.Is(err, ErrDevice) || errors.Is(err, ErrRefused) {
		t.Errorf("interrupted: %v; want nobody's fault", err)
	}
}

// A refusal of one device is not the error of the others, and the receipts say what is known.
func TestRefusedAmongOthers(t *testing.T) {
	a := little(t)
	fits, _ := flashtest.Loop(t, littleDevice)
	small, _ := flashtest.Loop(t, littleImage-512)
	for wrong, wantErr := range map[string]string{small: "the image needs", "/dev/sdzz": "no such device"} {
		_, err := WriteAll(t.Context(), spec, a, []string{fits, wrong}, Options{Yes: []string{fits, small}})
		f := &Failed{}
		if !errors.As(err, &f) || len(f.Receipts) != 2 {
			t.Fatalf("WriteAll = %v; want two receipts", err)
		}
		other, own := f.Receipts[0], f.Receipts[1]
		if other.Error != "nothing was written to "+fits+", because of "+wrong || other.Reason != "refused" || other.Device.SizeBytes == 0 {
			t.Errorf("%s: receipt of %s: %+v; want it to name %s", wrong, fits, other, wrong)
		}
		if !strings.Contains(own.Error, wantErr) || own.Reason != "refused" || own.Finished.IsZero() || other.Finished.IsZero() {
			t.Errorf("receipt of %s: %+v; want the error %q, and when", wrong, own, wantErr)
		}
	}
}
