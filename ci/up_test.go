package ci

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/flash/qemu"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/progress"
)

// rig is a build folder for the virtual board, below the clone's build/, so that
// the userland is made once for all tests and people.
type rig struct {
	spec images.Spec
	opt  UpOptions
}

func newRig(t *testing.T, name string) rig {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines, which takes minutes: run without -short")
	}
	spec, err := images.Default()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("..")
	if missing, err := host.Missing(t.Context(), images.HostPackages(spec)...); err != nil || len(missing) > 0 {
		t.Skipf("this machine lacks the Debian packages %v (%v)", missing, err)
	}
	build := images.Options{Dir: filepath.Join("build", "test", name), Cache: filepath.Join("build", "cache")}
	return rig{spec, UpOptions{Build: build, Out: io.Discard}}
}

func (r rig) up(t *testing.T, ctx context.Context) (Report, error) {
	t.Helper()
	before := leftovers(t, r.opt.Build.Dir)
	report, err := Up(ctx, r.spec, r.opt)
	if diff := cmp.Diff(before, leftovers(t, r.opt.Build.Dir)); diff != "" {
		t.Errorf("Up left something behind (-before +after):\n%s", diff)
	}
	for _, name := range []string{reportJSON, reportJUnit, reportHTML} {
		if _, err := os.Stat(filepath.Join(BoardDir(r.opt.Build, r.spec), name)); err != nil {
			t.Errorf("no report: %v", err)
		}
	}
	return report, err
}

// leftovers are the processes, loop devices, mounts, network namespaces and
// half-written files that a run in dir can leave behind.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	cwds, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range cwds {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir+"/") {
			all = append(all, "process in "+cwd)
		}
	}
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, name := range backing {
		if file, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(file), dir+"/") {
			all = append(all, "loop device on "+string(file))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir+"/") || strings.Contains(line, "/mmdebstrap.") {
			all = append(all, "mount "+line)
		}
	}
	for _, pattern := range []string{"/run/netns/*", filepath.Join(dir, "*", "work-*"), "/tmp/mmdebstrap.*", filepath.Join(dir, "..", "cache", "*.part")} {
		found, _ := filepath.Glob(pattern)
		all = append(all, found...)
	}
	return all
}

// After a kernel's panic the next machine is switched on: nobody may still watch
// the last one then.
func TestPanicEndsTheWatch(t *testing.T) {
	spec := images.Spec{Board: "toy", Machine: &images.Machine{Ready: "never said"}}
	u := &up{spec: spec, opt: UpOptions{Build: images.Options{Dir: t.TempDir()}}}
	if err := os.MkdirAll(u.machineDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(qemu.ConsoleLog(u.machineDir()), []byte("Kernel panic - not syncing: no root\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		u.vm = &qemu.VM{Started: time.Now()}
		if err := u.logIn(t.Context(), u.vm, progress.Start(t.Context(), "boot", 0, "")); !errors.Is(err, errPanicked) {
			t.Fatalf("logIn = %v; want %v", err, errPanicked)
		}
		if stacks := make([]byte, 1<<20); bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("ci.(*up).watch(")) {
			t.Fatal("the watcher is at work after logIn has returned")
		}
	}
}

func TestUp(t *testing.T) {
	r := newRig(t, "whole")
	for _, run := range []string{"first", "again"} {
		report, err := r.up(t, t.Context())
		if err != nil {
			t.Fatalf("%s Up: %v", run, err)
		}
		if report.Failed() || report.counts().checks[Passed] < 15 {
			t.Errorf("%s Up: %v; want no failure and at least 15 passed checks", run, report.counts())
		}
		if build := find(report, "build"); run == "again" && build.Status != Cached {
			t.Errorf("second Up: build is %s (%s); want it cached", build.Status, build.Saw)
		}
	}
}

func find(r Report, stage string) Stage {
	i := slices.IndexFunc(r.Stages, func(s Stage) bool { return s.Name == stage })
	if i < 0 {
		return Stage{}
	}
	return r.Stages[i]
}

// What somebody broke must be named, with what was seen and what to do.
func TestUpNamesWhatIsBroken(t *testing.T) {
	const csv = "overlay/etc/nvidia-container-runtime/host-files-for-container.d/virt.csv"
	tests := []struct {
		name  string
		wreck func(images.Spec) images.Spec
		stage string // that fails
		check string // that fails, where the stage is smoke
		saw   string // in what was seen
	}{
		{"hook left out", func(s images.Spec) images.Spec {
			debian := *s.Debian
			debian.Hook = ""
			s.Debian = &debian
			return s
		}, "smoke", "hook", "slipway-hook"},
		{"sshd off", func(s images.Spec) images.Spec {
			debian := *s.Debian
			debian.Mask = append(slices.Clone(debian.Mask), "ssh.service")
			s.Debian = &debian
			return s
		}, "boot", "", "nothing answers on its SSH port"},
		{"CSV lists a library that is not there", func(s images.Spec) images.Spec {
			return s.WithFile(csv, "lib, /usr/lib/libnothere.so.1\nlib, /usr/lib/*/liblzma.so.5.*\nsym, /usr/lib/*/liblzma.so.5\n")
		}, "smoke", "CSV", "libnothere.so.1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, "broken")
			r.spec = test.wreck(r.spec)
			report, err := r.up(t, t.Context())
			if err == nil {
				t.Fatal("Up succeeded")
			}
			failed := find(report, test.stage)
			if failed.Status != Failed || failed.Next == "" {
				t.Errorf("stage %s is %+v; want it failed, with a next step; error: %v", test.stage, failed, err)
			}
			if test.check == "" {
				if !strings.Contains(failed.Saw, test.saw) {
					t.Errorf("stage %s saw %q; want %q in it", test.stage, failed.Saw, test.saw)
				}
				return
			}
			if !namesCheck(report, test.check, test.saw) {
				t.Errorf("no failed check about %q that saw %q and says what to do: %+v", test.check, test.saw, report.Suites)
			}
		})
	}
}

func namesCheck(r Report, name, saw string) bool {
	for _, suite := range r.Suites {
		for _, c := range suite.Checks {
			if c.Status == Failed && strings.Contains(c.Name, name) && strings.Contains(c.Saw, saw) && c.Next != "" {
				return true
			}
		}
	}
	return false
}

// A Ctrl-C in any stage ends it there, and up() finds nothing left behind.
func TestUpStops(t *testing.T) {
	for _, at := range []string{"build", "flash", "boot", "deploy files", "smoke base"} {
		t.Run(at, func(t *testing.T) {
			r := newRig(t, "stopped")
			if at == "build" { // so that there is something to build
				r.spec = r.spec.WithFile("overlay/etc/motd", t.Name())
			}
			ctx, interrupt := context.WithCancelCause(t.Context())
			pressed := errors.New("interrupt")
			watcher := progress.New(stopAt{at, func() { interrupt(pressed) }})
			report, err := r.up(t, progress.With(ctx, watcher))
			if !errors.Is(err, pressed) {
				t.Errorf("Up stopped in %s: %v; want %v", at, err, pressed)
			}
			stage, _, _ := strings.Cut(at, " ")
			if got := find(report, stage); got.Status != Failed {
				t.Errorf("stage %s is %+v; want it failed", stage, got)
			}
		})
	}
}

// stopAt presses Ctrl-C when a step begins.
type stopAt struct {
	step  string
	press func()
}

func (s stopAt) Event(e progress.Event) {
	if e.Step == s.step {
		s.press()
	}
}

func (s stopAt) Close() {}
