package flash

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
)

// meanwhile returns a context in which work is done once the image is written
// beside path, when the flash asks whether the context has ended.
func meanwhile(path string, work func()) context.Context {
	return &busy{context.Background(), path, sync.OnceFunc(work)}
}

type busy struct {
	context.Context
	path string
	work func()
}

func (b *busy) Err() error {
	if _, err := os.Lstat(besideOf(b.path)); err == nil {
		b.work()
	}
	return nil
}

// besideOf is the file that a virtual disk is written to before it has its name.
func besideOf(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".flash")
}

// What happens to a virtual disk between the question and the end of the writing.
func TestWriteFileLooksAgain(t *testing.T) {
	create := func(t *testing.T, path string) { fill(t, path, "new") }
	tests := []struct {
		name    string
		exists  bool
		happens func(t *testing.T, path string)
		want    string // what is there in the end
		wantErr string
	}{
		{name: "nothing", exists: true, happens: func(*testing.T, string) {}},
		{name: "nothing, no file", happens: func(*testing.T, string) {}},
		{name: "a machine is started on it", exists: true, happens: lockAsQEMU, want: "old", wantErr: "stop the virtual machine first"},
		{name: "a machine runs on it for a while", exists: true, happens: func(t *testing.T, path string) {
			fill(t, path, "new")
			later := time.Now().Add(time.Second) // file systems count in steps of milliseconds
			if err := os.Chtimes(path, later, later); err != nil {
				t.Fatal(err)
			}
		}, want: "new", wantErr: "not the file any more"},
		{name: "it is made", happens: create, want: "new", wantErr: "not the file any more"},
		{name: "another takes its place", exists: true, happens: func(t *testing.T, path string) {
			create(t, path+".new")
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}, want: "new", wantErr: "not the file any more"},
		{name: "a link takes its place", exists: true, happens: func(t *testing.T, path string) {
			create(t, filepath.Join(t.TempDir(), "other"))
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/dev/null", path); err != nil {
				t.Fatal(err)
			}
		}, wantErr: "neither a file"},
	}
	a := artifact(t)
	for _, test := range tests {
		check := func(t *testing.T, path string, err error) {
			t.Helper()
			if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("Write = %v; want an error with %q", err, test.wantErr)
			}
			if want := []byte(test.want); len(want) > 0 {
				same(t, "virtual disk", read(t, path), want)
			} else if test.wantErr == "" {
				same(t, "virtual disk", read(t, path), image(t, a))
			}
			if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
				t.Errorf("left: %v; want disk.img alone", left)
			}
		}
		start := func(t *testing.T) string {
			t.Helper()
			path := filepath.Join(t.TempDir(), "disk.img")
			if test.exists {
				fill(t, path, "old")
			}
			return path
		}
		t.Run(test.name+" while it is written", func(t *testing.T) {
			path := start(t)
			_, err := Write(meanwhile(path, func() { test.happens(t, path) }), spec, a, path, Options{Yes: []string{path}})
			check(t, path, err)
		})
		if !test.exists {
			continue // flash asks no question
		}
		t.Run(test.name+" before the answer", func(t *testing.T) {
			path := start(t)
			_, err := Write(t.Context(), spec, a, path, Options{Confirm: func([]device.Device) error {
				test.happens(t, path)
				return nil
			}})
			check(t, path, err)
		})
	}
}

// lockAsQEMU takes one of the locks that QEMU has on the disk of a running machine.
func lockAsQEMU(t *testing.T, path string) {
	t.Helper()
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 201, Len: 1}
	if err := unix.FcntlFlock(flashtest.Open(t, path, 0).Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
}

func TestWriteFileTwiceAtOnce(t *testing.T) {
	a := artifact(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	ctx := meanwhile(path, func() {
		_, err := Write(t.Context(), spec, a, path, Options{})
		if err == nil || !strings.Contains(err.Error(), "another flash") {
			t.Errorf("second Write = %v; want it refused", err)
		}
	})
	if _, err := Write(ctx, spec, a, path, Options{}); err != nil {
		t.Error(err)
	}
	same(t, "virtual disk", read(t, path), image(t, a))
}

// A flash that is killed leaves a file behind, which the next one removes.
func TestWriteFileAfterOneThatWasKilled(t *testing.T) {
	if dir := os.Getenv("KILLED_FLASH"); dir != "" {
		a, err := images.OpenArtifact(dir)
		if err != nil {
			t.Fatal(err)
		}
		path := os.Getenv("KILLED_DISK")
		ctx := meanwhile(path, func() { unix.Kill(os.Getpid(), unix.SIGKILL) })
		_, err = Write(ctx, spec, a, path, Options{})
		t.Fatalf("the flash went on to its end: %v", err)
	}
	a := artifact(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "KILLED_FLASH="+a.Dir(), "KILLED_DISK="+path)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("%v; want it killed\n%s", err, out)
		}
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("two flashes that were killed left %v; want one file", left)
	}
	if _, err := Write(t.Context(), spec, a, path, Options{}); err != nil {
		t.Fatal(err)
	}
	same(t, "virtual disk", read(t, path), image(t, a))
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left: %v; want disk.img alone", left)
	}
}

// In a folder of many users, the file's name may be taken by somebody who wants to
// read the board's host key, or to have something else overwritten.
func TestWriteFileTakesOverNothing(t *testing.T) {
	a := artifact(t)
	tests := []struct {
		name string
		make func(t *testing.T, pending, other string)
		ok   bool
	}{
		{"open file", func(t *testing.T, pending, _ string) {
			fill(t, pending, "mine")
			if err := os.Chmod(pending, 0o666); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"link", func(t *testing.T, pending, other string) {
			if err := os.Symlink(other, pending); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"second name", func(t *testing.T, pending, other string) {
			if err := os.Link(other, pending); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"pipe", func(t *testing.T, pending, _ string) {
			if err := unix.Mkfifo(pending, 0o666); err != nil {
				t.Fatal(err)
			}
		}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path, other := filepath.Join(t.TempDir(), "disk.img"), filepath.Join(t.TempDir(), "other")
			fill(t, other, "thesis")
			test.make(t, besideOf(path), other)
			var theirs *os.File
			if test.ok {
				theirs = flashtest.Open(t, besideOf(path), 0)
			}
			_, err := Write(t.Context(), spec, a, path, Options{})
			if ok := err == nil; ok != test.ok {
				t.Errorf("Write = %v; want success: %v", err, test.ok)
			}
			same(t, "the other file", read(t, other), []byte("thesis"))
			if theirs != nil {
				if data, err := io.ReadAll(theirs); err != nil || len(data) > 10 {
					t.Errorf("whoever had the file open reads %d bytes, %v", len(data), err)
				}
			}
		})
	}
}

func fill(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// An image is not written onto itself: not by another path, nor onto the loop device over it.
func TestOwnImageRefused(t *testing.T) {
	a, s := little(t), newShelf(t, little(t))
	want := read(t, s.path("disk.img"))
	if err := os.Link(s.path("disk.img"), s.path("link.img")); err != nil {
		t.Fatal(err)
	}
	try := func(name string) {
		_, err := Write(t.Context(), spec, a, name, Options{Image: s.path("disk.img"), Yes: []string{name}})
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "holds the image itself") {
			t.Errorf("Write to %s = %v; want it refused", name, err)
		}
	}
	try(s.path("disk.img"))
	try(s.path("link.img"))
	if os.Geteuid() == 0 {
		try(flashtest.Attach(t, s.path("disk.img")))
	}
	same(t, "image", read(t, s.path("disk.img")), want)
}
