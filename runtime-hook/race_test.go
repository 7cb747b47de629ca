package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// raceFor is how long a race lasts: a few hundred containers. SLIPWAY_LONG=1 makes it 10 s.
func raceFor() time.Duration {
	if os.Getenv("SLIPWAY_LONG") != "" {
		return 10 * time.Second
	}
	return time.Second
}

// While hooks run one after another, another process exchanges what the image has at every level of
// the listed paths for links that lead to the board. A hook may fail then; it may not change the
// board, mount anything outside of the container's root, or hang.
func TestRace(t *testing.T) {
	t.Run("new kernel", func(t *testing.T) { race(t, newLab(t, "runc")) })
	for kernel := range kernels {
		t.Run(kernel, func(t *testing.T) {
			l := newLab(t, "runc")
			l.onOldKernel(kernel)
			race(t, l)
		})
	}
}

func race(t *testing.T, l *lab) {
	write(t, "/opt/victim/lib/a.so", secret)
	write(t, "/opt/victim/board/lib/a.so", secret)
	write(t, "/opt/board/lib/a.so", "board a")
	write(t, "/opt/board/lib/b.so", "board b")
	write(t, "/opt/board/share/s", "board s")
	must(t, os.Mkdir("/opt/board/links", 0o755))
	must(t, os.Symlink("../lib/a.so", "/opt/board/links/a"))
	must(t, unix.Mknod("/opt/board/full", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))))
	list := []string{"lib, /opt/board/lib/a.so", "lib, /opt/board/lib/b.so", "sym, /opt/board/links/a", "dir, /opt/board/share", "dev, /opt/board/full", "lib, " + l.realLibrary()}
	for _, name := range []string{"ld.so.cache", "ld.so.conf", "ld.so.conf.d/x.conf"} {
		write(t, l.rootfs("/etc/"+name), "")
	}
	l.lists(list...)
	must(t, os.MkdirAll(l.rootfs("/vol"), 0o755))
	must(t, unix.Mount("/opt/board/lib", l.rootfs("/vol"), "", unix.MS_BIND, ""))
	must(t, unix.Mount("", l.rootfs("/vol"), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	l.bundle()
	l.hookArgv()
	before := look(t)
	stop := l.exchange([]exchanged{
		{"opt", l.board("/opt")},
		{"opt", "/opt.other"},
		{"opt/board", l.board("/opt/victim/board")},
		{"opt/board", "../../../../../../../../opt/victim/board"},
		{"opt/board/lib", l.board("/opt/victim/lib")},
		{"opt/board/lib", "links/../lib.other"},
		{"opt/board/lib", "/vol"},
		{"opt/board/lib/a.so", l.board("/opt/victim/lib/a.so")},
		{"opt/board/lib/b.so", "/proc/self/fd/3"},
		{"etc", l.board("/opt/victim")},
		{"etc/ld.so.cache", l.board("/opt/victim/lib/a.so")},
		{"etc/ld.so.conf.d", l.board("/opt/victim")},
		{"opt/board/links", l.board("/opt/victim")},
		{"opt/board/share", l.board("/opt/victim")},
		{"opt/board/full", l.board("/opt/victim/lib/a.so")},
	})
	defer stop()
	ours := func(int) []string { return l.hookArgv() }
	if harm := l.race(before, raceFor(), ours); harm != "" {
		t.Error(harm)
	}
	naive := func(pid int) []string {
		return []string{"nsenter", "-t", fmt.Sprint(pid), "-m", "sh", "-c", "cd " + l.rootfs("") + "; mkdir -p opt/board/lib; for i in $(seq 300); do : > opt/board/lib/$i; done"}
	}
	if harm := l.race(before, time.Minute, naive); harm == "" {
		t.Error("harmless even to a naive hook; the race has no teeth")
	}
}

// race runs a hook on one container after another and says what harm it does.
func (l *lab) race(before string, limit time.Duration, hook func(pid int) []string) (harm string) {
	l.t.Helper()
	end, runs, failed := time.Now().Add(limit), 0, 0
	for ; time.Now().Before(end); runs++ {
		err := l.raceOnce(hook)
		if err != nil && !errors.Is(err, errFailed) {
			return fmt.Sprintf("container %d: %v", runs, err)
		}
		if after := look(l.t); after != before {
			return fmt.Sprintf("container %d: the board changed:\n%s", runs, added(before, after))
		}
		if err != nil {
			failed++
		}
	}
	l.t.Logf("%d containers, of which %d do not start", runs, failed)
	if failed == runs {
		return "all hooks fail; the race proves nothing"
	}
	return ""
}

// exchanged is a name in the image, and the link that takes its place.
type exchanged struct{ name, target string }

// exchange puts each name and its link in the other's place, again and again. The
// names are made anew where the hook or an exchange took them away.
func (l *lab) exchange(list []exchanged) (stop func()) {
	root, err := os.Open(l.rootfs(""))
	must(l.t, err)
	at := int(root.Fd())
	for i, e := range list {
		must(l.t, os.MkdirAll(filepath.Dir(l.rootfs(e.name)), 0o755))
		must(l.t, unix.Symlinkat(e.target, at, fmt.Sprintf("link%d", i)))
	}
	others := slices.Clone(list)
	for i := range others {
		others[i].target = fmt.Sprintf("link%d", i)
	}
	swapped := l.exchangeIn(root, others)
	return func() { swapped(); root.Close() }
}

// exchangeIn does so with names that are there, below root.
func (l *lab) exchangeIn(root *os.File, list []exchanged) (stop func()) {
	at := int(root.Fd())
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			default:
			}
			e := list[i%len(list)]
			// Once there and once back, with time for a hook between.
			for range [2]struct{}{} {
				_ = unix.Renameat2(at, e.name, at, e.target, unix.RENAME_EXCHANGE)
				time.Sleep(time.Duration(i%7) * 30 * time.Microsecond)
			}
		}
	}()
	return func() { close(end); <-ended }
}

