package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	specoci "github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"slipway/flash/boardssh"
	"slipway/flash/oci"
)

const (
	pipesDir    = "/run/slipway" // on the board; output goes through named pipes there
	watchEvery  = 200 * time.Millisecond
	termGrace   = 2 * time.Second  // after SIGTERM; a Ctrl-C leaves 5 s for all
	tidyLimit   = 20 * time.Second // to remove a container after its context has ended
	runtimeName = "io.containerd.runc.v2"
	boardPath   = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Spec describes one run of an image.
type Spec struct {
	Image   string
	Argv    []string // empty: the image's own entry point and command
	Env     []string // added to the image's environment
	Hook    string   // path of slipway-hook on the board; "": no hook; docker refuses one
	Timeout time.Duration

	GPUs    string   // as NVIDIA_VISIBLE_DEVICES has them; "": none
	Mounts  []string // SOURCE:PLACE or SOURCE:PLACE:ro, both absolute
	HostNet bool     // use the board's network; otherwise the container has its own
	Detach  bool     // leave it running; its output is not kept
	Out     *Outputs // gets the output as it comes; nil: Exit.Output keeps it
}

// Outputs are the writers for a container's outputs.
type Outputs struct{ Stdout, Stderr io.Writer }

// ErrNoImage is the error of a run whose image is not in the board's containerd.
var ErrNoImage = errors.New("the board does not have the image")

// Exit is a container's exit status and output.
type Exit struct {
	Status    uint32
	Name      string // of a container that was left running
	Output    []byte // standard output and error as they came, its first MiB
	Truncated bool
	Elapsed   time.Duration
}

// Run runs a container to its end and removes everything that it made on the board, also when it
// fails or ctx ends. A detached container stays. If the program fails, Exit has its Status; the
// error means that it could not be run, for example because a hook failed.
func (t *Containerd) Run(ctx context.Context, c Spec) (exit Exit, err error) {
	ctx = t.withNamespace(ctx)
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("it did not end within %s", c.Timeout))
		defer cancel()
	}
	ctx, stop := withoutDeadline(ctx)
	defer stop()
	r := t.newRun(newRunName())
	defer func() {
		if c.Detach && err == nil {
			return
		}
		if left := r.removeAll(ctx, c.Out != nil); left != nil {
			err = errors.Join(err, t.describeError("remove container "+r.id, left))
		}
	}()
	began := time.Now()
	exit, err = r.runContainer(ctx, c)
	exit.Elapsed = time.Since(began)
	if err != nil && ctx.Err() != nil {
		return exit, fmt.Errorf("container of %s: %w", c.Image, context.Cause(ctx))
	}
	if err != nil {
		return exit, t.describeError("run a container of "+c.Image, err)
	}
	return exit, nil
}

// withoutDeadline returns a context that ends with ctx but has no deadline, and its cancel func.
// gRPC would send a deadline to containerd, which could then report it first, in other words.
func withoutDeadline(ctx context.Context) (context.Context, func()) {
	plain, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return plain, func() {
		stop()
		cancel(nil)
	}
}

// containerRun is one container of Run.
type containerRun struct {
	t         *Containerd
	id, pipes string // pipes is the folder of the container's two pipes
}

func (t *Containerd) newRun(id string) *containerRun {
	return &containerRun{t: t, id: id, pipes: t.pipes + "/" + id}
}

// runContainer creates and starts the container, and collects or streams its output. Collected
// output without end is an error. With c.Detach it does not wait for the container's end.
func (r *containerRun) runContainer(ctx context.Context, c Spec) (Exit, error) {
	made, err := r.createContainer(ctx, c)
	if err != nil {
		return Exit{}, err
	}
	switch {
	case c.Detach:
		_, _, err := startTask(ctx, made, cio.Config{})
		return Exit{Name: r.id}, err
	case c.Out != nil:
		return r.streamOutput(ctx, made, *c.Out)
	}
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := boardssh.LimitedBuffer{Endless: cancel}
	exit, err := r.streamOutput(limited, made, Outputs{&out, &out})
	if err != nil {
		return Exit{}, err
	}
	exit.Output, exit.Truncated = out.Bytes(), out.Truncated()
	return exit, nil
}

// startTask creates the container's task and starts it. The channel gets its exit status. After an
// error the task may still exist.
func startTask(ctx context.Context, made client.Container, output cio.Config) (client.Task, <-chan client.ExitStatus, error) {
	task, err := made.NewTask(ctx, func(string) (cio.IO, error) { return boardLog{output}, nil })
	if err != nil {
		return nil, nil, err
	}
	ended, err := task.Wait(ctx)
	if err != nil {
		return nil, nil, err
	}
	return task, ended, task.Start(ctx)
}

// boardLog is a cio.IO for output that stays on the board: it copies nothing.
type boardLog struct{ config cio.Config }

func (l boardLog) Config() cio.Config { return l.config }
func (boardLog) Cancel()              {}
func (boardLog) Wait()                {}
func (boardLog) Close() error         { return nil }

