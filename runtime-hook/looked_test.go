package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The hook believes the runtime that it has just looked at the board, and nobody for long.
func TestLooked(t *testing.T) {
	l := newLab(t, "runc")
	l.shell()
	write(t, "/opt/board/one", "one")
	write(t, "/opt/board/two", "two")
	must(t, os.Symlink("one", "/opt/board/link"))
	l.lists("sym, /opt/board/link")
	run := func(args ...string) string {
		t.Helper()
		l.hook = append([]string{hookBinary(t), "hook"}, args...)
		must(t, os.RemoveAll(l.rootfs("/opt")))
		out, err := l.runContainer(container{stage: "createRuntime", env: all, script: "cat /opt/board/link"})
		if err != nil {
			t.Fatal(out, err)
		}
		return out
	}
	for kept := false; !kept; time.Sleep(20 * time.Millisecond) {
		run()
		plans, err := filepath.Glob("/run/slipway/plan")
		must(t, err)
		kept = len(plans) > 0
	}
	must(t, os.Remove("/opt/board/link"))
	must(t, os.Symlink("two", "/opt/board/link"))
	// What was kept is of the board as it was.
	before := keptPlans(t)
	if got := run(lookedArg(uptime() - 3600*second)); got != "two" {
		t.Errorf("an hour after the runtime looked the container has %q; want the board's two", got)
	}
	keepPlans(t, before)
	looked := uptime()
	if got := run(lookedArg(looked)); got != "one" && uptime()-looked < lookedFor {
		t.Errorf("just after the runtime looked the container has %q; want what it saw, one", got)
	}
}

// What the board loses after the runtime looked is left out, with a warning, and programs look on.
func TestBoardChangesMeanwhile(t *testing.T) {
	for name, change := range map[string]func(p string) error{
		"gone":   os.Remove,
		"a FIFO": func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o644)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, "runc")
			l.needsLibrary()
			data, err := os.ReadFile("/opt/board/lib/liblzma.so.5.4")
			must(t, err)
			write(t, l.rootfs("/opt/image/liblzma.so.5"), string(data))
			write(t, l.rootfs("/etc/ld.so.conf.d/image.conf"), "/opt/image\n")
			l.cache()
			write(t, "/opt/board/one", "one")
			l.lists("lib, /opt/board/lib/liblzma.so.5.4", "lib, /opt/board/one")
			l.hook = []string{hookBinary(t), "hook"}
			for len(keptPlans(t)) == 0 {
				if out, err := l.runContainer(container{stage: "createRuntime", env: all, script: useXZ}); err != nil || out != "found" {
					t.Fatal(out, err)
				}
				time.Sleep(20 * time.Millisecond)
			}
			for _, p := range []string{"/opt/board", "/etc/ld.so.cache"} {
				must(t, os.RemoveAll(l.rootfs(p)))
			}
			l.cache()
			must(t, change("/opt/board/lib/liblzma.so.5.4"))
			l.hook = append(l.hook, lookedArg(uptime()))
			out, err := l.runContainer(container{stage: "createRuntime", env: all, script: "cat /opt/board/one; " + useXZ})
			log, _ := os.ReadFile("/run/slipway/hook.log")
			if err != nil || out != "onefound" || !strings.Contains(string(log), "test.csv:1: the board changed while the hook ran: /opt/board/lib/liblzma.so.5.4") {
				t.Errorf("the container printed %q, %v; want one, and that xz finds the image's library; log %q", out, err, log)
			}
		})
	}
}

const second = 1_000_000_000

func TestLookedNow(t *testing.T) {
	for _, tt := range []struct {
		ago  int64
		want bool
	}{{0, true}, {3 * second, false}, {-3600 * second, false}, {uptime(), false}, {uptime() * 2, false}} {
		if got := lookedJustNow(uptime() - tt.ago); got != tt.want {
			t.Errorf("looked %d ns ago: %v; want %v", tt.ago, got, tt.want)
		}
	}
}

// keptPlans is what is kept, and keepPlans keeps it again.
func keptPlans(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	plans, err := filepath.Glob("/run/slipway/plan")
	must(t, err)
	for _, p := range plans {
		data, err := os.ReadFile(p)
		must(t, err)
		out[p] = data
	}
	return out
}

func keepPlans(t *testing.T, plans map[string][]byte) {
	t.Helper()
	for p, data := range plans {
		must(t, os.WriteFile(p, data, 0o600))
	}
}

// The runtime says when it looked, in a container's config.json alone.
func TestRuntimeSaysWhenItLooked(t *testing.T) {
	wrapped(t, func(t *testing.T, l *lab) {
		write(t, "/opt/board/a.so", "board a")
		l.lists("lib, /opt/board/a.so")
		before := uptime()
		if out, err := l.runContainer(container{env: all, script: "cat /opt/board/a.so"}); err != nil || out != "board a" {
			t.Fatal(out, err)
		}
		args := l.config().Hooks.CreateRuntime[0].Args
		if len(args) != 3 || !strings.HasPrefix(args[2], "--looked=") || args[2] < lookedArg(before) && len(args[2]) == len(lookedArg(before)) {
			t.Errorf("the hook's arguments are %q; want when the runtime looked, after %d", args, before)
		}
	})
}
