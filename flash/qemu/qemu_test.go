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
	for _, opt := range []Options{{}, {Detach: true}} {
		spec, dir := machine(t)
		if _, err := Find(dir); !errors.Is(err, ErrOff) {
			t.Errorf("Find before Start = %v; want ErrOff", err)
		}
		vm, err := Start(t.Context(), spec, dir, opt)
		if err != nil {
			t.Fatal(err)
		}
		found, err := Find(dir)
		if err != nil || found.PID != vm.PID || found.SSHPort != vm.SSHPort {
			t.Errorf("Find = %+v, %v; want %+v", found, err, vm)
		}
		if _, err := Start(t.Context(), spec, dir, opt); err == nil || !strings.Contains(err.Error(), "already on") {
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

func TestEndsWithItsContext(t *testing.T) {
	spec, dir := machine(t)
	ctx, cancel := context.WithCancel(t.Context())
	vm, err := Start(ctx, spec, dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if !vm.wait(stopGrace) {
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
	console := strings.Repeat("boot\r\n", 3000) + "\x1b[2Jvirt login: \x07\nKernel panic - not syncing: test\n"
	if err := os.WriteFile(filepath.Join(dir, consoleName), []byte(console), 0o644); err != nil {
		t.Fatal(err)
	}
	tail := Tail(dir)
	if strings.ContainsAny(tail, "\x1b\x07\r") || strings.Count(tail, "\n") >= tailLines || !strings.HasSuffix(tail, "not syncing: test") {
		t.Errorf("Tail = %q; want the last %d lines without control characters", tail, tailLines)
	}
	if !Panicked(dir) || !Prompted(dir) {
		t.Errorf("Panicked = %v, Prompted = %v; want both", Panicked(dir), Prompted(dir))
	}
	if empty := t.TempDir(); Panicked(empty) || Prompted(empty) || Tail(empty) != "" {
		t.Error("a machine that never ran seems to have said something")
	}
}
