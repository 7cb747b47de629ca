package ci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/ci/reach"
	"slipway/flash/boardssh"
	"slipway/flash/qemu"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// notVirtual returns the error for a board whose board.yml has no machine.
func notVirtual(spec images.Spec, next string) error {
	return fmt.Errorf("%s describes no virtual machine (machine:)\nnext: %s", spec.BoardFile(), next)
}

// StartVirtual installs missing host packages, switches a flashed virtual board on, waits until it
// accepts a login, and leaves it on. If it does not boot, StartVirtual switches it off.
func StartVirtual(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec) error {
	if spec.Machine == nil {
		return notVirtual(spec, "boards  # switch this one on yourself")
	}
	dir := opt.MachineDir(spec)
	disk := filepath.Join(dir, qemu.DiskName)
	if _, err := os.Stat(disk); err != nil {
		return fmt.Errorf("%s has no disk yet: %w\nnext: flash %[3]s %[4]s", spec.Board, err, plaintext.Quote(spec.TypedName()), plaintext.Quote(disk))
	}
	if err := host.Ensure(ctx, w, images.LogPath(opt.WorkDir(spec), "apt"), qemu.HostPackages(spec)...); err != nil {
		return err
	}
	u := &upRun{spec: spec, opt: UpOptions{Build: opt, Out: w, Keep: true}}
	saw, err := u.bootBoard(ctx)
	if err != nil {
		u.opt.Keep = false
	}
	u.stopVM()
	if err != nil {
		return err
	}
	return printOn(w, spec, u.vm, saw+", ")
}

// printOn writes that the board is on, saw ("" or "TEXT, "), its SSH port and the next commands.
func printOn(w io.Writer, spec images.Spec, vm *qemu.VM, saw string) error {
	_, err := fmt.Fprintf(w, "%s is on: %sssh on 127.0.0.1 port %d\nnext: %s virt ssh %s (or virt console, smoke, virt stop)\n",
		spec.Board, saw, vm.SSHPort, host.ProgramName(), plaintext.Quote(spec.TypedName()))
	return err
}

// shutdownLimit is how long an emulated board may take to shut down.
const shutdownLimit = 60 * time.Second

// StopVirtual shuts a virtual board down over SSH. If now is set, or the shutdown fails, it stops
// the machine at once. If ctx ends first, it leaves the board as is. A stopped board is no error.
func StopVirtual(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, now bool) error {
	vm, err := qemu.Find(opt.MachineDir(spec))
	if errors.Is(err, qemu.ErrOff) {
		_, err = fmt.Fprintf(w, "%s is off already\n", spec.Board)
		return err
	}
	if err != nil {
		return fmt.Errorf("%s: %w", spec.Board, err)
	}
	return progress.Run(ctx, "stop", func(s *progress.Step) (string, error) {
		if now {
			return spec.Board + " is off: the plug was pulled", vm.Stop()
		}
		s.Detail("shutting down")
		a, err := reach.VirtualAddress(opt, spec, vm)
		if err == nil {
			err = shutDown(ctx, a)
		}
		if err == nil {
			err = vm.WaitOff(ctx, shutdownLimit)
		}
		if err == nil {
			return spec.Board + " is off", nil
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("%s was left as it is: %w", spec.Board, context.Cause(ctx))
		}
		reason, _, _ := strings.Cut(err.Error(), "\n")
		return fmt.Sprintf("%s is off: the plug was pulled: %s", spec.Board, reason), vm.Stop()
	})
}

// shutDown logs in and runs systemctl poweroff, and does not wait for its end.
func shutDown(ctx context.Context, a boardssh.Address) error {
	conn, err := boardssh.Dial(ctx, a)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := conn.Run(ctx, "systemctl", "poweroff", "--no-block")
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("systemctl poweroff: status %d: %q", r.Status, r.Stderr)
	}
	return err
}

// SSHVirtual replaces this process by ssh: a session on a virtual board, or a run of argv there.
func SSHVirtual(opt images.Options, spec images.Spec, argv []string) error {
	vm, err := qemu.Find(opt.MachineDir(spec))
	if err != nil {
		return fmt.Errorf("%s: %w\nnext: virt start %s", spec.Board, err, plaintext.Quote(spec.TypedName()))
	}
	a, err := reach.VirtualAddress(opt, spec, vm)
	if err != nil {
		return err
	}
	return execSSH(a, argv)
}

// ConsoleVirtual connects in and out to a virtual board's serial line, until Ctrl-] or ctx ends it.
func ConsoleVirtual(ctx context.Context, in *os.File, out io.Writer, opt images.Options, spec images.Spec) error {
	vm, err := qemu.Find(opt.MachineDir(spec))
	if err != nil {
		return fmt.Errorf("%s: %w\nnext: virt start %s", spec.Board, err, plaintext.Quote(spec.TypedName()))
	}
	return vm.Console(ctx, in, out)
}
