package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// The next container sees what changed on the board, whether the plan was kept or
// not; and a plan that somebody else put there counts for nothing.
func TestPlanIsKept(t *testing.T) {
	l := newLab(t, "runc")
	l.shell()
	write(t, "/opt/board/one", "one\n")
	write(t, "/opt/board/two", "two\n")
	must(t, os.Symlink("one", "/opt/board/link"))
	l.lists("sym, /opt/board/link")
	gives := func(want string) {
		t.Helper()
		out, err := l.runContainer(container{stage: "createRuntime", env: all, script: "cat /opt/board/*"})
		if err != nil || out != want {
			t.Errorf("the container saw %q, %v; want %q", out, err, want)
		}
		must(t, os.RemoveAll(l.rootfs("/opt")))
		time.Sleep(60 * time.Millisecond) // until a change shows in the file system's clock
	}
	kept := func() (string, os.FileInfo) {
		t.Helper()
		found, err := filepath.Glob("/run/slipway/plan*")
		if err != nil || len(found) != 1 {
			t.Fatalf("kept %q, %v; want one plan", found, err)
		}
		info, err := os.Lstat(found[0])
		must(t, err)
		return found[0], info
	}
	gives("one\none\n")
	gives("one\none\n")
	plan, first := kept()
	gives("one\none\n")
	if _, again := kept(); !os.SameFile(first, again) {
		t.Error("the plan was written again where nothing had changed")
	}
	must(t, os.Remove("/opt/board/link"))
	must(t, os.Symlink("two", "/opt/board/link"))
	gives("two\ntwo\n")
	l.lists("sym, /opt/board/link", "lib, /opt/board/one")
	gives("two\none\ntwo\n")
	gives("two\none\ntwo\n")
	must(t, os.Chown(plan, 5, 5))
	gives("two\none\ntwo\n")
	must(t, os.WriteFile(plan, []byte("nonsense"), 0o600))
	gives("two\none\ntwo\n")
	must(t, os.Remove(plan))
	must(t, os.Symlink("/opt/board/one", plan))
	gives("two\none\ntwo\n")
	if _, info := kept(); !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 {
		t.Errorf("what is kept is %v; want a file for root alone", info.Mode())
	}
}

// A container that runs sees nothing that the board adds to a folder later, and can add
// to that folder itself.
func TestLaterFiles(t *testing.T) {
	l := newLab(t, "runc")
	l.shell()
	write(t, "/opt/board/lib/a.so", "")
	write(t, "/opt/board/lib/b.so", "")
	write(t, "/opt/shared/x", "")
	l.lists("lib, /opt/board/lib/*.so")
	out, err := l.runContainer(container{
		stage: "createRuntime", env: all, script: `
		: > /opt/board/lib/more
		while ! test -e /shared/added; do :; done
		ls /opt/board/lib`,
		spec: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/shared", Type: "bind", Source: "/opt/shared", Options: []string{"rbind", "rprivate"}})
			s.Hooks.Poststart = []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo > /opt/board/lib/later.so; echo > /opt/shared/added"}, Env: []string{"PATH=/bin"}}}
		},
	})
	if want := "a.so\nb.so\nmore\n"; err != nil || out != want {
		t.Errorf("the container printed %q, %v; want %q", out, err, want)
	}
}
