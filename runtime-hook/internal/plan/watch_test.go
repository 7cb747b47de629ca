package plan

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
)

// A watch breaks at what would make another plan, or another file of the same
// name, and at nothing else.
func TestWatch(t *testing.T) {
	tests := []struct {
		name   string
		change func(root string) error
		holds  bool
	}{
		{"nothing", func(string) error { return nil }, true},
		{"a new file beside", func(root string) error { return os.WriteFile(root+"/lib/other", nil, 0o644) }, true},
		{"a library is written", func(root string) error { return os.WriteFile(root+"/lib/a.so.1", []byte("longer"), 0o644) }, false},
		{"a library is replaced", func(root string) error {
			if err := os.WriteFile(root+"/lib/new", []byte("a"), 0o644); err != nil {
				return err
			}
			return os.Rename(root+"/lib/new", root+"/lib/a.so.1")
		}, false},
		{"a library is removed", func(root string) error { return os.Remove(root + "/lib/a.so.1") }, false},
		{"rights", func(root string) error { return os.Chmod(root+"/lib/a.so.1", 0o666) }, false},
		{"a link leads elsewhere", func(root string) error {
			if err := os.Remove(root + "/lib/a.so"); err != nil {
				return err
			}
			return os.Symlink("./a.so.1", root+"/lib/a.so")
		}, false},
		{"a folder becomes a link", func(root string) error {
			if err := os.Rename(root+"/lib", root+"/lib2"); err != nil {
				return err
			}
			return os.Symlink("lib2", root+"/lib")
		}, false},
		{"what was missing appears", func(root string) error { return os.WriteFile(root+"/lib/missing", nil, 0o644) }, false},
		{"its folder appears", func(root string) error { return os.Mkdir(root+"/far", 0o755) }, false},
		{"a pattern matches more", func(root string) error { return os.WriteFile(root+"/cards/card1", nil, 0o644) }, false},
		{"a pattern matches less", func(root string) error { return os.Remove(root + "/cards/card0") }, false},
		{"a given folder has more in it", func(root string) error { return os.WriteFile(root+"/share/x", nil, 0o644) }, false},
		{"the alternate root gets it", func(root string) error {
			return os.MkdirAll(root+AltRoot+"/lib", 0o755)
		}, false},
		{"a release", func(root string) error { return os.MkdirAll(root+"/etc/nv_tegra_release", 0o755) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for _, d := range []string{"lib", "cards", "share"} {
				if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range []string{"lib/a.so.1", "cards/card0", "share/s"} {
				if err := os.WriteFile(filepath.Join(root, f), []byte("a"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink("a.so.1", root+"/lib/a.so"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // a tick of the file system's clock
			entries, _ := listed(t, "sym, /lib/a.so\nlib, /lib/missing\nlib, /far/away\nlib, /cards/card*\ndir, /share\n")
			w := Compile(root, entries, nil).Watch
			if err := tt.change(root); err != nil {
				t.Fatal(err)
			}
			if holds := w.Holds(); holds != tt.holds {
				t.Errorf("Holds = %v; want %v", holds, tt.holds)
			}
		})
	}
}

// A device that is used stays the same; one with another number does not.
func TestWatchDevice(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes devices")
	}
	node := filepath.Join(t.TempDir(), "gpu")
	make := func(minor uint32) {
		t.Helper()
		if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(1, minor))); err != nil {
			t.Fatal(err)
		}
	}
	make(7)
	w := Compile("/", []csv.Entry{{Kind: csv.Device, Path: node}}, nil).Watch
	if err := os.Chtimes(node, time.Now(), time.Now().Add(time.Hour)); err != nil || !w.Holds() {
		t.Errorf("Holds = false after use, %v; want true", err)
	}
	if err := os.Remove(node); err != nil {
		t.Fatal(err)
	}
	make(3)
	if w.Holds() {
		t.Error("Holds = true for another device; want false")
	}
}

func TestSettled(t *testing.T) {
	now := time.Date(2024, 5, 1, 0, 0, 0, 500_000_000, time.UTC).UnixNano()
	tests := []struct {
		name    string
		changed int64
		want    bool
	}{
		{"long ago", now - int64(time.Hour), true},
		{"just now", now - int64(time.Millisecond), false},
		{"a moment ago", now - int64(time.Second/2) + 1, true},
		{"a moment ago, in whole seconds", now - int64(time.Second/2), false},
		{"while it was looked at", now + int64(time.Millisecond), false},
		{"on a board whose clock is not set", now + int64(time.Hour), true},
	}
	for _, tt := range tests {
		if got := (Watch{{Changed: tt.changed}}).OldEnough(now); got != tt.want {
			t.Errorf("%s: Settled = %v; want %v", tt.name, got, tt.want)
		}
	}
}
