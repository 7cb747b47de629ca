package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	namespace        = "slipway"
	snapshotter      = "overlayfs"
	answerLimit      = 20 * time.Second // for containerd's first answer
	localRegistry    = "slipway.local/" // stands before names that an archive leaves incomplete
)

// Containers is the board's containerd, reached through the SSH connection that
// it was opened on. Images and containers of other namespaces are left alone.
type Containers struct {
	conn   *Conn
	grpc   *grpc.ClientConn
	client *client.Client
}

// OpenContainers connects to the containerd of the board.
func OpenContainers(ctx context.Context, c *Conn) (*Containers, error) {
	return openContainers(ctx, c, containerdSocket)
}

func openContainers(ctx context.Context, c *Conn, socket string) (*Containers, error) {
	link, err := grpc.NewClient("passthrough:///containerd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return c.DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, namespace), answerLimit)
	defer cancel()
	t := &Containers{conn: c, grpc: link}
	if t.client, err = newClient(ctx, link); err != nil {
		t.Close()
		return nil, said(fmt.Sprintf("containerd on %s (%s)", c.addr, socket), err)
	}
	return t, nil
}

// newClient makes a client that knows the board's platform, which is not this
// machine's, and that sends only blobs which the board lacks.
func newClient(ctx context.Context, link *grpc.ClientConn) (*client.Client, error) {
	plain, err := client.NewWithConn(link)
	if err != nil {
		return nil, err
	}
	platform, err := plain.GetSnapshotterSupportedPlatforms(ctx, snapshotter)
	if err != nil {
		return nil, err
	}
	return client.NewWithConn(link,
		client.WithDefaultPlatform(platform),
		client.WithServices(client.WithContentStore(namedBlobs{plain.ContentStore()})))
}

// Close ends the connection to containerd, not that to the board.
func (t *Containers) Close() error { return t.grpc.Close() }

// Version is containerd's own.
func (t *Containers) Version(ctx context.Context) (string, error) {
	v, err := t.client.Version(namespaces.WithNamespace(ctx, namespace))
	if err != nil {
		return "", t.said("ask containerd's version", err)
	}
	return printable(v.Version), nil
}

// Import brings the one image of a local OCI archive into containerd, unpacked
// and ready to run, and returns its name there.
func (t *Containers) Import(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	ctx = namespaces.WithNamespace(ctx, namespace)
	prefix := localRegistry + strings.ToLower(strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
	imported, err := t.client.Import(ctx, f,
		client.WithImageRefTranslator(archive.AddRefPrefix(prefix)),
		client.WithDigestRef(archive.DigestTranslator(prefix)),
		client.WithSkipDigestRef(func(name string) bool { return name != "" }))
	if err != nil {
		return "", t.said("import "+path, err)
	}
	if len(imported) != 1 {
		return "", fmt.Errorf("import %s: it holds %d images for this board; want one", path, len(imported))
	}
	name := imported[0].Name
	if err := client.NewImage(t.client, imported[0]).Unpack(ctx, snapshotter); err != nil {
		return "", t.said("unpack "+path, err)
	}
	return name, nil
}

func (t *Containers) said(what string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return said(fmt.Sprintf("%s on %s", what, t.conn.addr), err)
}

// namedBlobs tells the board the digest of a blob before it is sent. An OCI
// archive has it in the blob's name; the importer, which reads the archive as a
// stream, does not look there and would send blobs that the board has.
type namedBlobs struct{ content.Store }

const blobRef = "tar-blobs/sha256/" // as the importer names its writers

func (s namedBlobs) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if hex, ok := strings.CutPrefix(o.Ref, blobRef); ok && o.Desc.Digest == "" {
		if d := digest.NewDigestFromEncoded(digest.SHA256, hex); d.Validate() == nil {
			o.Desc.Digest = d
		}
	}
	return s.Store.Writer(ctx, content.WithRef(o.Ref), content.WithDescriptor(o.Desc))
}
