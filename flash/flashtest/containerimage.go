package flashtest

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Files maps names to the content of an archive or a layout.
type Files map[string][]byte

// Layer returns a tar of executable files.
func Layer(t testing.TB, files Files) []byte { return packTar(t, files, 0o755) }

// packTar returns a tar of files with one mode, sorted by name.
func packTar(t testing.TB, files Files, mode int64) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(files[name])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Archive packs files into a tar of this name in a temporary folder, and returns its path.
func Archive(t testing.TB, name string, files Files) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, packTar(t, files, 0o644), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Layout writes files into a folder of this name in a temporary folder, and returns its path.
func Layout(t testing.TB, name string, files Files) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Blob adds a blob at its path in a layout, and returns its descriptor.
func (f Files) Blob(mediaType string, data []byte) v1.Descriptor {
	d := digest.FromBytes(data)
	f["blobs/sha256/"+d.Encoded()] = data
	return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

// JSON adds a blob with v as JSON, and returns its descriptor.
func (f Files) JSON(t testing.TB, mediaType string, v any) v1.Descriptor {
	t.Helper()
	return f.Blob(mediaType, marshalJSON(t, v))
}

func marshalJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Config returns an image's configuration with the layers' digests.
func Config(platform v1.Platform, config v1.ImageConfig, layers ...[]byte) v1.Image {
	image := v1.Image{Platform: platform, Config: config, RootFS: v1.RootFS{Type: "layers"}}
	for _, l := range layers {
		image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, digest.FromBytes(l))
	}
	return image
}

// Image adds an image with uncompressed layers and returns its manifest's descriptor.
func (f Files) Image(t testing.TB, config v1.Image, layers ...[]byte) v1.Descriptor {
	t.Helper()
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	m.Config = f.JSON(t, v1.MediaTypeImageConfig, config)
	for _, l := range layers {
		m.Layers = append(m.Layers, f.Blob(v1.MediaTypeImageLayer, l))
	}
	d := f.JSON(t, v1.MediaTypeImageManifest, m)
	d.Platform = &config.Platform
	return d
}

// Named returns the descriptor with a name, for an index.
func Named(d v1.Descriptor, name string) v1.Descriptor {
	d.Annotations = map[string]string{v1.AnnotationRefName: name}
	return d
}

// Index adds index.json and oci-layout, so that the files are a complete layout.
func (f Files) Index(t testing.TB, entries ...v1.Descriptor) Files {
	t.Helper()
	f["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	f["index.json"] = marshalJSON(t, v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: entries})
	return f
}

// Docker returns the files of an image in the format of docker save from before OCI layouts.
func Docker(t testing.TB, tag string, config v1.Image, layers ...[]byte) Files {
	t.Helper()
	f := Files{"config.json": marshalJSON(t, config)}
	var names []string
	for i, l := range layers {
		name := fmt.Sprintf("%d/layer.tar", i)
		f[name], names = l, append(names, name)
	}
	f["manifest.json"] = marshalJSON(t, []map[string]any{{"Config": "config.json", "RepoTags": []string{tag}, "Layers": names}})
	return f
}
