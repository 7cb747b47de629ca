package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

// room is a set of namespaces with one root, and the thread that is in them. What is
// started on the thread runs there. It ends with this process, also where that is
// killed: the room's first process is then killed by the kernel, and all others with it.
type room struct {
	work  chan func()
	gone  chan struct{}
	first *exec.Cmd
}

// root says what a room looks like.
type root struct {
	layers  []string // folders, the lowest first; what is changed is kept in memory
	at      string   // an empty folder to put it together in; nothing of that is seen outside
	binds   []bind
	network bool   // the machine's own network instead of one of its own
	name    string // of the machine that it plays
}

// bind is a folder or a file outside that is seen in the room.
type bind struct {
	from, at string
	write    bool
}

// The first process collects what others leave behind, as dash and bash do in wait.
var first = []string{"/bin/sh", "-c", "sleep infinity & wait"}

// enter makes a room.
func enter(ctx context.Context, r root) (*room, error) {
	m := &room{work: make(chan func()), gone: make(chan struct{})}
	ready := make(chan error)
	onThread(func() { m.live(r, ready) })
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("make namespaces: %w", err)
	}
	if err := m.runIn(ctx, run.Command{Argv: []string{"mount", "-t", "proc", "proc", "/proc"}}); err != nil {
		m.leave()
		return nil, err
	}
	return m, nil
}

// onThread calls f on a thread of its own, which Go ends with f, as it is never
// unlocked. It is not the first one: that is never ended, and to others its namespaces
// are those of the whole process.
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

// live is the thread's life. With the thread go the mounts.
func (m *room) live(r root, ready chan<- error) {
	defer close(m.gone)
	err := r.isolate()
	if err == nil {
		err = m.begin()
	}
	ready <- err
	if err != nil {
		return
	}
	for do := range m.work {
		do()
	}
	m.end()
}

// begin starts the first process, and has the thread start all others beside it.
func (m *room) begin() error {
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
		m.end()
	}
	return err
}

// end kills the first process, and so all others.
func (m *room) end() {
	_ = m.first.Process.Kill()
	_ = m.first.Wait()
}

// do does something on the thread and waits for its end.
func (m *room) do(f func() error) error {
	done := make(chan error)
	m.work <- func() { done <- f() }
	return <-done
}

// runIn runs a program in the room. Its Log is not the room's, so there may be none.
func (m *room) runIn(ctx context.Context, c run.Command) error {
	c.Apart = true
	return m.do(func() error { return run.Run(ctx, c) })
}

// leave ends everything that runs in the room.
func (m *room) leave() {
	close(m.work)
	<-m.gone
}

// isolate puts the calling thread, and what it starts from now on, into namespaces of
// their own, with r as their root.
func (r root) isolate() error {
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
	if err := r.furnish(); err != nil {
		return err
	}
	return pivot(r.inside())
}

// pivot makes dir the root and lets go of the old one.
func pivot(dir string) error {
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
