package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/images"
)

// machine is a real QEMU with an empty disk: its firmware finds nothing to boot
// and waits, which is all that a power switch needs.
func machine(t *testing.T) (images.Spec, string) {
	t.Helper()
	spec, err := images.Default()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(spec.Machine.Program); err != nil {
		t.Skipf("%s is not installed (Debian package %s)", spec.Machine.Program, spec.Machine.Package)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, DiskName), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	return spec, dir
}

func TestStartStop(t *testing.T) {
	for _, detach := range []bool{false, true} {
		spec, dir := machine(t)
		if _, err := Find(dir); !errors.Is(err, ErrOff) {
			t.Errorf("Find before Start = %v; want ErrOff", err)
		}
		vm, err := Start(t.Context(), spec, dir, detach)
		if err != nil {
			t.Fatal(err)
		}
		found, err := Find(dir)
		if err != nil || found.PID != vm.PID || found.SSHPort != vm.SSHPort {
			t.Errorf("Find = %+v, %v; want %+v", found, err, vm)
		}
		if _, err := Start(t.Context(), spec, dir, detach); err == nil || !strings.Contains(err.Error(), "already on") {
			t.Errorf("second Start = %v; want it refused", err)
		}
		if err := found.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := Find(dir); !errors.Is(err, ErrOff) {
			t.Errorf("Find after Stop = %v; want ErrOff", err)
		}
		select {
		case <-vm.Exited():
		case <-time.After(stopGrace):
			t.Error("Exited is not closed after Stop")
		}
		if err := vm.Stop(); err != nil {
			t.Errorf("second Stop = %v", err)
		}
	}
}

// A machine that ends gives its memory back, and its command line with it, before it closes its
// disk: the next machine would find the disk in use.
func TestAliveUntilTheDiskIsClosed(t *testing.T) {
	for range 3 {
		spec, dir := machine(t)
		vm, err := Start(t.Context(), spec, dir, true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { vm.Stop() })
		if err := unix.Kill(vm.PID, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		for vm.isAlive() {
		}
		if at, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(vm.PID), "cwd")); err == nil {
			t.Errorf("process %d still has the folder %s, and is not taken for alive", vm.PID, at)
		}
	}
}

// The trial of KVM takes seconds where it fails, which is long enough to start a
// machine twice; whoever comes second must leave the first one's files alone.
func TestStartTwiceAtOnce(t *testing.T) {
	spec, dir := machine(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	type result struct {
		vm  *VM
		err error
	}
	results := make(chan result)
	for range 2 {
		go func() {
			vm, err := Start(t.Context(), spec, dir, true)
			results <- result{vm, err}
		}()
	}
	first, second := <-results, <-results
	if first.err != nil {
		first, second = second, first
	}
	for _, r := range []result{first, second} {
		if r.vm != nil {
			t.Cleanup(func() { r.vm.Stop() })
		}
	}
	if first.err != nil || second.err == nil || !strings.Contains(second.err.Error(), "already on") {
		t.Fatalf("two Starts = %v and %v; want one that is refused", first.err, second.err)
	}
	if found, err := Find(dir); err != nil || found.PID != first.vm.PID {
		t.Errorf("Find = %+v, %v; want pid %d", found, err, first.vm.PID)
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(ConsoleLog(dir)); err == nil {
			break
		} else if time.Since(began) > stopGrace {
			t.Fatalf("the machine that runs has no log: %v", err)
		}
	}
}

// An unreadable record may be that of a running machine.
func TestStartReturnsFindsError(t *testing.T) {
	spec, dir := machine(t)
	if err := os.WriteFile(filepath.Join(dir, stateName), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	vm, err := Start(t.Context(), spec, dir, false)
	if err == nil {
		vm.Stop()
	}
	if err == nil || !strings.Contains(err.Error(), stateName) {
		t.Errorf("Start over a damaged record = %v; want an error that names it", err)
	}
}

// A machine without a record must not keep running.
func TestStartStopsWhatItCannotRecord(t *testing.T) {
	spec, dir := machine(t)
	state := filepath.Join(dir, stateName)
	if err := os.WriteFile(state, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(state, state, "", unix.MS_BIND, ""); err != nil { // nothing can be renamed onto a mount
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(state, unix.MNT_DETACH) })
	vm, err := Start(t.Context(), spec, dir, true)
	if err == nil {
		t.Fatal("Start without a record succeeded")
	}
	if vm != nil {
		vm.Stop()
		t.Error("Start returned a machine together with an error")
	}
	for _, pid := range pidsIn(t, dir) {
		_ = unix.Kill(pid, unix.SIGKILL)
		t.Errorf("process %d was left on", pid)
	}
}

// pidsIn are the machines whose folder is dir.
func pidsIn(t *testing.T, dir string) []int {
	t.Helper()
	var found []int
	all, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, cwd := range all {
		if at, err := os.Readlink(cwd); err == nil && at == dir {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(cwd)))
			found = append(found, pid)
		}
	}
	return found
}

