package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What others leave where the hook keeps its plan and its log costs no more than
// the time that the plan saves.
func TestHostileRun(t *testing.T) {
	tests := map[string]func(p string) error{
		"a FIFO":              func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a folder":            func(p string) error { return os.Mkdir(p, 0o755) },
		"a link to the board": func(p string) error { return os.Symlink("/opt/victim/file", p) },
		"a link to nothing":   func(p string) error { return os.Symlink("/opt/victim/new", p) },
		"endless":             func(p string) error { return os.Symlink("/dev/zero", p) },
		"a disk":              func(p string) error { return unix.Mknod(p, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))) },
		"somebody's":          func(p string) error { return ownedFile(p, 0o600, 1000) },
		"for all to write":    func(p string) error { return ownedFile(p, 0o666, 0) },
		"large":               func(p string) error { return sparse(p, "slipway plan 1\n", 1<<40) },
	}
	l := newLab(t, "runc")
	write(t, "/opt/victim/file", "the board's own")
	write(t, "/opt/board/a.so", "board a")
	l.lists("lib, /opt/board/a.so")
	l.bundle()
	l.hookArgv()
	before := look(t)
	for name, make := range tests {
		must(t, os.RemoveAll("/run/slipway"))
		must(t, os.Mkdir("/run/slipway", 0o755))
		for _, file := range []string{"hook.log", "plan"} {
			must(t, make(filepath.Join("/run/slipway", file)))
		}
		for i := 0; i < 2; i++ {
			pid, end := l.processFor()
			out, err := hostile(t, state(t, pid, filepath.Join(l.dir, "bundle")))
			end()
			if err != nil || !strings.Contains(out, "gave: files 1") {
				t.Errorf("%s: %.300q, %v; want that the file is given", name, out, err)
			}
		}
		if after := look(t); after != before {
			t.Errorf("%s: the board changed:\n%s", name, added(before, after))
		}
	}
}

func ownedFile(p string, mode os.FileMode, uid int) error {
	if err := os.WriteFile(p, []byte("slipway plan 1\n"), mode); err != nil {
		return err
	}
	if err := os.Chmod(p, mode); err != nil {
		return err
	}
	return os.Chown(p, uid, uid)
}
