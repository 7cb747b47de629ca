package container

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	specoci "github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"slipway/flash/boardssh"
)

// runLabel is the label of containers that Run made. Its value is their start time.
const runLabel = "slipway/run"

// Scripts on the board. $1 is the folder for the container's two pipes.
const (
	makePipes   = `umask 077 && mkdir -p "$1" && mkfifo "$1/out" "$1/err"`
	followPipes = `cat "$1/out" & cat "$1/err" >&2 & wait`
	removePipes = `rm -rf "$1"`
	findRuntime = `command -v slipway-runtime`
)

// streamOutput runs the container and passes its outputs on as they come, through named pipes on
// the board, which keep nothing. A program that writes faster than the line is slowed down.
func (r *containerRun) streamOutput(ctx context.Context, made client.Container, out Outputs) (Exit, error) {
	if err := r.runScript(ctx, makePipes, r.pipes); err != nil {
		return Exit{}, err
	}
	reading, stop := context.WithCancel(ctx)
	read := make(chan error, 1)
	go func() {
		_, err := r.t.conn.Stream(reading, nil, out.Stdout, out.Stderr, "sh", "-c", followPipes, "sh", r.pipes)
		read <- err
	}()
	status, err := r.runPiped(ctx, made, read)
	stop()
	return Exit{Status: status}, err
}

// runPiped starts the container and waits for its end, and then for the end of its output. Only
// then it deletes the task, because that cuts the output off after 2 s, and not after an error.
func (r *containerRun) runPiped(ctx context.Context, made client.Container, read <-chan error) (uint32, error) {
	task, ended, err := startTask(ctx, made, cio.Config{Stdout: r.pipes + "/out", Stderr: r.pipes + "/err"})
	if err != nil {
		return 0, err
	}
	var exit client.ExitStatus
	select {
	case exit = <-ended:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	status, _, err := exit.Result()
	if err != nil {
		return 0, err
	}
	select {
	case err = <-read:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if err == nil {
		_, err = task.Delete(ctx)
	}
	return status, err
}

func (r *containerRun) runScript(ctx context.Context, script, arg string) error {
	_, err := r.t.conn.Output(ctx, "sh", "-c", script, "sh", arg)
	return err
}

// chooseRuntime returns nil for runc, or, for a container with GPUs, options for slipway-runtime,
// which the board must have. It then adds the GPUs to c.Env.
func (r *containerRun) chooseRuntime(ctx context.Context, c *Spec) (any, error) {
	if c.GPUs == "" {
		return nil, nil
	}
	found, err := r.t.conn.Ask(ctx, "sh", "-c", findRuntime)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSpace(string(found.Stdout))
	if found.Status != 0 || !path.IsAbs(name) {
		return nil, boardssh.NextStep{
			Err:  errors.New("the board has no slipway-runtime, which gives containers their GPUs"),
			Step: "on the board: ln -s slipway-hook /usr/bin/slipway-runtime (how to install slipway-hook: runtime-hook/README.md). docker and podman can use CDI: deploy run --engine=docker",
		}
	}
	c.Env = append(slices.Clone(c.Env), "NVIDIA_VISIBLE_DEVICES="+c.GPUs)
	return &options.Options{BinaryName: name}, nil
}

// useHostNet lets the container use the board's network, and its resolv.conf and hosts.
func useHostNet(spec *specoci.Spec) {
	spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.NetworkNamespace
	})
	for _, file := range []string{"/etc/resolv.conf", "/etc/hosts"} {
		spec.Mounts = append(spec.Mounts, specs.Mount{Type: "bind", Source: file, Destination: file, Options: []string{"rbind", "ro"}})
	}
}

// parseMount parses SOURCE:PLACE or SOURCE:PLACE:ro, both paths absolute, into a bind mount.
func parseMount(text string) (specs.Mount, error) {
	parts := strings.Split(text, ":")
	m := specs.Mount{Type: "bind", Options: []string{"rbind"}}
	if len(parts) == 3 && parts[2] == "ro" {
		parts, m.Options = parts[:2], append(m.Options, "ro")
	}
	if len(parts) != 2 || !path.IsAbs(parts[0]) || !path.IsAbs(parts[1]) {
		return m, fmt.Errorf("mount %q: want SOURCE:PLACE or SOURCE:PLACE:ro, both absolute", text)
	}
	m.Source, m.Destination = path.Clean(parts[0]), path.Clean(parts[1])
	return m, nil
}
