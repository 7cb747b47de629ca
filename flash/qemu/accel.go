package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/layers/engine"
)

// The accelerators: the processor's own, and emulation.
const (
	KVM = "kvm"
	TCG = "tcg"
)

// kvmTrial is how long the firmware of an empty machine may take to say its
// name. With a KVM that works it takes 50 ms; there are machines whose /dev/kvm
// opens and then runs nothing.
const kvmTrial = 3 * time.Second

// accelerator returns kvm where it is known to run this board, tcg elsewhere.
// Only a PC's firmware prints early enough to try it, so other machines get tcg.
func accelerator(ctx context.Context, spec images.Spec) string {
	if spec.Machine.Type != "pc" || runtime.GOARCH != spec.Arch || unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) != nil {
		return TCG
	}
	memory := kvmMemory()
	if known, err := os.ReadFile(memory); err == nil {
		return string(known)
	}
	found := TCG
	if kvmRuns(ctx, spec.Machine.Program) {
		found = KVM
	}
	if ctx.Err() == nil && memory != "" {
		_ = renameio.WriteFile(memory, []byte(found), 0o644) // else it is tried again next time
	}
	return found
}

// kvmMemory is the file that remembers the trial for this kernel.
func kvmMemory() string {
	var u unix.Utsname
	cache, err := os.UserCacheDir()
	if err != nil || unix.Uname(&u) != nil {
		return ""
	}
	dir := filepath.Join(cache, "slipway")
	if os.MkdirAll(dir, 0o755) != nil {
		return ""
	}
	kernel := sha256.Sum256(append(u.Release[:], u.Version[:]...))
	return filepath.Join(dir, fmt.Sprintf("kvm-%x", kernel[:8]))
}

// kvmRuns starts a machine without a disk and listens to its firmware.
func kvmRuns(ctx context.Context, program string) bool {
	ctx, cancel := context.WithTimeout(ctx, kvmTrial)
	defer cancel()
	heard := &listener{word: []byte("SeaBIOS"), found: cancel}
	cmd := engine.Prepare(ctx, engine.Command{Argv: []string{
		program, "-machine", "pc", "-accel", KVM, "-cpu", "host", "-m", "64", "-nodefaults", "-no-user-config", "-display", "none",
		"-chardev", "stdio,id=out", "-device", "isa-debugcon,iobase=0x402,chardev=out",
	}})
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	cmd.Stdout = heard
	_ = cmd.Run() // it is ended in any case
	return heard.yes
}

// listener looks for a word in what is written to it.
type listener struct {
	word  []byte
	seen  []byte
	found func()
	yes   bool
}

func (l *listener) Write(p []byte) (int, error) {
	if len(l.seen) < 1<<16 {
		l.seen = append(l.seen, p...)
	}
	if !l.yes && bytes.Contains(l.seen, l.word) {
		l.yes = true
		l.found()
	}
	return len(p), nil
}