// errFailed is a hook that gave up, as it may.
var errFailed = errors.New("the hook failed")

// raceOnce runs the hook on one more container and looks at its mounts.
func (l *lab) raceOnce(hook func(pid int) []string) error {
	pid, end := l.processFor()
	defer end()
	before := mountsOf(l.t, pid)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	argv := hook(pid)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = state(l.t, pid, filepath.Join(l.dir, "bundle"))
	failed := cmd.Run()
	if ctx.Err() != nil {
		return errors.New("the hook hangs")
	}
	if err := l.onlyFiles(pid); err != nil {
		return err
	}
	for _, line := range strings.Split(added(before, mountsOf(l.t, pid)), "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) < 6:
		case !strings.HasPrefix(f[4], l.rootfs("/")):
			return fmt.Errorf("a mount outside of its root: %s", line)
		case f[3] != "/board/full" && !strings.HasPrefix(f[5], "ro,nosuid,nodev"):
			return fmt.Errorf("a mount that is not read-only: %s", line)
		}
	}
	if failed != nil {
		return errFailed
	}
	return nil
}

// onlyFiles looks at what a container has of /opt/board/lib.
func (l *lab) onlyFiles(pid int) error {
	dir := fmt.Sprintf("/proc/%d/root%s", pid, l.rootfs("/opt/board/lib"))
	list, _ := os.ReadDir(dir) // raced away, or never made
	for _, f := range list {
		if kind := f.Type() &^ os.ModeSymlink; kind != 0 {
			return fmt.Errorf("%s is a %v in the container", f.Name(), kind)
		}
		// An attack's link into /proc leads to this process's own files here.
		if text, _ := os.Readlink(dir + "/" + f.Name()); strings.HasPrefix(text, "/proc/") {
			continue
		}
		if info, err := os.Stat(dir + "/" + f.Name()); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s leads to a %v in the container", f.Name(), info.Mode())
		}
	}
	return nil
}

// What the board has under a listed name becomes something else while hooks run:
// none of them waits for it, and none gives anything but files and links.
func TestRaceOnBoard(t *testing.T) {
	l := newLab(t, "runc")
	write(t, "/opt/board/lib/a.so", "board a")
	write(t, "/opt/board/lib/b.so", "board b")
	l.lists("lib, /opt/board/lib/a.so", "lib, /opt/board/lib/b.so")
	must(t, unix.Mkfifo("/opt/fifo", 0o666))
	must(t, unix.Mknod("/opt/full", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))))
	l.bundle()
	l.hookArgv()
	root, err := os.Open("/opt")
	must(t, err)
	defer root.Close()
	defer l.exchangeIn(root, []exchanged{{"board/lib/a.so", "fifo"}, {"board/lib/b.so", "full"}})()
	runs, end := 0, time.Now().Add(raceFor())
	for ; time.Now().Before(end); runs++ {
		err := l.raceOnce(func(int) []string { return l.hookArgv() })
		if err != nil && !errors.Is(err, errFailed) {
			t.Fatalf("container %d: %v", runs, err)
		}
	}
	t.Logf("%d containers", runs)
}
