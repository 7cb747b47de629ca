package fetch

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/flashtest"
	"slipway/flash/oci"
)

var (
	armBoard = ocispec.Platform{OS: "linux", Architecture: "arm64"}
	amdBoard = ocispec.Platform{OS: "linux", Architecture: "amd64"}
)

// serveImages puts an image for two platforms into a registry, as v1.
func serveImages(t *testing.T, s *ociServer) flashtest.Files {
	t.Helper()
	f := flashtest.Files{}
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
	for _, p := range []ocispec.Platform{amdBoard, armBoard} {
		layer := []byte("layer for " + p.Architecture)
		index.Manifests = append(index.Manifests, f.Image(t, flashtest.Config(p, ocispec.ImageConfig{}, []byte("base"), layer), []byte("base"), layer))
	}
	s.mu.Lock()
	for name, data := range f {
		sum := string(digest.NewDigestFromEncoded(digest.SHA256, filepath.Base(name)))
		s.blobs[sum], s.manifests[sum] = data, data
	}
	s.mu.Unlock()
	s.tag(t, "v1", index)
	return f
}

func openContainer(t *testing.T, text string, p ocispec.Platform) (*oci.Image, error) {
	t.Helper()
	c, err := OpenContainer(t.Context(), text, Options{Dir: filepath.Join(t.TempDir(), "cache")})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	return c.Image(t.Context(), p)
}

func TestContainerOfRegistry(t *testing.T) {
	s := newRegistryServer(t)
	serveImages(t, s)
	image, err := openContainer(t, s.reference(s.addr(), ""), armBoard)
	if err != nil {
		t.Fatal(err)
	}
	if want := s.addr() + "/lab/disk:v1"; image.Name != want {
		t.Errorf("name %q; want %q", image.Name, want)
	}
	blob, err := image.Store.Open(t.Context(), image.Layers[1])
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	if data, err := io.ReadAll(io.NewSectionReader(blob, 0, 100)); err != nil || string(data) != "layer for arm64" {
		t.Errorf("layer %q, %v", data, err)
	}
	s.mu.Lock()
	asked := strings.Join(s.asked, " ")
	s.mu.Unlock()
	if strings.Contains(asked, image.Layers[0].Digest.String()) {
		t.Errorf("asked for %s; want no blob fetched that was not opened", asked)
	}
	_, err = openContainer(t, s.reference(s.addr(), ""), ocispec.Platform{OS: "linux", Architecture: "riscv64"})
	if err == nil || !strings.Contains(err.Error(), `"linux/amd64" "linux/arm64"`) {
		t.Errorf("for a platform that is not there: %v", err)
	}
}

func TestContainerOfFiles(t *testing.T) {
	f := flashtest.Files{}
	f.Index(t,
		flashtest.Named(f.Image(t, flashtest.Config(armBoard, ocispec.ImageConfig{}, []byte("a")), []byte("a")), "v1"),
		flashtest.Named(f.Image(t, flashtest.Config(armBoard, ocispec.ImageConfig{}, []byte("b")), []byte("b")), "v2"))
	archive, layout := flashtest.Archive(t, "app.tar", f), flashtest.Layout(t, "app", f)
	for _, text := range []string{archive + "#v2", "file://" + archive + "#v2", layout + "#v2", "oci-dir:" + layout + ":v2"} {
		image, err := openContainer(t, text, armBoard)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if image.Name != "slipway.local/app:v2" {
			t.Errorf("%s: name %q", text, image.Name)
		}
	}
	for text, want := range map[string]string{
		archive: "several images", archive + "#v3": `no image "v3"`, "oci://localhost/lab/app:v1#v2": "leave out #v2", "ftp://x/y": "Slipway has no images from such addresses",
		filepath.Join(t.TempDir(), "none.tar"): "none.tar",
	} {
		if _, err := openContainer(t, text, armBoard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
