package main

import (
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Hooks that are killed, at whatever moment, leave nothing on the board that a later
// one does not use or take away, and the container gets everything then.
func TestKilled(t *testing.T) {
	l := newLab(t, "runc")
	l.needsLibrary()
	list := []string{"lib, /opt/board/lib/liblzma.so.5.4"}
	for i := 0; i < 40; i++ {
		name := fmt.Sprintf("/opt/board/many/%d.so", i)
		write(t, name, name)
		list = append(list, "lib, "+name)
	}
	l.lists(list...)
	// What is written to a volume is mounted, from a file in the board's /run.
	write(t, "/opt/etc/ld.so.cache", "")
	must(t, os.MkdirAll(l.rootfs("/etc"), 0o755))
	must(t, unix.Mount("/opt/etc", l.rootfs("/etc"), "", unix.MS_BIND, ""))
	l.bundle()
	before := look(t)
	seed := time.Now().UnixNano()
	random := rand.New(rand.NewSource(seed))
	through := 0
	for i := 0; i < 50; i++ {
		cmd, _ := l.hookOnNext()
		must(t, cmd.Start())
		time.Sleep(time.Duration(random.Intn(6000)) * time.Microsecond)
		must(t, cmd.Process.Kill())
		if cmd.Wait() == nil {
			through++
		}
	}
	t.Logf("seed %d: %d of 50 were through", seed, through)
	// One for certain, and the time that it takes to be one.
	write(t, "/run/slipway/file-1", "")
	left, err := filepath.Glob("/run/slipway/file-*")
	must(t, err)
	for _, file := range left {
		must(t, os.Chtimes(file, time.Time{}, time.Now().Add(-time.Hour)))
	}
	cmd, pid := l.hookOnNext()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if after := look(t); after != before {
		t.Errorf("the board changed: %s", added(before, after))
	}
	if cache := fmt.Sprintf("/proc/%d/root%s", pid, l.rootfs("/etc/ld.so.cache")); size(cache) == 0 {
		t.Error("the container has no cache")
	}
	left, err = filepath.Glob("/run/slipway/*")
	must(t, err)
	for _, file := range left {
		if base := filepath.Base(file); base != "hook.log" && base != "plan" {
			t.Errorf("%s is left on the board", file)
		}
	}
}

func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// hookOnNext is the hook, to be started, on one more container.
func (l *lab) hookOnNext() (*exec.Cmd, int) {
	pid, end := l.processFor()
	l.t.Cleanup(end)
	argv := l.hookArgv()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = state(l.t, pid, filepath.Join(l.dir, "bundle"))
	return cmd, pid
}
