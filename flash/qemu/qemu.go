// Package qemu starts virtual machines for boards, with serial lines, whatever software they run.
package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// The files in a machine's folder.
const (
	DiskName    = "disk.img"
	stateName   = "machine.json"
	consoleName = "console.log"
	socketName  = "console.sock"
	outputName  = "qemu.log"
	lockName    = "machine.lock" // held while the others are made or removed
)

// ErrOff says that no machine runs in a folder.
var ErrOff = errors.New("the virtual board is off")

// VM is a running virtual board.
type VM struct {
	Board   string    `json:"board"`
	PID     int       `json:"pid"`
	SSHPort int       `json:"sshPort"` // on 127.0.0.1, leads to the board's port 22
	Accel   string    `json:"accel"`   // kvm or tcg; where KVM fails, qemu.log says which file remembers that
	Started time.Time `json:"started"`

	dir    string
	exited chan struct{} // nil: not this process's child
}

// Start starts QEMU for the board with the disk in dir, and records the machine there. With
// detach the machine outlives ctx and this process. If one runs already, Start returns an error.
func Start(ctx context.Context, spec images.Spec, dir string, detach bool) (*VM, error) {
	unlock, err := lockMachine(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := Find(dir)
	if err == nil {
		return nil, fmt.Errorf("%s is already on (pid %d, ssh port %d)\nnext: virt ssh %s", spec.Board, old.PID, old.SSHPort, plaintext.Quote(spec.TypedName()))
	}
	if !errors.Is(err, ErrOff) {
		return nil, err
	}
	accel, note := ChooseAccelerator(ctx, spec)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	name, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	sshPort, err := run.FreePortFor(name) // the same port after a power cut, for programs that wait for the board
	if err != nil {
		return nil, err
	}
	vm := &VM{Board: spec.Board, SSHPort: sshPort, Accel: accel, Started: time.Now(), dir: dir}
	if err := vm.launch(ctx, qemuArguments(spec, accel, sshPort), note, detach); err != nil {
		return nil, err
	}
	if err := vm.saveState(); err != nil {
		return nil, errors.Join(fmt.Errorf("record that %s is on: %w", spec.Board, err), vm.killProcess())
	}
	return vm, nil
}

// lockMachine locks dir's machine against other starts and stops. It waits up to lockLimit.
func lockMachine(ctx context.Context, dir string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockLimit, fmt.Errorf("another program has been switching the machine in %s on or off for %s", dir, lockLimit))
	defer cancel()
	f, err := localfile.Lock(ctx, filepath.Join(dir, lockName), 0o600)
	return func() { f.Close() }, err
}

// lockLimit is far longer than the test of KVM, the longest step under the lock.
const lockLimit = 30 * time.Second

// launch starts QEMU, with note and then its output in the log file, and sets PID and exited. It
// removes the console log of an earlier machine, whose output must not be mistaken for this one's.
func (v *VM) launch(ctx context.Context, argv []string, note string, detach bool) error {
	if err := localfile.Remove(ConsoleLog(v.dir)); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(v.dir, outputName))
	if err != nil {
		return err
	}
	defer log.Close()
	if note != "" {
		fmt.Fprintln(log, note)
	}
	cmd := run.Prepare(ctx, run.Command{Argv: argv, Dir: v.dir})
	if detach {
		cmd = exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.SysProcAttr = v.dir, &syscall.SysProcAttr{Setsid: true}
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("switch %s on: %w", v.Board, err)
	}
	v.PID, v.exited = cmd.Process.Pid, make(chan struct{})
	go func() {
		_ = cmd.Wait() // its last output is in the log
		close(v.exited)
	}()
	return nil
}

func (v *VM) saveState() error {
	return localfile.WriteJSON(filepath.Join(v.dir, stateName), v, 0o644)
}

// Through records another local port that forwards to the board's SSH, such as a relay's.
func (v *VM) Through(port int) error {
	v.SSHPort = port
	return v.saveState()
}

// qemuArguments returns QEMU's command line. Paths are relative to the machine's folder, because
// socket names must be short.
func qemuArguments(spec images.Spec, accel string, port int) []string {
	m := spec.Machine
	cpu, acceleration := m.CPU, TCG+",thread=multi,tb-size=512"
	if accel == KVM {
		cpu, acceleration = "host", KVM
	}
	argv := []string{
		m.Program, "-name", "slipway-" + spec.Board, "-machine", m.Type, "-accel", acceleration, "-cpu", cpu,
		"-smp", strconv.Itoa(m.CPUs), "-m", strconv.Itoa(m.RAMMiB),
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		// NVMe is built into Debian's cloud kernels, so that they boot without an initrd.
		"-drive", "if=none,id=disk,format=raw,cache=writeback,discard=unmap,file=" + DiskName,
		"-device", "nvme,drive=disk,serial=slipway",
		// Restricted: the board can be reached, but reaches nothing.
		"-netdev", fmt.Sprintf("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:%d-:%d", port, spec.SSH.Port),
		"-device", "virtio-net-pci,netdev=net,romfile=",
		"-device", "virtio-rng-pci",
		"-chardev", "socket,id=console,path=" + socketName + ",server=on,wait=off,logfile=" + consoleName,
		"-serial", "chardev:console",
	}
	if m.Firmware.Path != "" {
		argv = append(argv, "-bios", m.Firmware.Path)
	}
	return argv
}

