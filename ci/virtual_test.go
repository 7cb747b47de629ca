package ci

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"slipway/flash/qemu"
	"slipway/images"
)

// A Ctrl-C while the board shuts down must not switch it off.
func TestStopVirtualInterrupted(t *testing.T) {
	spec, err := images.Default()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(spec.Machine.Program); err != nil {
		t.Skipf("%s is not installed (Debian package %s)", spec.Machine.Program, spec.Machine.Package)
	}
	opt := images.Options{Dir: t.TempDir()}
	dir := opt.MachineDir(spec)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// With an empty disk it neither answers nor shuts down.
	if err := os.WriteFile(filepath.Join(dir, qemu.DiskName), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	vm, err := qemu.Start(t.Context(), spec, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Stop() })
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(vm.SSHPort))
	for conn, err := net.Dial("tcp", at); ; conn, err = net.Dial("tcp", at) {
		if err == nil {
			conn.Close()
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, enough)
	defer cancel()
	if err := StopVirtual(ctx, io.Discard, opt, spec, false); !errors.Is(err, enough) {
		t.Errorf("StopVirtual = %v; want %v", err, enough)
	}
	if _, err := qemu.Find(dir); err != nil {
		t.Errorf("after the interruption: %v; want it left on", err)
	}
	if err := StopVirtual(t.Context(), io.Discard, opt, spec, true); err != nil {
		t.Error(err)
	}
	if _, err := qemu.Find(dir); !errors.Is(err, qemu.ErrOff) {
		t.Errorf("after the plug was pulled: %v; want %v", err, qemu.ErrOff)
	}
}
