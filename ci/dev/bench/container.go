package bench

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

// container is one life of a container: a bundle, with a fresh overlay of the image as its root.
type container struct{ id, bundle, state string }

// newContainer mounts the overlay of a container. Its changes stay when it has ended.
func newContainer(dir, medium string, number int, config *specs.Spec) (*container, error) {
	c := &container{fmt.Sprintf("slipway-bench-%d-%d", os.Getpid(), number), filepath.Join(dir, "bundles", fmt.Sprint(number)), filepath.Join(dir, "state")}
	changes := filepath.Join(dir, medium, "changes", fmt.Sprint(number))
	upper, work, root := filepath.Join(changes, "upper"), filepath.Join(changes, "work"), filepath.Join(c.bundle, "rootfs")
	text, err := json.Marshal(config)
	if err := errors.Join(err, os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755), os.MkdirAll(root, 0o755), os.WriteFile(filepath.Join(c.bundle, "config.json"), text, 0o644)); err != nil {
		return nil, err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", filepath.Join(dir, medium, "image"), upper, work)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return nil, fmt.Errorf("mount an overlay on %s: %w", root, err)
	}
	return c, nil
}

// containerConfig returns the configuration of a container, with a hook if there is one.
func containerConfig(argv, env, hook []string) *specs.Spec {
	spec := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Cwd: "/", Args: argv, Env: env},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
	if hook != nil {
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: hook[0], Args: hook, Env: []string{"PATH=/usr/bin:/bin"}}}}
	}
	return spec
}

// close unmounts the overlay and removes the bundle.
func (c *container) close() error {
	return errors.Join(unix.Unmount(filepath.Join(c.bundle, "rootfs"), unix.MNT_DETACH), os.RemoveAll(c.bundle))
}

// live takes the container through its whole life: create, start, exit, delete. inside looks
// at it before it starts, through its first process.
func (c *container) live(ctx context.Context, runtime []string, inside func(pid string) error) (err error) {
	pidFile := filepath.Join(c.bundle, "pid")
	if err := c.call(ctx, runtime, "create", "--bundle", c.bundle, "--pid-file", pidFile, c.id); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.call(ctx, runtime, "delete", "--force", c.id)) }()
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	if inside != nil {
		if err := inside(string(text)); err != nil {
			return err
		}
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		return fmt.Errorf("the runtime's pid file holds %q: %w", text, err)
	}
	if err := c.call(ctx, runtime, "start", c.id); err != nil {
		return err
	}
	// Its times on processors, and those of the hooks that it called, then count among our children's.
	_, err = unix.Wait4(pid, nil, 0, nil)
	return err
}

func (c *container) output() string { return filepath.Join(c.bundle, "output") }

// call runs one command of a container runtime. Its output goes to a file: the container
// inherits it, and a pipe would stay open as long as that lives. No command is stopped
// half-way: each takes a fraction of a second, and a create that does not end leaves cgroups
// that no delete removes.
func (c *container) call(ctx context.Context, runtime []string, args ...string) error {
	if ctx.Err() != nil && args[0] != "delete" {
		return context.Cause(ctx)
	}
	out, err := os.OpenFile(c.output(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	argv := append(append(runtime[:len(runtime):len(runtime)], "--root", c.state), args...)
	cmd := run.Prepare(context.WithoutCancel(ctx), run.Command{Argv: argv})
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(c.output())
		return fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, text)
	}
	return nil
}
