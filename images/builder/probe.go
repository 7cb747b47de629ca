package builder

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ProbeImage is the name of the container image that an artifact brings for the smoke suites.
const ProbeImage = "slipway/probe:latest"

// writeProbe writes an OCI archive of a container made of files of the image itself. So the
// container fits the board's processor and C library, and needs no registry.
func (d disk) writeProbe(out *os.File) error {
	layer, err := d.probeLayer()
	if err != nil {
		return err
	}
	blobs := map[digest.Digest][]byte{}
	put := func(mediaType string, data []byte) v1.Descriptor {
		desc := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		blobs[desc.Digest] = data
		return desc
	}
	layerDesc := put(v1.MediaTypeImageLayer, layer)
	platform := v1.Platform{OS: "linux", Architecture: d.spec.Arch}
	config, err := json.Marshal(v1.Image{Platform: platform, RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{layerDesc.Digest}}})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: put(v1.MediaTypeImageConfig, config), Layers: []v1.Descriptor{layerDesc},
	})
	if err != nil {
		return err
	}
	manifestDesc := put(v1.MediaTypeImageManifest, manifest)
	manifestDesc.Platform = &platform
	manifestDesc.Annotations = map[string]string{"io.containerd.image.name": ProbeImage, v1.AnnotationRefName: "latest"}
	index, err := json.Marshal(v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{manifestDesc},
	})
	if err != nil {
		return err
	}
	return writeLayout(out, index, blobs)
}

// writeLayout writes an OCI image layout with an index and blobs as a tar.
func writeLayout(out *os.File, index []byte, blobs map[digest.Digest][]byte) error {
	layout, err := json.Marshal(v1.ImageLayout{Version: v1.ImageLayoutVersion})
	if err != nil {
		return err
	}
	files := map[string][]byte{v1.ImageLayoutFile: layout, v1.ImageIndexFile: index}
	for sum, data := range blobs {
		files[path.Join(v1.ImageBlobsDir, sum.Algorithm().String(), sum.Encoded())] = data
	}
	t := tar.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := writeEntry(t, tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, files[name]); err != nil {
			return err
		}
	}
	return t.Close()
}

// probeLayer returns a tar of the links bin, lib and lib64 of a merged /usr, of the board's
// container/ folder, and of those files of the root file system that spec.Debian.Probe names.
func (d disk) probeLayer() ([]byte, error) {
	var layer bytes.Buffer
	t := tar.NewWriter(&layer)
	for _, dir := range []string{"bin", "lib", "lib64"} { // as merged-/usr systems have them
		if err := writeEntry(t, tar.Header{Typeflag: tar.TypeSymlink, Name: dir, Linkname: "usr/" + dir, Mode: 0o777}, nil); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.spec.Files())) {
		if inside, ok := strings.CutPrefix(name, "container/"); ok {
			if err := writeEntry(t, tar.Header{Typeflag: tar.TypeReg, Name: inside, Mode: 0o644}, d.spec.Files()[name]); err != nil {
				return nil, err
			}
		}
	}
	for _, pattern := range d.spec.Debian.Probe {
		if err := d.probeFiles(t, pattern); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), t.Close()
}

// probeFiles adds d.root's files matching a pattern to a tar with mode 0755, or fails without any.
func (d disk) probeFiles(t *tar.Writer, pattern string) error {
	found, err := fs.Glob(os.DirFS(d.root), path.Join("/", pattern)[1:])
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(d.root) // a link that points out of it is an error
	if err != nil {
		return err
	}
	defer root.Close()
	if len(found) == 0 {
		return fmt.Errorf("%s: debian.probe: %s matches nothing in the image", d.spec.BoardFile(), pattern)
	}
	for _, inside := range found {
		data, err := root.ReadFile(inside)
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: debian.probe: %s leads nowhere in the image", d.spec.BoardFile(), inside)
		}
		if err != nil {
			return err
		}
		if err := writeEntry(t, tar.Header{Typeflag: tar.TypeReg, Name: inside, Mode: 0o755}, data); err != nil {
			return err
		}
	}
	return nil
}
