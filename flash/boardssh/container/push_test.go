package container

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
	"slipway/flash/flashtest"
	"slipway/flash/oci"
)

// localImage is an image of busybox and more layers, for this machine.
func localImage(t *testing.T, name string, more ...[]byte) *oci.Image {
	t.Helper()
	layers := append([][]byte{busyboxLayer(t, 0)}, more...)
	for i, l := range more {
		layers[i+1] = flashtest.Layer(t, flashtest.Files{fmt.Sprintf("filler%d", i): l})
	}
	f := flashtest.Files{}
	config := flashtest.Config(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, v1.ImageConfig{
		Entrypoint: []string{"/bin/busybox"}, Cmd: []string{"echo", "hello"},
	}, layers...)
	f.Index(t, flashtest.Named(f.Image(t, config, layers...), name))
	source, err := oci.Open(flashtest.Archive(t, "image.tar", f))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	image, err := source.Image(t.Context(), "", config.Platform)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// collect makes containerd remove what nothing keeps.
func collect(t *testing.T, c *Containerd) {
	t.Helper()
	ctx := c.withNamespace(t.Context())
	l, err := c.client.LeasesService().Create(ctx, leases.WithRandomID())
	if err == nil {
		err = c.client.LeasesService().Delete(ctx, l, leases.SynchronousDelete)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The relay cuts the connection while the second half of a layer is sent; it would do
// so again if the first half were sent again.
func TestPushGoesOn(t *testing.T) {
	t.Parallel()
	s := sshtest.StartSSHD(t)
	socket := startContainerd(t)
	image := localImage(t, "v1", sshtest.RandomBytes(16<<20))
	push := func(limit int64) (Pushed, error) {
		a, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), limit, false)
		c, err := openContainerd(t.Context(), boardtest.Dial(t, a), socket, defaultNamespace)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		defer collect(t, boardAt(t, s, socket))
		return c.Push(t.Context(), image, image.Name)
	}
	if p, err := push(11 << 20); err == nil {
		t.Fatalf("Push over a line that is cut = %+v", p)
	}
	p, err := push(13 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if p.SentBytes > 12<<20 {
		t.Errorf("%d bytes sent the second time; want less than all", p.SentBytes)
	}
	checkRuns(t, boardAt(t, s, socket), image.Name)
	// No lease is left that would keep the image for ever.
	c := boardAt(t, s, socket)
	all, err := c.client.LeasesService().List(c.withNamespace(t.Context()))
	if err != nil || len(all) != 0 {
		t.Errorf("leases left: %v, %v", all, err)
	}
}

func checkRuns(t *testing.T, c *Containerd, image string) {
	t.Helper()
	exit, err := c.Run(t.Context(), Spec{Image: image})
	if err != nil || string(exit.Output) != "hello\n" {
		t.Errorf("Run(%s) = %q, %v", image, exit.Output, err)
	}
}

func TestPushTakesNames(t *testing.T) {
	t.Parallel()
	c, containers := board(t)
	push := func(to *Containerd, name string, more string) Pushed {
		t.Helper()
		image := localImage(t, "v1", []byte("the same"), []byte(more))
		p, err := to.Push(t.Context(), image, name)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := push(containers, "lab/app:1", "one")
	if first.Layers != 3 || first.SentLayers != 3 || first.Replaced != "" || first.Platform != "linux/"+runtime.GOARCH {
		t.Errorf("first push: %+v", first)
	}
	second := push(containers, "lab/app:1", "two")
	if second.SentLayers != 1 || second.Replaced != first.Digest {
		t.Errorf("push of another image: %+v; want 1 layer sent, %s replaced", second, first.Digest)
	}
	collect(t, containers)
	checkRuns(t, containers, "lab/app:1")
	push(containers, "lab/app:2", "two")
	if pruned, err := containers.Prune(t.Context(), "lab/app:2"); err != nil || !slices.Equal(pruned, []string{"lab/app:1"}) {
		t.Errorf("Prune = %q, %v", pruned, err)
	}
	collect(t, containers)
	checkRuns(t, containers, "lab/app:2")
	// Another namespace sees nothing of it, and gets it without bytes on the wire.
	other, err := openContainerd(t.Context(), c, containers.socket, "k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if p := push(other, "lab/app:2", "two"); p.SentLayers != 3 || p.SentBytes != 0 {
		t.Errorf("push to another namespace: %+v; want no bytes sent", p)
	}
	if pruned, err := other.Prune(t.Context(), ""); err != nil || len(pruned) != 1 {
		t.Errorf("Prune = %q, %v", pruned, err)
	}
	checkRuns(t, containers, "lab/app:2")
}

// A blob that is not what its name says is not taken.
func TestPushDamaged(t *testing.T) {
	t.Parallel()
	_, containers := board(t)
	image := localImage(t, "v1", []byte("layer"))
	image.Store = damaged{image.Store, image.Layers[1]}
	_, err := containers.Push(t.Context(), image, "lab/app:1")
	sshtest.CheckError(t, err, image.Layers[1].Digest.Encoded())
	if _, err := containers.Run(t.Context(), Spec{Image: "lab/app:1"}); err == nil || !strings.Contains(err.Error(), "not found\nnext: deploy container ") {
		t.Errorf("Run of an image that was refused: %v", err)
	}
}

type damaged struct {
	oci.Store
	bad v1.Descriptor
}

func (s damaged) Open(ctx context.Context, d v1.Descriptor) (oci.Blob, error) {
	if d.Digest == s.bad.Digest {
		return oci.Bytes(sshtest.RandomBytes(int(d.Size))), nil
	}
	return s.Store.Open(ctx, d)
}
