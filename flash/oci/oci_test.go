package oci

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/flashtest"
)

var (
	amd = v1.Platform{OS: "linux", Architecture: "amd64"}
	arm = v1.Platform{OS: "linux", Architecture: "arm64"}
)

func find(t *testing.T, path, name string, p v1.Platform) (*Image, error) {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { s.Close() })
	return s.Image(t.Context(), name, p)
}

// layers reads all layers, each of which has to have its digest.
func layers(t *testing.T, image *Image) string {
	t.Helper()
	var all []string
	for _, d := range image.Layers {
		blob, err := image.Store.Open(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(io.NewSectionReader(blob, 0, d.Size+1))
		blob.Close()
		if err != nil || digest.FromBytes(data) != d.Digest {
			t.Errorf("layer %s: digest %s, %v", d.Digest, digest.FromBytes(data), err)
		}
		all = append(all, string(data))
	}
	return strings.Join(all, "+")
}

func image(platform v1.Platform, layers ...string) (v1.Image, [][]byte) {
	var all [][]byte
	for _, l := range layers {
		all = append(all, []byte(l))
	}
	return flashtest.Config(platform, v1.ImageConfig{}, all...), all
}

func add(t *testing.T, f flashtest.Files, platform v1.Platform, layers ...string) v1.Descriptor {
	c, all := image(platform, layers...)
	return f.Image(t, c, all...)
}

func one(t *testing.T, name string) flashtest.Files {
	f := flashtest.Files{}
	d := add(t, f, arm, "a", "b", "a")
	if name != "" {
		d = flashtest.Named(d, name)
	}
	return f.Index(t, d)
}

func docker(t *testing.T, tag string) flashtest.Files {
	c, all := image(arm, "a", "b", "a")
	return flashtest.Docker(t, tag, c, all...)
}

func TestImage(t *testing.T) {
	several := flashtest.Files{}
	several.Index(t, flashtest.Named(add(t, several, amd, "x"), "v1"), flashtest.Named(add(t, several, arm, "y"), "v1"), flashtest.Named(add(t, several, arm, "z"), "v2"))
	nested := flashtest.Files{}
	inner := nested.JSON(t, v1.MediaTypeImageIndex, v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{add(t, nested, amd, "x"), add(t, nested, arm, "y")}})
	nested.Index(t, inner)
	packed := docker(t, "app")
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte("a"))
	w.Close()
	packed["0/layer.tar"] = b.Bytes()
	tests := []struct {
		name, path, image, wantName, wantLayers string
	}{
		{"an archive", flashtest.Archive(t, "App.tar", one(t, "")), "", "slipway.local/app@sha256:", "a+b+a"},
		{"a layout", flashtest.Layout(t, "app", one(t, "v2")), "", "slipway.local/app:v2", "a+b+a"},
		{"its name", flashtest.Layout(t, "app", one(t, "slipway/probe:latest")), "", "slipway/probe:latest", "a+b+a"},
		{"one of several", flashtest.Archive(t, "s.tar", several), "v2", "slipway.local/s:v2", "z"},
		{"one of two platforms", flashtest.Archive(t, "s.tar", several), "v1", "slipway.local/s:v1", "y"},
		{"an index in the index", flashtest.Archive(t, "n.tar", nested), "", "slipway.local/n@sha256:", "y"},
		{"docker save", flashtest.Archive(t, "d.tar", docker(t, "app")), "", "docker.io/library/app:latest", "a+b+a"},
		{"docker save by name", flashtest.Archive(t, "d.tar", docker(t, "lab/app:v1")), "lab/app:v1", "docker.io/lab/app:v1", "a+b+a"},
		{"packed layers", flashtest.Archive(t, "d.tar", packed), "", "docker.io/library/app:latest", b.String() + "+b+a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image, err := find(t, tt.path, tt.image, arm)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(image.Name, tt.wantName) {
				t.Errorf("name %q; want %q", image.Name, tt.wantName)
			}
			if got := layers(t, image); got != tt.wantLayers {
				t.Errorf("layers %q; want %q", got, tt.wantLayers)
			}
			all := image.Blobs()
			if last := all[len(all)-1].Digest; last != image.Manifest.Digest {
				t.Errorf("the last blob is %s; want the manifest", last)
			}
		})
	}
}