// Find returns the machine that runs in dir, or ErrOff.
func Find(dir string) (*VM, error) {
	data, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrOff
	}
	if err != nil {
		return nil, err
	}
	v := &VM{dir: dir}
	if err := json.Unmarshal(data, v); err != nil {
		return nil, fmt.Errorf("%s: %w; remove the file", filepath.Join(dir, stateName), err)
	}
	if !v.isAlive() {
		return nil, ErrOff
	}
	return v, nil
}

// isAlive reports whether the recorded process is still this machine, and not a later process with
// the same PID. A process that ends loses its command line first, and closes its disk later.
func (v *VM) isAlive() bool {
	proc := filepath.Join("/proc", strconv.Itoa(v.PID))
	cmdline, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil || len(cmdline) > 0 && !strings.Contains(string(cmdline), "\x00slipway-"+v.Board+"\x00") {
		return false
	}
	cwd, err := os.Readlink(filepath.Join(proc, "cwd"))
	if errors.Is(err, fs.ErrPermission) { // another user's, of whom only the command line can be read
		return len(cmdline) > 0
	}
	if err != nil {
		return false
	}
	mine, err := filepath.Abs(v.dir)
	return err == nil && localfile.Same(cwd, mine)
}

// Exited returns a channel that is closed when a machine started by this process has ended.
func (v *VM) Exited() <-chan struct{} { return v.exited }

// stopGrace is how long QEMU may take to write out its disk.
const stopGrace = 10 * time.Second

// Stop ends QEMU with SIGTERM, then SIGKILL, and removes the machine's state. It takes no context,
// so that it works after Ctrl-C. It succeeds if the machine is already off.
func (v *VM) Stop() error {
	if err := v.killProcess(); err != nil {
		return err
	}
	return v.removeState()
}

// killProcess sends SIGTERM, then SIGKILL after stopGrace, and returns once the machine has ended.
func (v *VM) killProcess() error {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if !v.isAlive() {
			return nil
		}
		if err := unix.Kill(v.PID, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop %s (pid %d): %w", v.Board, v.PID, err)
		}
		if v.waitExit(context.Background(), stopGrace) {
			return nil
		}
	}
	return fmt.Errorf("%s (pid %d) does not end, even when killed", v.Board, v.PID)
}

// removeState removes the machine's record and socket, unless another machine was started since.
func (v *VM) removeState() error {
	unlock, err := lockMachine(context.Background(), v.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the whole folder is gone
	}
	if err != nil {
		return err
	}
	defer unlock()
	if next, err := Find(v.dir); err == nil && next.PID != v.PID {
		return nil
	}
	return localfile.Remove(filepath.Join(v.dir, stateName), filepath.Join(v.dir, socketName))
}

// waitExit reports whether all v's threads, which hold its disk open, end within limit and ctx.
func (v *VM) waitExit(ctx context.Context, limit time.Duration) bool {
	fd, err := unix.PidfdOpen(v.PID, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	if !v.isAlive() {
		return true
	}
	for end := time.Now().Add(limit); ctx.Err() == nil && time.Now().Before(end); {
		const pauseMs = 20
		if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, pauseMs); n > 0 {
			return true
		}
	}
	return false
}

// WaitOff waits up to limit until the machine has switched itself off, and then removes its state.
// Its error says that the machine is still on, or why ctx ended.
func (v *VM) WaitOff(ctx context.Context, limit time.Duration) error {
	switch {
	case v.waitExit(ctx, limit):
		return v.removeState()
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("it is still on after %s", limit)
}

// HostPackages returns the Debian packages for the board's virtual machine; none if it has none.
func HostPackages(spec images.Spec) []string {
	if spec.Machine == nil {
		return nil
	}
	all := []string{spec.Machine.Package}
	if spec.Machine.Firmware.Package != "" {
		all = append(all, spec.Machine.Firmware.Package)
	}
	return all
}

// ConsoleLog returns the file with the serial line's output.
func ConsoleLog(dir string) string { return filepath.Join(dir, consoleName) }
