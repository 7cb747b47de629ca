package uevent

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	long := "add@/devices/x" + strings.Repeat("\x00A=B", maxKeys)
	tests := []struct {
		name, message string
		want          Event
		wantErr       string
	}{
		{
			name:    "disk",
			message: "add@/devices/pci0000:00/usb1/1-2/block/sda\x00ACTION=add\x00DEVPATH=/devices/pci0000:00/usb1/1-2/block/sda\x00SUBSYSTEM=block\x00MAJOR=8\x00SEQNUM=1234\x00",
			want:    Event{Action: "add", Path: "/devices/pci0000:00/usb1/1-2/block/sda", Subsystem: "block"},
		},
		{name: "a value with an equals sign", message: "change@/d\x00A=B=C\x00SUBSYSTEM=tty\x00", want: Event{Action: "change", Path: "/d", Subsystem: "tty"}},
		{name: "without values", message: "remove@/d", want: Event{Action: "remove", Path: "/d"}},
		{name: "of udev", message: "libudev\x00\xfe\xed\xca\xfe", wantErr: "instead of an action"},
		{name: "empty", wantErr: "instead of an action"},
		{name: "no path", message: "add@devices\x00", wantErr: "instead of an action"},
		{name: "no value", message: "add@/d\x00SUBSYSTEM\x00", wantErr: "instead of a key"},
		{name: "too many values", message: long, wantErr: "values: more than"},
		{name: "too long", message: "add@/" + strings.Repeat("x", maxBytes), wantErr: "bytes: more than"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse([]byte(test.message))
			if got != test.want || (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("Parse = %+v, %v; want %+v, %q", got, err, test.want, test.wantErr)
			}
		})
	}
}

func listen(t *testing.T) *Listener {
	t.Helper()
	l, err := Listen()
	if err != nil {
		t.Skipf("this machine tells nobody of its devices: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// The test makes the kernel announce a change of a loop device.
func TestNext(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	l := listen(t)
	path := "/devices/virtual/block/" + filepath.Base(device)
	if err := os.WriteFile(filepath.Join("/sys", path, "uevent"), []byte("change"), 0); err != nil {
		t.Skipf("the kernel takes no request for an event: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		e, err := l.Next(ctx)
		if errors.Is(err, context.DeadlineExceeded) && contained(t) {
			t.Skip("the kernel tells nothing to a container with users of its own; run this outside of it")
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.Path == path && e.Action == "change" {
			if e.Subsystem != "block" {
				t.Errorf("subsystem = %q; want block", e.Subsystem)
			}
			return
		}
	}
}

// contained tells a container whose root is not the machine's.
func contained(t *testing.T) bool {
	t.Helper()
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(users)), " ") != "0 0 4294967295"
}

func TestNextEnds(t *testing.T) {
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next = %v; want it to end with its context", err)
	}
}

func FuzzUevent(f *testing.F) {
	f.Add([]byte("add@/devices/virtual/block/loop0\x00ACTION=add\x00SUBSYSTEM=block\x00"))
	f.Add([]byte("libudev\x00\xfe\xed\xca\xfe"))
	f.Fuzz(func(t *testing.T, message []byte) {
		e, err := Parse(message)
		if err != nil && e != (Event{}) {
			t.Errorf("Parse = %+v beside %v", e, err)
		}
		if err == nil && (e.Action == "" || !strings.HasPrefix(e.Path, "/") || strings.Contains(e.Subsystem, "\x00")) {
			t.Errorf("Parse = %+v", e)
		}
	})
}
