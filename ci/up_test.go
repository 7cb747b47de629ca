package ci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/audit"
	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/qemu"
	"slipway/images"
	"slipway/images/builder"
	"slipway/layers/host"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// virtualBuild is a build folder for the virtual board, below the clone's build/, so that
// the userland is made once for all tests and people.
type virtualBuild struct {
	spec        images.Spec
	opt         UpOptions
	brokenSuite string // finds what testUpWhole breaks
}

// testBoards has the builds of the tests' boards. It is not in build/test, which test changes after
// each run: Go's test cache would take that for new input.
var testBoards = filepath.Join("build", "testboards")

func newVirtualBuild(t *testing.T, name string) virtualBuild {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines, which takes minutes: run without -short")
	}
	spec, err := images.Default()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("..")
	setTempDir(t)
	if missing, err := host.Missing(t.Context(), builder.HostPackages(spec, "")...); err != nil || len(missing) > 0 {
		t.Skipf("this machine lacks the Debian packages %v (%v)", missing, err)
	}
	build := images.Options{Dir: filepath.Join(testBoards, name), Cache: filepath.Join("build", "cache")}
	return virtualBuild{spec: spec, opt: UpOptions{Build: build, Out: io.Discard}}
}

// What up installs for the virtual board is installed before the tests begin: none of them
// may meet a package manager that is busy.
func TestPackagesOfTheVirtualBoard(t *testing.T) {
	spec, err := images.Default()
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile("test-packages.txt")
	if err != nil {
		t.Fatal(err)
	}
	needed := append(builder.HostPackages(spec, ""), qemu.HostPackages(spec)...)
	for _, name := range append(needed, "uidmap") { // uidmap: where the user is not root
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `\s`).Match(list) {
			t.Errorf("test-packages.txt has no line of %s", name)
		}
	}
}

func (r virtualBuild) up(t *testing.T, ctx context.Context) (report.Report, error) {
	t.Helper()
	before := findLeftovers(t, r.opt.Build.Dir)
	result, err := Up(ctx, r.spec, r.opt)
	if diff := cmp.Diff(before, findLeftovers(t, r.opt.Build.Dir)); diff != "" {
		t.Errorf("Up left something behind (-before +after):\n%s", diff)
	}
	for _, name := range []string{report.ReportJSON, report.ReportJUnit, report.ReportHTML} {
		if _, err := os.Stat(filepath.Join(r.opt.Build.ReportDir(r.spec), name)); err != nil {
			t.Errorf("no report: %v", err)
		}
	}
	return result, err
}

// setTempDir gives the test a folder for temporary files, in which no other program works.
// Its path is short, for the sake of sockets in it.
func setTempDir(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // mmdebstrap's other users have to get through
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
}

// findLeftovers returns the processes, loop devices, mounts and half-written files that a
// run in dir can leave behind. It looks at no other program's.
func findLeftovers(t *testing.T, dir string) []string {
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
		if strings.Contains(line, dir+"/") || strings.Contains(line, os.TempDir()+"/") {
			all = append(all, "mount "+line)
		}
	}
	for _, pattern := range []string{filepath.Join(dir, "*", "work-*"), filepath.Join(os.TempDir(), "mmdebstrap.*"), filepath.Join(dir, "..", "cache", "*.part")} {
		found, _ := filepath.Glob(pattern)
		all = append(all, found...)
	}
	return all
}

// A next step of the report can be typed: it names the program and the board as the user does.
func TestNextStepsOfUp(t *testing.T) {
	u := upRun{spec: images.Spec{Board: "a b"}}
	want := map[string]string{
		"build":  `"NAME doctor 'a b'" looks at this machine`,
		"boot":   "look around: NAME virt start 'a b', then NAME virt console 'a b'",
		"deploy": "look around: NAME virt start 'a b', then NAME virt ssh 'a b'",
	}
	for _, s := range u.stages() {
		if want := strings.ReplaceAll(want[s.name], "NAME", host.ProgramName()); !strings.HasSuffix(s.next, want) {
			t.Errorf("after %s the next step is %q; want %q", s.name, s.next, want)
		}
	}
}

// Next steps among several lines of an error can be typed too.
func TestNextStepsOfStage(t *testing.T) {
	host.SetTyped([]string{"up", "toy"})
	t.Cleanup(func() { host.SetTyped(nil) })
	r := &report.Report{}
	fail := func(context.Context) (string, error) {
		return "", errors.New("edited:\na\nnext: A=b repeat the line\nnext: git stash && repeat the line")
	}
	_ = runStage(t.Context(), r, stage{"build", fail, "look"})
	line := host.ProgramName() + " up toy"
	if want := "edited:\na\nnext: A=b " + line + "\nnext: git stash && " + line; r.Stages[0].Saw != want {
		t.Errorf("the stage saw %q; want %q", r.Stages[0].Saw, want)
	}
}

