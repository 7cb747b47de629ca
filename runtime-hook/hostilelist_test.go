package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
)

// A list that is as bad as can be costs a container what it names badly, and no
// more: what is listed well arrives, and soon.
func TestHostileLists(t *testing.T) {
	tests := []struct {
		name  string
		board func(l *lab)
		list  string
	}{
		{"a FIFO as a library", func(l *lab) { must(l.t, unix.Mkfifo("/opt/board/bad", 0o644)) }, "lib, /opt/board/bad"},
		{"a FIFO as a folder", func(l *lab) { must(l.t, unix.Mkfifo("/opt/board/bad", 0o644)) }, "dir, /opt/board/bad"},
		{"a FIFO as a device", func(l *lab) { must(l.t, unix.Mkfifo("/opt/board/bad", 0o644)) }, "dev, /opt/board/bad"},
		{"a socket as a library", socket, "lib, /opt/board/bad"},
		{"a disk as a library", func(l *lab) { badNode(l, unix.S_IFBLK, 7, 0) }, "lib, /opt/board/bad"},
		{"a disk as a device", func(l *lab) { badNode(l, unix.S_IFBLK, 7, 0) }, "dev, /opt/board/bad"},
		{"a device as a library", func(l *lab) { badNode(l, unix.S_IFCHR, 1, 5) }, "lib, /opt/board/bad"},
		{"a device as a folder", func(l *lab) { badNode(l, unix.S_IFCHR, 1, 5) }, "dir, /opt/board/bad"},
		{"a link to a FIFO", func(l *lab) {
			must(l.t, unix.Mkfifo("/opt/board/fifo", 0o644))
			must(l.t, os.Symlink("fifo", "/opt/board/bad"))
		}, "sym, /opt/board/bad"},
		{"a folder as a library", func(l *lab) { must(l.t, os.Mkdir("/opt/board/bad", 0o755)) }, "lib, /opt/board/bad"},
		{"a link to itself", func(l *lab) { must(l.t, os.Symlink("bad", "/opt/board/bad")) }, "sym, /opt/board/bad\nlib, /opt/board/bad/x\ndir, /opt/board/bad"},
		{"many entries", nil, numbered("lib, /opt/none/%d\n", 10000)},
		{"many patterns", nil, numbered("lib, /opt/none/%d*\n", 10000)},
		{"many patterns that match", nil, numbered("lib, /usr/lib/*/*%d.so\n", 10000)},
		{"a line of 400 KiB", nil, "lib, /" + strings.Repeat("x", 400<<10)},
		{"a pattern of many stars", nil, "lib, /usr/" + strings.Repeat("*a", 2000)},
		{"all of the board", nil, "lib, /*/*/*/*\nlib, /*/*/*/*/*\nsym, /*/*/*/*/*/*/*/*\ndir, /*/*/*/*"},
		{"all processes", nil, "lib, /proc/*/fd/*\nlib, /proc/*/task/*/fd/*\nsym, /proc/*/root/*/*"},
		{"a FIFO of a list", func(l *lab) { must(l.t, unix.Mkfifo(csv.Dir+"/a.csv", 0o644)) }, ""},
		{"a folder of a list", func(l *lab) { must(l.t, os.Mkdir(csv.Dir+"/a.csv", 0o755)) }, ""},
		{"an endless list", func(l *lab) { must(l.t, os.Symlink("/dev/zero", csv.Dir+"/a.csv")) }, ""},
		{"a list of a process", func(l *lab) { must(l.t, os.Symlink("/proc/self/fd/0", csv.Dir+"/a.csv")) }, ""},
		{"escapes", func(l *lab) { must(l.t, os.Mkdir("/opt/board/\x1b[31m\u009b", 0o755)) }, "lib, /opt/board/\x1b[31m\u009b\nli\x1b[2Jb, x\ndir, /opt/\u202e"},
		{"a name of several lines", func(l *lab) {
			write(l.t, "/opt/board/odd/a\nlib, \x1b[31m", "odd")
			must(l.t, os.Mkdir("/opt/board/odd/b\nb", 0o755))
		}, "lib, /opt/board/odd/*"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, "runc")
			write(t, "/opt/board/good.so", "good")
			l.lists(tt.list, "lib, /opt/board/good.so")
			if tt.board != nil {
				tt.board(l)
			}
			out, err := hostile(t, state(t, l.container(), filepath.Join(l.dir, "bundle")))
			if err != nil {
				t.Errorf("%v, %.300q; want that the rest arrives", err, out)
			}
			log, err := os.ReadFile("/run/slipway/hook.log")
			must(t, err)
			for _, said := range []string{out, string(log)} {
				onePlainLine(t, tt.name, said)
			}
			if !strings.Contains(string(log), "gave: ") || strings.Contains(string(log), "gave: files 0") {
				t.Errorf("log %.300q; want that the good file is given", log)
			}
		})
	}
}

func numbered(format string, n int) string {
	var b strings.Builder
	for i := 0; i < n; i++ {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func badNode(l *lab, kind uint32, major, minor uint32) {
	must(l.t, unix.Mknod("/opt/board/bad", kind|0o666, int(unix.Mkdev(major, minor))))
}

func socket(l *lab) {
	s, err := net.Listen("unix", "/opt/board/bad")
	must(l.t, err)
	l.t.Cleanup(func() { s.Close() })
}
