package rig

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/layers/run"
)

// namespaces is a set of Linux namespaces with a root file system, and an OS thread that is in
// them. Programs that the thread starts run there. All end with this process, even if it is killed:
// the kernel then kills the first process of the pid namespace, and all others with it.
type namespaces struct {
	work  chan func()
	gone  chan struct{}
	first *exec.Cmd
}

// root describes the root file system of the namespaces.
type root struct {
	layers  []string // folders, the lowest first; what is changed is kept in memory
	at      string   // an empty folder to put it together in; nothing of that is seen outside
	binds   []bind
	network bool   // the machine's own network instead of one of its own
	name    string // of the simulated machine
}

// bind is a folder or a file of this machine that is mounted in the root.
type bind struct {
	from, at string
	write    bool
}

// first is the first process of the pid namespace. dash and bash reap orphans while they wait.
var first = []string{"/bin/sh", "-c", "sleep infinity & wait"}

// newNamespaces creates namespaces with their thread and first process, and mounts /proc.
func newNamespaces(ctx context.Context, r root) (*namespaces, error) {
	m := &namespaces{work: make(chan func()), gone: make(chan struct{})}
	ready := make(chan error)
	onThread(func() { m.runThread(r, ready) })
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("make namespaces: %w", err)
	}
	if err := m.runProgram(ctx, run.Command{Argv: []string{"mount", "-t", "proc", "proc", "/proc"}}); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// onThread starts f on an OS thread of its own, which ends with f because it is never unlocked. It
// does not use the main thread of the process: that one never ends, and other programs would take
// its namespaces for those of the whole process.
func onThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		other := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(other)
			f()
		}()
		<-other
		runtime.UnlockOSThread()
	}()
}

// runThread enters the namespaces, starts their first process, reports to ready, and calls the
// functions in m.work until that is closed. Then it kills the process. Mounts end with the thread.
func (m *namespaces) runThread(r root, ready chan<- error) {
	defer close(m.gone)
	err := r.unshare()
	if err == nil {
		err = m.startFirst()
	}
	ready <- err
	if err != nil {
		return
	}
	for do := range m.work {
		do()
	}
	m.killFirst()
}

// startFirst starts a new pid namespace's first process. The thread starts later ones there too.
func (m *namespaces) startFirst() error {
	m.first = run.Prepare(context.Background(), run.Command{Argv: first})
	m.first.SysProcAttr.Pdeathsig = syscall.SIGKILL
	m.first.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
	if err := m.first.Start(); err != nil {
		return err
	}
	beside, err := unix.PidfdOpen(m.first.Process.Pid, 0)
	if err == nil {
		err = unix.Setns(beside, unix.CLONE_NEWPID)
		unix.Close(beside)
	}
	if err != nil {
		m.killFirst()
	}
	return err
}

// killFirst kills the first process, and with it all processes of the pid namespace.
func (m *namespaces) killFirst() {
	_ = m.first.Process.Kill()
	_ = m.first.Wait()
}

// runOnThread calls f on the namespaces' thread and waits for its result.
func (m *namespaces) runOnThread(f func() error) error {
	done := make(chan error)
	m.work <- func() { done <- f() }
	return <-done
}

// runProgram runs a program in the namespaces. c has no log file: its path would be outside them.
func (m *namespaces) runProgram(ctx context.Context, c run.Command) error {
	c.Apart = true
	return m.runOnThread(func() error { return run.Run(ctx, c) })
}

// dial connects to an address inside the namespaces. It dials on their thread, because a socket
// belongs to the network of the thread that creates it.
func (m *namespaces) dial(address string) (c net.Conn, err error) {
	err = m.runOnThread(func() error {
		c, err = net.Dial("tcp", address)
		return err
	})
	return c, err
}

// close kills all programs in the namespaces and waits until the thread has ended.
func (m *namespaces) close() {
	close(m.work)
	<-m.gone
}

// unshare moves the calling thread into new mount, host name and IPC namespaces with the root r,
// and into a new network one unless r.network is set.
func (r root) unshare() error {
	flags := unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC
	if !r.network {
		flags |= unix.CLONE_NEWNET
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("%w; this needs root, and a kernel with all kinds of namespaces", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(r.name)); err != nil {
		return err
	}
	if err := r.mountRoot(); err != nil {
		return err
	}
	return pivotRoot(r.pathInside())
}

// pivotRoot makes dir the root of the calling thread's mount namespace and unmounts the old root.
func pivotRoot(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot into %s: %w", dir, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Chdir("/")
}

// portsScript creates the ports, the places behind them and the links between. The package
// dpu-ports of layers/meta-slipway-isar has it too.
//
//go:embed ports.sh
var portsScript string

// createNetwork runs portsScript in the namespaces for the rig's ports and machines behind them.
func (m *namespaces) createNetwork(ctx context.Context, r images.Rig) error {
	return m.runProgram(ctx, run.Command{
		Argv: []string{"sh", "-c", portsScript, "ports.sh", "/dev/stdin"}, Stdin: strings.NewReader(portLines(r)),
	})
}

// portLines returns the input of portsScript: a line for each port and each machine behind one.
func portLines(r images.Rig) string {
	var list strings.Builder
	for _, p := range r.Ports {
		fmt.Fprintln(&list, "port", p.Name, p.Address)
	}
	for _, p := range r.Places {
		fmt.Fprintln(&list, "place", p.Name, p.Port, p.Address)
	}
	return list.String()
}