// A board that prints nothing on KVM is emulated from then on.
func TestSilenceOnKVM(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := images.Spec{Board: "toy", Machine: &images.Machine{Ready: "never said"}}
	u := &upRun{spec: spec, opt: UpOptions{Build: images.Options{Dir: t.TempDir()}}}
	if err := os.MkdirAll(u.machineDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	for accel, want := range map[string]error{qemu.KVM: errSilent, qemu.TCG: context.DeadlineExceeded} {
		u.vm = &qemu.VM{Accel: accel, Started: time.Now().Add(-2 * silenceLimit)}
		ctx, cancel := context.WithTimeout(t.Context(), 10*watchEvery)
		if accel == qemu.KVM {
			ctx, cancel = context.WithCancel(t.Context())
		}
		err := u.logIn(ctx, u.vm, progress.Start(ctx, "boot", 0, ""))
		cancel()
		if !errors.Is(err, want) {
			t.Errorf("logIn on %s = %v; want %v", accel, err, want)
		}
	}
	u.vm = &qemu.VM{Accel: qemu.KVM}
	if why := u.retryReason(errSilent); !strings.Contains(why, "emulated") {
		t.Errorf("again(%v) = %q; want that it is emulated", errSilent, why)
	}
	if err := qemu.DistrustKVM(); err != nil {
		t.Fatal(err)
	}
	memory, _ := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "slipway", "kvm-*"))
	if len(memory) != 1 {
		t.Errorf("%q remember it; want one file", memory)
	}
}