// The type of a manifest is that of its text, else that of its entry, if it is one of docker.
func TestManifestType(t *testing.T) {
	f := flashtest.Files{}
	top := add(t, f, arm, "a")
	s, err := Open(flashtest.Layout(t, "app", f.Index(t, top)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data, err := ReadDocument(t.Context(), s, top)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := ParseDocument(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ text, entry, want string }{
		{"", "", v1.MediaTypeImageManifest},
		{"", v1.MediaTypeImageIndex, v1.MediaTypeImageManifest},
		{"", dockerManifest, dockerManifest},
		{dockerManifest, "", dockerManifest},
		{v1.MediaTypeImageManifest, dockerManifest, v1.MediaTypeImageManifest},
	} {
		doc.MediaType, top.MediaType = tt.text, tt.entry
		image, err := readImage(t.Context(), s, top, doc, arm)
		if err != nil || image.Manifest.MediaType != tt.want {
			t.Errorf("a manifest of type %q in an entry of type %q: %+v, %v; want %q", tt.text, tt.entry, image, err, tt.want)
		}
	}
}

func TestImageRefuses(t *testing.T) {
	damaged := one(t, "")
	for name := range damaged {
		if strings.HasPrefix(name, "blobs/") && len(damaged[name]) > 10 {
			damaged[name] = bytes.Replace(damaged[name], []byte("sha256"), []byte("sha257"), 1)
		}
	}
	cut := flashtest.Archive(t, "cut.tar", flashtest.Files{"oci-layout": bytes.Repeat([]byte("x"), 2000)})
	if err := os.Truncate(cut, 1000); err != nil {
		t.Fatal(err)
	}
	gz := filepath.Join(t.TempDir(), "app.tar.gz")
	if err := os.WriteFile(gz, []byte("\x1f\x8b\x08\x00more"), 0o644); err != nil {
		t.Fatal(err)
	}
	short := one(t, "")
	for name, data := range short {
		if string(data) == "b" {
			short[name] = nil
		}
	}
	loop := flashtest.Files{}
	var d v1.Descriptor = add(t, loop, arm, "a")
	for range 6 {
		d = loop.JSON(t, v1.MediaTypeImageIndex, v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{d}})
	}
	loop.Index(t, d)
	two := flashtest.Files{}
	two.Index(t, flashtest.Named(add(t, two, arm, "x"), "v1"), flashtest.Named(add(t, two, arm, "y"), "v2"))
	odd := flashtest.Files{}
	odd.Index(t, v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: "sha256:../../etc/passwd", Size: 3})
	linked := flashtest.Layout(t, "linked", one(t, ""))
	aside := filepath.Join(t.TempDir(), "index.json")
	if err := errors.Join(os.Rename(linked+"/index.json", aside), os.Symlink(aside, linked+"/index.json")); err != nil {
		t.Fatal(err)
	}
	empty := docker(t, "app")
	empty["manifest.json"] = []byte(`[{"Config":"config.json","Layers":[]}]`)
	tests := []struct {
		name, path string
		platform   v1.Platform
		want       string
	}{
		{"another platform", flashtest.Archive(t, "a.tar", one(t, "")), amd, "the image is for linux/arm64, the board is linux/amd64"},
		{"damaged", flashtest.Archive(t, "a.tar", damaged), arm, "damaged"},
		{"cut off", cut, arm, "not a whole one"},
		{"packed", gz, arm, "gunzip"},
		{"nothing of an image", flashtest.Archive(t, "a.tar", flashtest.Files{"a": nil}), arm, "no oci-layout and no manifest.json"},
		{"an empty archive", flashtest.Archive(t, "a.tar", flashtest.Files{}), arm, "empty archive"},
		{"too deep", flashtest.Archive(t, "a.tar", loop), arm, "indexes inside one another"},
		{"several", flashtest.Archive(t, "a.tar", two), arm, `"v1" "v2"`},
		{"a digest that is a path", flashtest.Layout(t, "a", odd), arm, "want sha256: and 64 hex digits"},
		{"a link out of the folder", linked, arm, "index.json: no file of the image"},
		{"docker save without layers", flashtest.Archive(t, "a.tar", empty), arm, "0 layers, and 3"},
		{"no such file", filepath.Join(t.TempDir(), "none.tar"), arm, "none.tar"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := find(t, tt.path, "", tt.platform)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v; want %q", err, tt.want)
			}
		})
	}
	image, err := find(t, flashtest.Archive(t, "a.tar", short), "", arm)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := image.Store.Open(t.Context(), image.Layers[1]); err == nil || !strings.Contains(err.Error(), "its manifest says 1") {
		t.Errorf("a short layer: %v", err)
	}
}

func FuzzImage(f *testing.F) {
	for _, files := range []flashtest.Files{
		{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": []byte(`{"manifests":[{"digest":"sha256:0","size":1}]}`)},
		{"manifest.json": []byte(`[{"Config":"c","Layers":["l"]}]`), "c": []byte(`{"rootfs":{"diff_ids":["sha256:0"]}}`), "l": []byte("x")},
	} {
		data, err := os.ReadFile(flashtest.Archive(f, "a.tar", files))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, err := readTar(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		image, err := (&Source{path: "a.tar", tree: tree}).Image(t.Context(), "", amd)
		if err != nil {
			return
		}
		if len(image.Layers) != len(image.DiffIDs) || len(image.Layers) == 0 {
			t.Errorf("an image of %d layers and %d diff ids", len(image.Layers), len(image.DiffIDs))
		}
	})
}
