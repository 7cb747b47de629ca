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

// kvmTrial is how long testKVM waits for the firmware's name. A working KVM takes 50 ms. On some
// machines /dev/kvm opens and runs nothing.
const kvmTrial = 3 * time.Second

// trialAge is how long a failed test of KVM is cached. A busy machine can make a test fail.
const trialAge = 24 * time.Hour

// ChooseAccelerator returns KVM if it can run this board, else TCG. It tests KVM once and caches
// the result in a file. It returns TCG for boards other than PCs, because only a PC's firmware
// prints early enough for the test. The note explains a failed test.
func ChooseAccelerator(ctx context.Context, spec images.Spec) (accel, note string) {
	if spec.Machine.Type != "pc" || runtime.GOARCH != spec.Arch || unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) != nil {
		return TCG, ""
	}
	memory := kvmTrialPath()
	found := cachedTrial(memory)
	if found == "" {
		found = TCG
		if testKVM(ctx, spec.Machine.Program) {
			found = KVM
		}
		if ctx.Err() == nil && memory != "" {
			_ = renameio.WriteFile(memory, []byte(found), 0o644) // without it, the next start tests again
		}
	}
	if found == TCG {
		note = fmt.Sprintf("slipway: a machine was tried with /dev/kvm and did not run, so this one is emulated; for a day this is remembered in %s; remove that to try again", memory)
	}
	return found, note
}

// DistrustKVM writes the cache file so that machines use emulation for a day. It is for a machine
// whose firmware printed its name and nothing after it, so that testKVM succeeded.
func DistrustKVM() error {
	memory := kvmTrialPath()
	if memory == "" {
		return errors.New("nothing can be remembered in this user's cache folder; set HOME or XDG_CACHE_HOME")
	}
	return renameio.WriteFile(memory, []byte(TCG), 0o644)
}

// cachedTrial returns KVM or TCG, the result of an earlier test in file; "" if a new one is needed.
func cachedTrial(file string) string {
	data, unread := os.ReadFile(file)
	info, err := os.Stat(file)
	if unread != nil || err != nil {
		return ""
	}
	age := time.Since(info.ModTime())
	if found := string(data); found == KVM || found == TCG && age >= 0 && age < trialAge {
		return found
	}
	return ""
}

// kvmTrialPath returns the file with the test's result for this kernel, ~/.cache/slipway/kvm-<hash>
// or below XDG_CACHE_HOME; "" if it cannot make the folder.
func kvmTrialPath() string {
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

// testKVM reports whether the firmware of a machine without a disk prints its name under KVM within
// kvmTrial. It then kills the machine.
func testKVM(ctx context.Context, program string) bool {
	ctx, cancel := context.WithTimeout(ctx, kvmTrial)
	defer cancel()
	heard := &wordFinder{word: []byte("SeaBIOS"), found: cancel}
	cmd := run.Prepare(ctx, run.Command{Argv: []string{
		program, "-machine", "pc", "-accel", KVM, "-cpu", "host", "-m", "64", "-nodefaults", "-no-user-config", "-display", "none",
		"-chardev", "stdio,id=out", "-device", "isa-debugcon,iobase=0x402,chardev=out",
	}})
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	cmd.Stdout = heard
	_ = cmd.Run() // it is killed in any case
	return heard.yes
}

// wordFinder is a writer that calls found once word occurs in the first 64 KiB.
type wordFinder struct {
	word  []byte
	seen  []byte
	found func()
	yes   bool
}

// Write searches the first 64 KiB for word, calls found at the first match, and never fails.
func (l *wordFinder) Write(p []byte) (int, error) {
	if !l.yes && len(l.seen) < 1<<16 {
		l.seen = append(l.seen, p...)
		if l.yes = bytes.Contains(l.seen, l.word); l.yes {
			l.found()
		}
	}
	return len(p), nil
}
