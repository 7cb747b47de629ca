package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/layers/run"
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

// trialAge is how long a trial that failed is believed. A busy machine is enough to
// make one fail.
const trialAge = 24 * time.Hour

// accelerator returns kvm where it is known to run this board, tcg elsewhere.
// Only a PC's firmware prints early enough to try it, so other machines get tcg.
// The note is for who wonders why a board is emulated.
func accelerator(ctx context.Context, spec images.Spec) (accel, note string) {
	if spec.Machine.Type != "pc" || runtime.GOARCH != spec.Arch || unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) != nil {
		return TCG, ""
	}
	memory := kvmMemory()
	found := remembered(memory)
	if found == "" {
		found = TCG
		if kvmRuns(ctx, spec.Machine.Program) {
			found = KVM
		}
		if ctx.Err() == nil && memory != "" {
			_ = renameio.WriteFile(memory, []byte(found), 0o644) // else it is tried again next time
		}
	}
	if found == TCG {
		note = fmt.Sprintf("slipway: a machine was tried with /dev/kvm and did not run, so this one is emulated; for a day this is remembered in %s; remove that to try again", memory)
	}
	return found, note
}

// DistrustKVM has the next machines emulated, for a day. It is for one whose firmware
// spoke, so that the trial went well, and nothing after that.
func DistrustKVM() error {
	memory := kvmMemory()
	if memory == "" {
		return errors.New("nothing can be remembered in this user's cache folder; set HOME or XDG_CACHE_HOME")
	}
	return renameio.WriteFile(memory, []byte(TCG), 0o644)
}

// remembered is what an earlier trial found, "" where it must be tried (again).
func remembered(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	info, err := os.Stat(file)
	if err != nil {
		return ""
	}
	age := time.Since(info.ModTime())
	if found := string(data); found == KVM || found == TCG && age >= 0 && age < trialAge {
		return found
	}
	return ""
}

// kvmMemory is the file that remembers the trial for this kernel:
// ~/.cache/slipway/kvm-<hash>, unless XDG_CACHE_HOME says otherwise.
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
	cmd := run.Prepare(ctx, run.Command{Argv: []string{
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