// createContainer creates a container of the image, which the board must have (ErrNoImage).
func (r *containerRun) createContainer(ctx context.Context, c Spec) (client.Container, error) {
	image, err := r.t.client.GetImage(ctx, c.Image)
	if full, bad := oci.FullName(c.Image); errdefs.IsNotFound(err) && bad == nil && full != c.Image {
		image, err = r.t.client.GetImage(ctx, full)
	}
	if errdefs.IsNotFound(err) {
		return nil, boardssh.NextStep{Err: fmt.Errorf("%w: %w", ErrNoImage, err), Step: "deploy container <board> <host> IMAGE"}
	}
	if err != nil {
		return nil, err
	}
	runtime, err := r.chooseRuntime(ctx, &c)
	if err != nil {
		return nil, err
	}
	spec, err := r.makeSpec(ctx, image, c)
	if err != nil {
		return nil, err
	}
	return r.t.client.NewContainer(ctx, r.id,
		client.WithSnapshotter(snapshotter),
		client.WithImage(image),
		client.WithNewSnapshot(r.id, image),
		client.WithContainerLabels(map[string]string{runLabel: time.Now().UTC().Format(time.RFC3339)}),
		client.WithRuntime(runtimeName, runtime),
		client.WithSpec(spec))
}

// makeSpec makes the container's spec from containerd's defaults, the image's configuration and c.
// It does not use the library's option for the configuration, because that would mount the image on
// this machine to look up a user's name.
func (r *containerRun) makeSpec(ctx context.Context, image client.Image, c Spec) (*specoci.Spec, error) {
	conf, err := image.Spec(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := specoci.GenerateSpecWithPlatform(ctx, r.t.client, "linux/"+conf.Architecture, &containers.Container{ID: r.id})
	if err != nil {
		return nil, err
	}
	p := spec.Process
	p.Args = c.Argv
	if len(p.Args) == 0 {
		p.Args = slices.Concat(conf.Config.Entrypoint, conf.Config.Cmd)
	}
	if len(p.Args) == 0 {
		return nil, boardssh.NextStep{Err: errors.New("the image names no program, and no command was given"), Step: "deploy run <board> <host> <image> -- PROGRAM"}
	}
	if conf.Config.WorkingDir != "" {
		p.Cwd = conf.Config.WorkingDir
	}
	p.Env = mergeEnv([]string{boardPath}, conf.Config.Env, c.Env)
	if p.User.UID, p.User.GID, err = parseUser(conf.Config.User); err != nil {
		return nil, err
	}
	if c.HostNet {
		useHostNet(spec)
	}
	for _, text := range c.Mounts {
		mount, err := parseMount(text)
		if err != nil {
			return nil, err
		}
		spec.Mounts = append(spec.Mounts, mount)
	}
	if c.Hook != "" {
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{
			Path: c.Hook, Args: []string{"slipway-hook", "hook"}, Env: []string{boardPath},
		}}}
	}
	return spec, nil
}

// mergeEnv joins environments. A variable that is set twice has its last value and first position.
func mergeEnv(lists ...[]string) []string {
	var env []string
	place := map[string]int{}
	for _, entry := range slices.Concat(lists...) {
		name, _, _ := strings.Cut(entry, "=")
		if i, ok := place[name]; ok {
			env[i] = entry
			continue
		}
		place[name] = len(env)
		env = append(env, entry)
	}
	return env
}

// parseUser parses "" as 0:0, "uid" as uid:0, or "uid:gid". All else is an error, also a name.
func parseUser(s string) (uid, gid uint32, err error) {
	if s == "" {
		return 0, 0, nil
	}
	user, group, both := strings.Cut(s, ":")
	u, err := strconv.ParseUint(user, 10, 32)
	if err == nil && both {
		var g uint64
		g, err = strconv.ParseUint(group, 10, 32)
		gid = uint32(g)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("the image's user %q is not in numbers; build it with USER uid:gid", s)
	}
	return uint32(u), gid, nil
}

// removeAll stops the container as endTask does, and removes it, its snapshot and its pipes, even
// after ctx ended. A container that is gone is no error.
func (r *containerRun) removeAll(ctx context.Context, gently bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyLimit)
	defer cancel()
	defer func() { _ = r.runScript(ctx, removePipes, r.pipes) }() // the pipes are useless without the container
	made, err := r.t.client.LoadContainer(ctx, r.id)
	if err == nil {
		if err := endTask(ctx, made, gently); err != nil {
			return err
		}
		err = made.Delete(ctx)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	err = r.t.client.SnapshotService(snapshotter).Remove(ctx, r.id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// endTask kills the container's program and deletes the task. If gently, SIGTERM comes first.
func endTask(ctx context.Context, made client.Container, gently bool) error {
	task, err := made.Task(ctx, nil)
	if err == nil && gently {
		askToEnd(ctx, task)
	}
	if err == nil {
		_, err = task.Delete(ctx, client.WithProcessKill)
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// askToEnd sends SIGTERM, and waits up to termGrace for the task's end.
func askToEnd(ctx context.Context, task client.Task) {
	ended, err := task.Wait(ctx)
	if err != nil || task.Kill(ctx, syscall.SIGTERM) != nil {
		return
	}
	select {
	case <-ended:
	case <-time.After(termGrace):
	}
}
