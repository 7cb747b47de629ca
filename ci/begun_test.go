package ci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/ci/report"
	softrig "slipway/ci/rig"
	"slipway/ci/suite/suitetest"
	"slipway/images"
	"slipway/layers/run"
)

// readTree returns the files below a folder with their content.
func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// switchOn makes a virtual board look on: its process is a shell.
func switchOn(t *testing.T, dir, board string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read x; :", "slipway-"+board, "x")
	cmd.Dir = dir
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "machine.json"), fmt.Appendf(nil, `{"board": %q, "pid": %d}`, board, cmd.Process.Pid), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait() // the test's end may have killed it
	})
	for range 100 { // until the shell has its own name
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid)); len(line) > 3 && string(line[:3]) == "sh\x00" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the shell does not start")
}

// noPackages returns a folder with a dpkg-query that knows no package.
func noPackages(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := run.WriteProgram(filepath.Join(dir, "dpkg-query"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeBundle writes as little of SWUpdate's format as update takes.
func writeBundle(t *testing.T, name string) {
	t.Helper()
	head := "070702" + strings.Repeat("0", 88) + "%08X" + strings.Repeat("0", 8) // with the length of the name
	data := fmt.Sprintf(head+"sw-description\x00\x00\x00\x00"+head+"TRAILER!!!\x00\x00\x00\x00", 15, 11)
	if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A run that ends before a board is asked changes no report. One that asked replaces it.
func TestReportOfTheLastRunStays(t *testing.T) {
	key, known := suitetest.StartBoard(t)
	if err := os.WriteFile(known, []byte("serial-7 "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nothing answers there
	off := "root@" + l.Addr().String()
	spec := images.Spec{Board: "toy", Suites: []string{"base"}}
	virtual := spec
	virtual.Machine = &images.Machine{}
	opt := images.Options{Dir: t.TempDir()}
	dir := opt.BoardDir(spec)
	writeArtifact(t, dir, images.Artifact{Board: "toy"})
	bundle := filepath.Join(t.TempDir(), "new.swu")
	writeBundle(t, bundle)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	with := func(change func(*images.Spec)) images.Spec {
		s := spec
		change(&s)
		return s
	}
	lost := with(func(s *images.Spec) { s.Suites = []string{"nosuch.yml"} })
	authority := with(func(s *images.Spec) { s.SSH.HostCA = "nobody.pub" })
	refused := with(func(s *images.Spec) { s.Policy = &images.Policy{Newest: true} })
	smoke := func(ctx context.Context, s images.Spec, host string) func() error {
		return func() error { _, err := SmokeOn(ctx, io.Discard, opt, s, host, ""); return err }
	}
	update := func(ctx context.Context, s images.Spec, host, file string, dryRun bool) func() error {
		return func() error {
			_, err := Update(ctx, opt, s, host, file, UpdateOptions{Out: io.Discard, DryRun: dryRun})
			return err
		}
	}
	for _, tt := range []struct {
		name  string
		run   func() error
		asked bool
	}{
		{"smoke: no such suite", smoke(t.Context(), lost, off), false},
		{"smoke: no suites", smoke(t.Context(), images.Spec{Board: "toy"}, off), false},
		{"smoke: no such host", smoke(t.Context(), spec, "root@nosuch.invalid"), false},
		{"smoke: a flag for a host", smoke(t.Context(), spec, "-oProxyCommand=true"), false},
		{"smoke: board.yml is wrong", smoke(t.Context(), authority, off), false},
		{"smoke: stopped", smoke(stopped, spec, "board"), false},
		{"smoke: a name that a board tells itself", smoke(t.Context(), spec, "root@nosuch-board.local"), true},
		{"smoke: nothing answers", smoke(t.Context(), spec, off), true},
		{"smoke: the virtual board is off", smoke(t.Context(), virtual, "toy"), true},
		{"smoke: a login is refused", smoke(t.Context(), spec, "nobody@board"), true},
		{"update: no bundle", update(t.Context(), spec, off, "nosuch.raucb", false), false},
		{"update: no such suite", update(t.Context(), lost, off, bundle, false), false},
		{"update: no such host", update(t.Context(), spec, "root@nosuch.invalid", bundle, false), false},
		{"update: a policy refuses", update(t.Context(), refused, "board", bundle, false), false},
		{"update: stopped", update(stopped, spec, "board", bundle, false), false},
		{"update: dry run", update(t.Context(), spec, "board", bundle, true), false},
		{"update: dry run, nothing answers", update(t.Context(), spec, off, bundle, true), false},
		{"update: nothing answers", update(t.Context(), spec, off, bundle, false), true},
		{"update: no engine", update(t.Context(), spec, "board", bundle, false), true},
		{"up: no virtual board", func() error { _, err := Up(t.Context(), spec, UpOptions{Build: opt, Out: io.Discard}); return err }, false},
		{"up: no packages, and none may be installed", func() error {
			t.Setenv("PATH", noPackages(t)+":"+os.Getenv("PATH"))
			t.Setenv("SLIPWAY_INSTALL", "no")
			other := virtual
			other.Debian, other.Disk = &images.Debian{}, &images.Disk{}
			_, err := Up(t.Context(), other, UpOptions{Build: opt, Out: io.Discard})
			return err
		}, false},
		{"up: the board is on", func() error {
			_, err := Up(t.Context(), virtual, UpOptions{Build: opt, Out: io.Discard})
			return err
		}, false},
		{"rig up: no such suite", func() error {
			if err := softrig.CheckRoot(); err != nil {
				return err
			}
			_, err := UpRig(t.Context(), images.Spec{Board: "toy", Rig: &images.Rig{}, Suites: lost.Suites}, RigOptions{Build: opt, Out: io.Discard})
			return err
		}, false},
	} {
		if err := passed.Write(opt.ReportDir(spec)); err != nil {
			t.Fatal(err)
		}
		if tt.name == "up: the board is on" {
			if err := os.MkdirAll(opt.MachineDir(spec), 0o755); err != nil {
				t.Fatal(err)
			}
			virtual.Debian = &images.Debian{}
			switchOn(t, opt.MachineDir(spec), "toy")
		}
		before := readTree(t, opt.Dir)
		err := tt.run()
		after := readTree(t, opt.Dir)
		file := filepath.Join(opt.ReportDir(spec), report.ReportJSON)
		same := len(before) == len(after)
		for path, text := range before {
			same = same && after[path] == text
		}
		if err == nil || same == tt.asked || errors.Is(err, report.ErrNotBegun) && tt.asked || after[file] == "" {
			t.Errorf("%s: %v; files the same: %v, want %v; report.json:\n%.300s", tt.name, err, same, !tt.asked, after[file])
		}
	}
}