// Whoever stops a machine that is off already must not take away the record of
// the next one.
func TestStopLeavesTheNextMachineAlone(t *testing.T) {
	spec, dir := machine(t)
	old, err := Start(t.Context(), spec, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Stop(); err != nil {
		t.Fatal(err)
	}
	vm, err := Start(t.Context(), spec, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Stop() })
	if err := old.Stop(); err != nil {
		t.Error(err)
	}
	if found, err := Find(dir); err != nil || found.PID != vm.PID {
		t.Errorf("Find = %+v, %v; want pid %d", found, err, vm.PID)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	spec, dir := machine(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	vm, err := Start(ctx, spec, dir, true)
	if vm != nil {
		vm.Stop()
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Start after a Ctrl-C = %v; want %v", err, context.Canceled)
	}
}

func TestWaitOff(t *testing.T) {
	spec, dir := machine(t)
	vm, err := Start(t.Context(), spec, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Stop() })
	if err := vm.WaitOff(t.Context(), 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "50ms") {
		t.Errorf("WaitOff of a machine that stays on = %v; want it to say 50ms", err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
	defer cancel()
	began := time.Now()
	if err := vm.WaitOff(ctx, time.Minute); !errors.Is(err, enough) || time.Since(began) > 10*time.Second {
		t.Errorf("WaitOff = %v after %s; want %v soon", err, time.Since(began), enough)
	}
	if err := vm.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := vm.WaitOff(t.Context(), time.Minute); err != nil {
		t.Errorf("WaitOff of a machine that is off = %v", err)
	}
}

func TestEndsWithItsContext(t *testing.T) {
	spec, dir := machine(t)
	ctx, cancel := context.WithCancel(t.Context())
	vm, err := Start(ctx, spec, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if !vm.waitExit(t.Context(), stopGrace) {
		_ = vm.Stop()
		t.Error("the machine outlived its context")
	}
}

// A number that now belongs to another process is not the machine.
func TestFindMistrustsOldState(t *testing.T) {
	dir := t.TempDir()
	for name, state := range map[string]string{
		"this very process": `{"board":"virt","pid":` + "PID" + `,"sshPort":1}`,
		"nobody":            `{"board":"virt","pid":4194304,"sshPort":1}`,
	} {
		state = strings.Replace(state, "PID", strconv.Itoa(os.Getpid()), 1)
		if err := os.WriteFile(filepath.Join(dir, stateName), []byte(state), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Find(dir); !errors.Is(err, ErrOff) {
			t.Errorf("%s: Find = %v; want ErrOff", name, err)
		}
	}
}

func TestTail(t *testing.T) {
	dir := t.TempDir()
	title := "\x1b]3008;start=0123;type=boot\x1b\\\x1b[1;32mOK\x1b[0m \x1bP+q544e\x1b\\" + strings.Repeat("x", 1000) + "\r\n"
	console := strings.Repeat(title, 30) + "\x1b[2Jvirt login: \x07\nKernel panic - not syncing: test\n"
	if err := os.WriteFile(filepath.Join(dir, consoleName), []byte(console), 0o644); err != nil {
		t.Fatal(err)
	}
	tail := Tail(dir)
	if strings.ContainsAny(tail, "\x1b\x07\r") || strings.Count(tail, "\n") >= tailLines || !strings.HasSuffix(tail, "not syncing: test") {
		t.Errorf("Tail = %q; want the last %d lines without control characters", tail, tailLines)
	}
	for line := range strings.Lines(tail) {
		if line != "OK "+strings.Repeat("x", 1000)+"\n" && line != "virt login:\n" && !strings.HasPrefix(line, "Kernel panic") {
			t.Errorf("Tail has the line %q; want whole lines without what was for a terminal", line)
		}
	}
	if !Panicked(dir) || !Prompted(dir) {
		t.Errorf("Panicked = %v, Prompted = %v; want both", Panicked(dir), Prompted(dir))
	}
	if empty := t.TempDir(); Panicked(empty) || Prompted(empty) || Tail(empty) != "" {
		t.Error("a machine that never ran seems to have said something")
	}
}
