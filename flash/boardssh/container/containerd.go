package container

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"slipway/flash/boardssh"
	"slipway/flash/oci"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	defaultNamespace = "slipway"
	snapshotter      = "overlayfs"
)

// Containerd is the board's containerd, reached over the SSH connection that it was opened on.
// It does not touch images and containers of other namespaces.
type Containerd struct {
	conn      *boardssh.Conn
	grpc      *grpc.ClientConn
	client    *client.Client
	socket    string
	namespace string
	pipes     string // folder on the board for named pipes
	platform  v1.Platform
	version   string
}

// OpenContainerd connects to the containerd of the board.
func OpenContainerd(ctx context.Context, c *boardssh.Conn) (*Containerd, error) {
	return openContainerd(ctx, c, containerdSocket, defaultNamespace)
}

// openContainerd connects to the containerd behind a socket of the board, and reads its platform.
func openContainerd(ctx context.Context, c *boardssh.Conn, socket, namespace string) (*Containerd, error) {
	probe, err := c.DialContext(ctx, "unix", socket) // gRPC would retry, and log each failure
	if err != nil {
		return nil, err
	}
	probe.Close()
	link, err := grpc.NewClient("passthrough:///containerd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return c.DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return nil, err
	}
	t := &Containerd{conn: c, grpc: link, socket: socket, namespace: namespace, pipes: pipesDir}
	if err := t.ask(ctx, "open containerd's "+socket, t.openClient); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// openClient makes a client for the board's platform, and fills in t.platform and t.version.
func (t *Containerd) openClient(ctx context.Context) error {
	plain, err := client.NewWithConn(t.grpc)
	if err != nil {
		return err
	}
	fit, err := plain.GetSnapshotterSupportedPlatforms(ctx, snapshotter)
	if err != nil {
		return err
	}
	if t.client, err = client.NewWithConn(t.grpc, client.WithDefaultPlatform(fit)); err != nil {
		return err
	}
	if t.platform, err = t.ownPlatform(ctx); err != nil {
		return err
	}
	v, err := t.client.Version(ctx)
	t.version = boardssh.Printable(v.Version)
	return err
}

// ownPlatform returns the first platform that the board's snapshotter reports, or an error if none.
func (t *Containerd) ownPlatform(ctx context.Context) (v1.Platform, error) {
	r, err := t.client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+snapshotter)
	if err != nil {
		return v1.Platform{}, err
	}
	for _, plugin := range r.Plugins {
		for _, p := range plugin.Platforms {
			return platforms.Normalize(v1.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}), nil
		}
	}
	return v1.Platform{}, fmt.Errorf("it has no snapshotter %q", snapshotter)
}

func (t *Containerd) withNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, t.namespace)
}

// String returns the engine's version and namespace, for people.
func (t *Containerd) String() string {
	return fmt.Sprintf("containerd %s, namespace %s", t.version, t.namespace)
}

// Platform returns the platform that images must be for.
func (t *Containerd) Platform() v1.Platform { return t.platform }

// Close closes the connection to containerd. The connection to the board stays open.
func (t *Containerd) Close() error { return t.grpc.Close() }

// Version asks containerd for its version.
func (t *Containerd) Version(ctx context.Context) (string, error) {
	v, err := t.client.Version(t.withNamespace(ctx))
	if err != nil {
		return "", t.describeError("ask containerd's version", err)
	}
	return boardssh.Printable(v.Version), nil
}

// PushFile pushes the one image in a local archive or OCI layout under its name, which it returns.
func (t *Containerd) PushFile(ctx context.Context, path string) (string, error) {
	source, err := oci.Open(path)
	if err != nil {
		return "", err
	}
	defer source.Close()
	image, err := source.Image(ctx, "", t.platform)
	if err != nil {
		return "", err
	}
	pushed, err := t.Push(ctx, image, image.Name)
	return pushed.Image, err
}

// ask calls question, which calls containerd, with the silence limit of boardssh.Answer.
func (t *Containerd) ask(ctx context.Context, what string, question func(context.Context) error) error {
	err := boardssh.Answer(t.withNamespace(ctx), 0, fmt.Sprintf("%s on %s", what, t.conn.Address()), question)
	if err == nil {
		return nil
	}
	if errors.Is(err, boardssh.ErrSilent) {
		return boardssh.NextStep{Err: err, Step: "systemctl status containerd  # on the board"}
	}
	return t.describeError(what, err)
}

// describeError adds what to err, which becomes a BoardError unless it is the end of a context.
func (t *Containerd) describeError(what string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return boardssh.BoardError(fmt.Sprintf("%s on %s", what, t.conn.Address()), err)
}

// maxListed is more containers than anybody leaves.
const maxListed = 1000

// List lists the containers that Run made and that are still on the board, at most maxListed.
func (t *Containerd) List(ctx context.Context) (left []Leftover, err error) {
	err = t.ask(ctx, "list containers", func(ctx context.Context) error {
		left, err = t.listContainers(ctx)
		return err
	})
	return left, err
}

// listContainers returns up to maxListed containers with runLabel, and the state of their tasks.
func (t *Containerd) listContainers(ctx context.Context) (left []Leftover, err error) {
	all, err := t.client.Containers(ctx, `labels."`+runLabel+`"`)
	if err != nil {
		return nil, err
	}
	for _, made := range all[:min(len(all), maxListed)] {
		info, err := made.Info(ctx, client.WithoutRefreshedMetadata)
		if err != nil {
			return nil, err
		}
		l := Leftover{Name: boardssh.Printable(made.ID()), Image: boardssh.Printable(info.Image), State: "created"}
		l.Started, _ = time.Parse(time.RFC3339, info.Labels[runLabel]) // shown only
		if task, err := made.Task(ctx, nil); err == nil {
			status, err := task.Status(ctx)
			if err != nil && !errdefs.IsNotFound(err) {
				return nil, err
			}
			l.State = boardssh.Printable(string(status.Status))
		}
		left = append(left, l)
	}
	return left, nil
}

// Remove stops and removes a container, even one that Run did not make. A missing one is an error.
func (t *Containerd) Remove(ctx context.Context, name string) error {
	r := t.newRun(name)
	ctx = t.withNamespace(ctx)
	if _, err := t.client.LoadContainer(ctx, name); err != nil {
		return t.describeError("remove container "+name, err)
	}
	if err := r.removeAll(ctx, true); err != nil {
		return t.describeError("remove container "+name, err)
	}
	return nil
}