// After a kernel panic the machine is started again. The old machine must not be watched any
// more then.
func TestPanicEndsTheWatch(t *testing.T) {
	spec := images.Spec{Board: "toy", Machine: &images.Machine{Ready: "never said"}}
	u := &upRun{spec: spec, opt: UpOptions{Build: images.Options{Dir: t.TempDir()}}}
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

// As many tests as possible share one board, because starting it takes longest.
func TestUp(t *testing.T) {
	t.Run("whole, then broken", testUpWhole)
	t.Run("stopped", testUpStops)
	t.Run("sshd off", testUpWithoutSSH)
}

// A fault on a board that passed must be reported, with what was seen and what to do.
func testUpWhole(t *testing.T) {
	r := newVirtualBuild(t, "whole")
	before := findLeftovers(t, r.opt.Build.Dir)
	r.opt.Keep = true
	result, err := Up(t.Context(), r.spec, r.opt)
	defer func() {
		if err := StopVirtual(context.Background(), io.Discard, r.opt.Build, r.spec, true); err != nil {
			t.Errorf("the board was to be left on: %v", err)
		}
		if diff := cmp.Diff(before, findLeftovers(t, r.opt.Build.Dir)); diff != "" {
			t.Errorf("Up left more behind than the board (-before +after):\n%s", diff)
		}
	}()
	if err != nil || result.Failed() || result.Counts().Checks[report.Passed] < 15 {
		t.Fatalf("Up: %v, %v; want no failure and at least 15 passed checks", result.Counts(), err)
	}
	if a, err := images.ReadArtifact(r.opt.Build.BoardDir(r.spec)); err != nil || a.Cost == nil || a.Cost.BuildMS < 1 || result.Boot.ElapsedMS < 1 || result.Boot.Accel == "" {
		t.Errorf("cost %+v, boot %+v, %v; want their times", a.Cost, result.Boot, err)
	}
	r.auditImage(t)
	r.brokenSuite = copyHookChecks(t)
	const csv = "/etc/nvidia-container-runtime/host-files-for-container.d/virt.csv"
	r.runOnBoard(t, "sed", "-i", "$ a lib, /usr/lib/libnothere.so.1", csv)
	wantCheck(t, r.wantSmokeFails(t), "CSV", "libnothere.so.1")
	r.runOnBoard(t, "rm", "/usr/bin/slipway-hook")
	wantCheck(t, r.wantSmokeFails(t), "hook", "slipway-hook")
	r.stopSmoke(t)
}

// auditImage wants nothing to be found in the board's image.
func (r virtualBuild) auditImage(t *testing.T) {
	t.Helper()
	target, err := audit.Find(r.opt.Build.BoardDir(r.spec), "")
	if err != nil {
		t.Fatal(err)
	}
	// Who holds the serial line of a virtual machine holds the machine.
	console := "access /etc/systemd/system/serial-getty@*.service.d/login.conf"
	reports, err := audit.Audit(t.Context(), target, audit.Options{Allow: []string{console}})
	if err != nil || len(reports) != 1 || reports[0].Programs < 500 || len(reports[0].Findings) > 0 {
		t.Errorf("audit of %+v = %+v, %v; want one root file system with many programs and no finding", target, reports, err)
	}
}

// stopSmoke ends a smoke run by Ctrl-C. up's own stages end alike; see testUpStops.
func (r virtualBuild) stopSmoke(t *testing.T) {
	t.Helper()
	ctx, interrupt := context.WithCancelCause(t.Context())
	pressed := errors.New("interrupt")
	ctx = progress.With(ctx, progress.New(stopAt{"smoke hook-checks", func() { interrupt(pressed) }}))
	if _, err := r.smoke(ctx); !errors.Is(err, pressed) {
		t.Errorf("SmokeOn stopped in the suite: %v; want %v", err, pressed)
	}
}

// smoke runs the checks that find what testUpWhole breaks.
func (r virtualBuild) smoke(ctx context.Context) (report.Report, error) {
	spec := r.spec
	spec.Suites = []string{r.brokenSuite}
	return SmokeOn(ctx, io.Discard, r.opt.Build, spec, spec.Board, "")
}

// copyHookChecks makes a suite of the checks of suite "containers" that start no container:
// starting one takes 10 s of CPU time under emulation, and Up has started two.
func copyHookChecks(t *testing.T) string {
	t.Helper()
	all, err := os.ReadFile(filepath.Join("ci", "suite", "workloads", "containers", "suite.yml"))
	checks, containers, found := strings.Cut(string(all), "\ncontainer:\n")
	if err != nil || !found || strings.Contains(containers, "\ncommand:\n") {
		t.Fatalf("the suite has no section container at its end: %v", err)
	}
	name := filepath.Join(t.TempDir(), "hook-checks.yml")
	if err := os.WriteFile(name, []byte(checks+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// wantSmokeFails returns the report of a smoke run that must fail.
func (r virtualBuild) wantSmokeFails(t *testing.T) report.Report {
	t.Helper()
	result, err := r.smoke(t.Context())
	if !errors.Is(err, report.ErrFailed) {
		t.Errorf("SmokeOn = %v; want %v", err, report.ErrFailed)
	}
	return result
}

// The board comes to its prompt, and has no sshd. A program that prints the prompt takes QEMU's
// place: a boot takes 30 s of CPU time under emulation.
func testUpWithoutSSH(t *testing.T) {
	r := newVirtualBuild(t, "broken")
	debian, machine := *r.spec.Debian, *r.spec.Machine
	debian.Hook = "" // covers images without the hook too
	machine.Program, machine.Ready = filepath.Join(t.TempDir(), "qemu"), ""
	script := "#!/bin/sh\nprintf '\\nslipway login: ' > console.log\ntrap 'kill $!; exit' TERM\nsleep 600 & wait\n"
	if err := run.WriteProgram(machine.Program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r.spec.Debian, r.spec.Machine = &debian, &machine
	result, err := r.up(t, t.Context())
	const want = "nothing answers on its SSH port"
	if failed := findStage(result, "boot"); err == nil || failed.Status != report.Failed || failed.Next == "" || !strings.Contains(failed.Saw, want) {
		t.Errorf("Up: %v, stage boot is %+v; want it failed, with a next step, and %q seen", err, failed, want)
	}
}

func findStage(r report.Report, stage string) report.Stage {
	i := slices.IndexFunc(r.Stages, func(s report.Stage) bool { return s.Name == stage })
	if i < 0 {
		return report.Stage{}
	}
	return r.Stages[i]
}

func (r virtualBuild) runOnBoard(t *testing.T, argv ...string) {
	t.Helper()
	err := reach.WithArtifact(t.Context(), r.opt.Build, r.spec, r.spec.Board, func(ctx context.Context, c *boardssh.Conn, _ images.Spec, _ images.Artifact) error {
		result, err := c.Run(ctx, argv...)
		if err == nil && result.Status != 0 {
			err = fmt.Errorf("status %d: %s", result.Status, result.Stderr)
		}
		return err
	})
	if err != nil {
		t.Errorf("%v on the board: %v", argv, err)
	}
}

func wantCheck(t *testing.T, r report.Report, name, saw string) {
	t.Helper()
	if !namesCheck(r, name, saw) {
		t.Errorf("no failed check about %q that saw %q and says what to do: %+v", name, saw, r.Suites)
	}
}

func namesCheck(r report.Report, name, saw string) bool {
	for _, suite := range r.Suites {
		for _, c := range suite.Checks {
			if c.Status == report.Failed && strings.Contains(c.Name, name) && strings.Contains(c.Saw, saw) && c.Next != "" {
				return true
			}
		}
	}
	return false
}

// A Ctrl-C in any stage ends the run there, and up() finds nothing left behind.
func testUpStops(t *testing.T) {
	whole := newVirtualBuild(t, "whole")
	if _, err := Build(t.Context(), io.Discard, whole.spec, whole.opt.Build); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"build", "flash", "boot"} {
		t.Run(at, func(t *testing.T) {
			r := whole
			if at == "build" { // remove the image, so that the stage builds one
				r.spec = r.spec.WithFile("overlay/etc/motd", t.Name())
			}
			ctx, interrupt := context.WithCancelCause(t.Context())
			pressed := errors.New("interrupt")
			watcher := progress.New(stopAt{at, func() { interrupt(pressed) }})
			result, err := r.up(t, progress.With(ctx, watcher))
			if !errors.Is(err, pressed) {
				t.Errorf("Up stopped in %s: %v; want %v", at, err, pressed)
			}
			if got := findStage(result, at); got.Status != report.Failed {
				t.Errorf("stage %s is %+v; want it failed", at, got)
			}
			if build := findStage(result, "build"); at != "build" && build.Status != report.Cached {
				t.Errorf("build is %s (%s); want it cached", build.Status, build.Saw)
			}
		})
	}
}

// stopAt cancels the run when a step begins, as Ctrl-C does.
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
