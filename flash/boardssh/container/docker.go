package container

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/boardssh"
	"slipway/flash/oci"
	"slipway/layers/progress"
)

// docker is an Engine for docker or podman on a board, by what both command lines share.
type docker struct {
	conn     *boardssh.Conn
	program  string
	version  string
	platform v1.Platform
	replaced string // ID of the image whose name the last pushed image took
}

// versionForms are format arguments that print the version and platform of the engine.
var versionForms = map[string]string{
	"docker": "{{.Server.Version}} {{.Server.Os}}/{{.Server.Arch}}",
	"podman": "{{.Client.Version}} {{.Client.OsArch}}",
}

// openDocker runs the program's version command on the board, and reads its version and platform.
// It returns an error if the board does not have the program.
func openDocker(ctx context.Context, c *boardssh.Conn, program string) (*docker, error) {
	said, err := c.AskOutput(ctx, program, "version", "--format", versionForms[program])
	if err != nil {
		return nil, err
	}
	version, platform, _ := strings.Cut(said, " ")
	d := &docker{conn: c, program: program, version: boardssh.Printable(version)}
	if d.platform, err = platforms.Parse(platform); err != nil {
		return nil, fmt.Errorf("%s on %s says that it is for %q: %w", program, c.Address(), boardssh.Printable(platform), err)
	}
	return d, nil
}

func (d *docker) String() string        { return d.program + " " + d.version }
func (d *docker) Platform() v1.Platform { return d.platform }
func (d *docker) Close() error          { return nil }

// Push pipes the image, as docker save writes it, into "docker load" on the board, always whole. It
// sends nothing if the engine has image and name. A digest in the name becomes a tag (tagOfDigest).
// Push notes for Prune which image lost the name.
func (d *docker) Push(ctx context.Context, image *oci.Image, name string) (Pushed, error) {
	name = tagOfDigest(name)
	p := Pushed{
		Engine: d.String(), Image: name, Digest: string(image.Config.Digest),
		Platform: platforms.Format(image.Platform), Layers: len(image.Layers),
	}
	before, err := d.imageID(ctx, name)
	if err != nil {
		return p, err
	}
	if before == p.Digest || before == string(image.Manifest.Digest) {
		progress.Start(ctx, "push "+name, 0, progress.Bytes).Reuse("the board has it")
		return p, nil
	}
	sent, err := d.loadImage(ctx, image, name)
	if err != nil {
		return p, err
	}
	p.SentLayers, p.SentBytes, p.Replaced, d.replaced = p.Layers, sent, before, before
	after, err := d.imageID(ctx, name)
	if err == nil && after != p.Digest && after != string(image.Manifest.Digest) {
		err = fmt.Errorf("%s on %s has %s as %s now; want %s", d.program, d.conn.Address(), cmp.Or(after, "nothing"), name, p.Digest)
	}
	return p, err
}

// tagOfDigest replaces an image name's digest, which archives do not have, and its tag, by a tag of
// the digest's first 12 digits.
func tagOfDigest(name string) string {
	base, digest, ok := strings.Cut(name, "@sha256:")
	if !ok {
		return name
	}
	if tag := strings.LastIndexByte(base, ':'); tag > strings.LastIndexByte(base, '/') { // not a port
		base = base[:tag]
	}
	return base + ":" + digest[:min(12, len(digest))]
}

// imageID returns the ID of the image with that name, or "" if the engine fails or has none.
func (d *docker) imageID(ctx context.Context, name string) (string, error) {
	r, err := d.conn.Ask(ctx, d.program, "image", "inspect", "--format", "{{.Id}}", name)
	if err != nil || r.Status != 0 {
		return "", err
	}
	id := boardssh.Printable(strings.TrimSpace(string(r.Stdout)))
	return "sha256:" + strings.TrimPrefix(id, "sha256:"), nil // podman omits the prefix
}

// loadImage pipes the image into the program's load command, and returns the size of its blobs.
func (d *docker) loadImage(ctx context.Context, image *oci.Image, name string) (total int64, err error) {
	for _, b := range image.Blobs() {
		total += b.Size
	}
	step := progress.Start(ctx, "push "+name, total, progress.Bytes)
	defer func() {
		step.End(fmt.Sprintf("%d layers, %.1f MiB sent", len(image.Layers), float64(total)/(1<<20)), err)
	}()
	out, in := io.Pipe()
	defer out.Close() // ends the writer
	go func() {
		in.CloseWithError(writeSaved(ctx, io.MultiWriter(in, byteCounter(step.Add)), image, name))
	}()
	r, err := d.conn.Feed(ctx, out, d.program, "load")
	if err == nil && r.Status != 0 {
		err = boardssh.BoardError(fmt.Sprintf("%s load on %s ended with status %d", d.program, d.conn.Address(), r.Status), errors.New(string(r.Stderr)))
	}
	return total, err
}

