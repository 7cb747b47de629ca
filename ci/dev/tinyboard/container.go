package tinyboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

// Container is one life of a container: a bundle, with a fresh overlay of the image
// as its root.
type Container struct {
	ID     string
	Bundle string
	Spec   *specs.Spec

	board *Board
}

// NewContainer mounts the overlay of a container that runs argv. Its changes stay when
// it has ended: to remove them would slow down the creation of files on ext4, which
// does not use freed inodes again for minutes.
func (b *Board) NewContainer(m Image, argv ...string) (*Container, error) {
	n := b.runs.Add(1)
	c := &Container{
		ID:     fmt.Sprintf("%s%d", b.Prefix(), n),
		Bundle: filepath.Join(b.Dir, "bundles", fmt.Sprint(n)),
		Spec:   spec(argv), board: b,
	}
	return c, overlay(m.dir, c.rootfs(), filepath.Join(filepath.Dir(m.dir), "changes", fmt.Sprint(n)))
}

// State is the folder in which runc keeps what it knows of the board's containers.
func (b *Board) State() string { return filepath.Join(b.Dir, "state") }

// Prefix is what the ids of the board's containers begin with.
func (b *Board) Prefix() string { return fmt.Sprintf("slipway-board-%d-", os.Getpid()) }

func (c *Container) rootfs() string { return filepath.Join(c.Bundle, "rootfs") }

// Close unmounts the overlay and removes the bundle.
func (c *Container) Close() error {
	if err := unix.Unmount(c.rootfs(), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", c.rootfs(), err)
	}
	return os.RemoveAll(c.Bundle)
}

func spec(argv []string) *specs.Spec {
	return &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Cwd: "/", Args: argv, Env: []string{"PATH=/usr/bin"}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
}

// RequestDevices has the container request the board's files.
func (c *Container) RequestDevices() {
	c.Spec.Process.Env = append(c.Spec.Process.Env, "NVIDIA_VISIBLE_DEVICES=all")
}

// CreateRuntime names a hook of the container.
func (c *Container) CreateRuntime(argv ...string) {
	hook := specs.Hook{Path: argv[0], Args: argv, Env: []string{"PATH=/usr/bin:/bin"}}
	c.Spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{hook}}
}

// Configure writes the bundle's config.json.
func (c *Container) Configure() error {
	config, err := json.Marshal(c.Spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.Bundle, "config.json"), config, 0o644)
}

// Live takes the container through its whole life: create, start, exit, delete. inside,
// where not nil, looks at it before it starts, through its first process.
func (c *Container) Live(ctx context.Context, runtime []string, inside func(pid string) error) (err error) {
	pidFile := filepath.Join(c.Bundle, "pid")
	if err := c.call(ctx, runtime, "create", "--bundle", c.Bundle, "--pid-file", pidFile, c.ID); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.call(ctx, runtime, "delete", "--force", c.ID)) }()
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	if inside != nil {
		if err := inside(string(pid)); err != nil {
			return err
		}
	}
	ended, err := watch(string(pid))
	if err != nil {
		return err
	}
	defer unix.Close(ended)
	if err := c.call(ctx, runtime, "start", c.ID); err != nil {
		return err
	}
	return await(ctx, ended)
}

// Output is what the container's program has written.
func (c *Container) Output() (string, error) {
	text, err := os.ReadFile(c.output())
	return string(text), err
}

func (c *Container) output() string { return filepath.Join(c.Bundle, "output") }

// call runs one command of a container runtime. Its output goes to a file: the
// container inherits it, and a pipe would stay open as long as that lives. No command
// is stopped half-way: each takes a fraction of a second, and a create that does not
// end leaves cgroups that no delete knows of.
func (c *Container) call(ctx context.Context, runtime []string, args ...string) error {
	if ctx.Err() != nil && args[0] != "delete" {
		return context.Cause(ctx)
	}
	out, err := os.OpenFile(c.output(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	argv := append(append(runtime[:len(runtime):len(runtime)], "--root", c.board.State()), args...)
	cmd := run.Prepare(context.WithoutCancel(ctx), run.Command{Argv: argv})
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := c.Output()
		return fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, text)
	}
	return nil
}

func watch(pid string) (int, error) {
	var n int
	if _, err := fmt.Sscan(pid, &n); err != nil {
		return -1, fmt.Errorf("the runtime's pid file says %q: %w", pid, err)
	}
	return unix.PidfdOpen(n, 0)
}

// await waits for the process behind the descriptor to end, and takes it over: what it
// and the hooks that it called used of the processors is then among our children's.
func await(ctx context.Context, pidfd int) error {
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED, nil)
		}
	}
	return context.Cause(ctx)
}