// byteCounter is a writer that calls itself with the number of bytes.
type byteCounter func(int64)

func (t byteCounter) Write(p []byte) (int, error) {
	t(int64(len(p)))
	return len(p), nil
}

// writeSaved writes an image as docker save does. Layers stay packed as they are.
func writeSaved(ctx context.Context, w io.Writer, image *oci.Image, name string) error {
	t := tar.NewWriter(w)
	config := image.Config.Digest.Encoded() + ".json"
	if err := writeBlob(ctx, t, image, image.Config, config); err != nil {
		return err
	}
	var names []string
	for _, l := range image.Layers {
		layer := l.Digest.Encoded() + "/layer.tar"
		if !slices.Contains(names, layer) {
			if err := writeBlob(ctx, t, image, l, layer); err != nil {
				return err
			}
		}
		names = append(names, layer)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": config, "RepoTags": []string{name}, "Layers": names}})
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: "manifest.json", Mode: 0o644, Size: int64(len(manifest)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	if _, err := t.Write(manifest); err != nil {
		return err
	}
	return t.Close()
}

// writeBlob writes a blob of the image into the archive, as a file called name.
func writeBlob(ctx context.Context, t *tar.Writer, image *oci.Image, d v1.Descriptor, name string) error {
	blob, err := image.Store.Open(ctx, d)
	if err != nil {
		return err
	}
	defer blob.Close()
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: d.Size, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(t, io.NewSectionReader(blob, 0, d.Size))
	return err
}

// Prune removes the image whose name the last pushed image took, and returns its ID. The result is
// nil if it has the name keep, or docker refuses. docker does not record Slipway's other images.
func (d *docker) Prune(ctx context.Context, keep string) ([]string, error) {
	if d.replaced == "" {
		return nil, nil
	}
	if kept, err := d.imageID(ctx, tagOfDigest(keep)); err != nil || kept == d.replaced {
		return nil, err
	}
	r, err := d.conn.Run(ctx, d.program, "image", "rm", d.replaced)
	if err != nil || r.Status != 0 {
		return nil, err
	}
	return []string{d.replaced}, nil
}

// Run runs a container by docker run, to its end or, with Detach, until it has started. If the
// program fails, Exit has its Status. On an error, such as a timeout, it removes the container.
// Exit.Output has standard error after all standard output. Status 125, docker's own, is an error.
func (d *docker) Run(ctx context.Context, c Spec) (exit Exit, err error) {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("it did not end within %s", c.Timeout))
		defer cancel()
	}
	id := newRunName()
	argv, err := d.runArgs(ctx, id, c)
	if err != nil {
		return exit, err
	}
	var stdout, stderr boardssh.LimitedBuffer
	out := Outputs{&stdout, &stderr}
	if c.Out != nil && !c.Detach {
		out = *c.Out
	}
	began := time.Now()
	status, err := d.conn.Stream(ctx, nil, out.Stdout, out.Stderr, argv...)
	exit = Exit{Status: uint32(status), Elapsed: time.Since(began), Output: slices.Concat(stdout.Bytes(), stderr.Bytes()), Truncated: stdout.Truncated() || stderr.Truncated()}
	switch {
	case err == nil && c.Detach && status == 0:
		return Exit{Name: id}, nil
	case err == nil && (status == dockerFailed || c.Detach):
		err = boardssh.BoardError(fmt.Sprintf("%s run on %s ended with status %d", d.program, d.conn.Address(), status), errors.New(string(stderr.Bytes())))
	case err == nil:
		return exit, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("container of %s: %w", c.Image, context.Cause(ctx))
	}
	return exit, errors.Join(err, d.removeContainer(ctx, id))
}

// dockerFailed is the status of docker run for failures of its own.
const dockerFailed = 125

func newRunName() string { return "slipway-" + strings.ToLower(rand.Text()[:16]) }

// runArgs returns the docker run command for c, with the label that List looks for. It refuses a
// hook, which docker run cannot set.
func (d *docker) runArgs(ctx context.Context, id string, c Spec) ([]string, error) {
	if c.Hook != "" {
		return nil, fmt.Errorf("%s starts no hook for one container: %s", d.program, c.Hook)
	}
	argv := []string{d.program, "run", "--pull=never", "--name", id, "--label", runLabel + "=" + time.Now().UTC().Format(time.RFC3339)}
	if c.Detach {
		argv = append(argv, "--detach")
	} else {
		argv = append(argv, "--rm")
	}
	if c.HostNet {
		argv = append(argv, "--network=host")
	}
	for _, m := range c.Mounts {
		if _, err := parseMount(m); err != nil {
			return nil, err
		}
		argv = append(argv, "--volume="+m)
	}
	for _, e := range c.Env {
		argv = append(argv, "--env="+e)
	}
	gpus, err := d.gpuArgs(ctx, c.GPUs)
	if err != nil {
		return nil, err
	}
	return slices.Concat(argv, gpus, []string{"--", tagOfDigest(c.Image)}, c.Argv), nil
}

// gpuArgs returns the arguments that give a container its GPUs: slipway-runtime if the engine has
// it under any name, otherwise CDI devices. which is as in NVIDIA_VISIBLE_DEVICES, or "" for none.
func (d *docker) gpuArgs(ctx context.Context, which string) ([]string, error) {
	if which == "" {
		return nil, nil
	}
	r, err := d.conn.Ask(ctx, d.program, "info", "--format", "{{json .Runtimes}}")
	if err != nil {
		return nil, err
	}
	var runtimes map[string]struct {
		Path string `json:"path"`
	}
	if r.Status != 0 || json.Unmarshal(r.Stdout, &runtimes) != nil {
		runtimes = nil // podman has no such list
	}
	for name, r := range runtimes {
		if path.Base(r.Path) == "slipway-runtime" {
			return []string{"--runtime=" + name, "--env=NVIDIA_VISIBLE_DEVICES=" + which}, nil
		}
	}
	var argv []string
	for _, device := range cdiDevices(which) {
		argv = append(argv, "--device="+device)
	}
	return argv, nil
}

// cdiDevices makes CDI device names of NVIDIA_VISIBLE_DEVICES' value. A part with "=" stays.
func cdiDevices(which string) []string {
	names := strings.Split(which, ",")
	for i, name := range names {
		if !strings.Contains(name, "=") {
			names[i] = "nvidia.com/gpu=" + name
		}
	}
	return names
}

// removeContainer removes a container after its run was interrupted, even after ctx has ended. If
// the engine refuses, as while it still creates it, it tries tidyTries times, and then returns nil.
func (d *docker) removeContainer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyLimit)
	defer cancel()
	for range tidyTries {
		r, err := d.conn.Run(ctx, d.program, "rm", "--force", id)
		if err != nil {
			return fmt.Errorf("remove container %s: %w", id, err)
		}
		if r.Status == 0 && strings.TrimSpace(string(r.Stdout)) == id {
			return nil
		}
		time.Sleep(watchEvery)
	}
	return nil // it is gone, or was never created
}

const tidyTries = 10

// List lists the containers of Run that are still on the board, at most maxListed.
func (d *docker) List(ctx context.Context) ([]Leftover, error) {
	form := `{{.Names}}|{{.Image}}|{{.Status}}|{{index .Labels "` + runLabel + `"}}`
	if d.program == "docker" { // docker's .Labels is one text
		form = `{{.Names}}|{{.Image}}|{{.Status}}|{{.Label "` + runLabel + `"}}`
	}
	said, err := d.conn.AskOutput(ctx, d.program, "ps", "--all", "--filter", "label="+runLabel, "--format", form)
	if err != nil || said == "" {
		return nil, err
	}
	var left []Leftover
	for line := range strings.Lines(said) {
		field := strings.Split(strings.TrimSpace(line), "|")
		if len(field) != 4 {
			return nil, fmt.Errorf("%s ps on %s: %q is not what was asked for", d.program, d.conn.Address(), boardssh.Printable(line))
		}
		l := Leftover{Name: boardssh.Printable(field[0]), Image: boardssh.Printable(field[1]), State: boardssh.Printable(field[2])}
		l.Started, _ = time.Parse(time.RFC3339, field[3]) // shown only
		left = append(left, l)
	}
	return left[:min(len(left), maxListed)], nil
}

// Remove stops a container by its name, and removes it. It does not check that Run made it.
func (d *docker) Remove(ctx context.Context, name string) error {
	_, err := d.conn.Output(ctx, d.program, "rm", "--force", name)
	return err
}
