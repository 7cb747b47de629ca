package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Bounds on what an artifact says of itself.
const (
	maxManifestBytes = 4 << 20
	maxLayers        = 512
)

// Types of manifests, those of OCI and docker's older names for the same.
var (
	manifestTypes = []string{ocispec.MediaTypeImageManifest, "application/vnd.docker.distribution.manifest.v2+json"}
	indexTypes    = []string{ocispec.MediaTypeImageIndex, "application/vnd.docker.distribution.manifest.list.v2+json"}
	// A layer of a container's image, which holds its file in a tar.
	layerTypes = map[string]string{
		ocispec.MediaTypeImageLayer:                         "",
		ocispec.MediaTypeImageLayerGzip:                     "gzip",
		ocispec.MediaTypeImageLayerZstd:                     "zstd",
		"application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
	}
)

// unpackMark is how ORAS marks a folder, which it pushes as a tar.
const unpackMark = "io.deis.oras.content.unpack"

// blob is one file of an artifact.
type blob struct {
	name      string // "" where the artifact gives it none
	sha256    string
	sizeBytes int64
	packing   string // of a container's layer
}

// artifact is an OCI manifest: files with names, as ORAS pushes them, or a
// container's image of one layer that holds one file.
type artifact struct {
	dir    string // of a layout; "" of a registry
	title  string // which file the reference names; "" leaves the choice to find
	blobs  []blob
	unpack bool
}

// document is an index or a manifest.
type document struct {
	MediaType string               `json:"mediaType"`
	Config    ocispec.Descriptor   `json:"config"`
	Layers    []ocispec.Descriptor `json:"layers"`
	Manifests []ocispec.Descriptor `json:"manifests"`
}

func (d document) isIndex() bool {
	return slices.Contains(indexTypes, d.MediaType) || d.MediaType == "" && len(d.Manifests) > 0
}

// parseDocument reads an index or a manifest. What the server calls it is not asked:
// the digest covers the text alone.
func parseDocument(data []byte) (document, error) {
	var d document
	if len(data) > maxManifestBytes {
		return d, fmt.Errorf("a manifest of more than %d MiB", maxManifestBytes>>20)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return d, fmt.Errorf("the manifest is not one: %w", err)
	}
	switch {
	case len(d.Layers) > 0 && len(d.Manifests) > 0:
		return d, errors.New("the manifest is an index too; refused, since programs differ in what they make of it")
	case d.MediaType != "" && !slices.Contains(manifestTypes, d.MediaType) && !slices.Contains(indexTypes, d.MediaType):
		return d, fmt.Errorf("a manifest of type %q; known are those of OCI and of docker's second version", printable(d.MediaType))
	case len(d.Layers) > maxLayers || len(d.Manifests) > maxLayers:
		return d, fmt.Errorf("a manifest with more than %d parts", maxLayers)
	}
	return d, nil
}

// choose is the manifest of an index that is for an architecture. One alone serves
// whatever it says it is for.
func (d document) choose(arch string) (ocispec.Descriptor, error) {
	all := slices.DeleteFunc(slices.Clone(d.Manifests), func(m ocispec.Descriptor) bool {
		return m.Annotations["vnd.docker.reference.type"] != "" // attestations
	})
	fit := all
	if len(all) != 1 {
		fit = slices.DeleteFunc(slices.Clone(all), func(m ocispec.Descriptor) bool {
			return m.Platform == nil || m.Platform.Architecture != arch
		})
	}
	if len(fit) != 1 {
		return ocispec.Descriptor{}, fmt.Errorf("%d of the index's %d manifests are for %s; name one by its digest", len(fit), len(all), arch)
	}
	return fit[0], checkDescriptor(fit[0], maxManifestBytes)
}

func checkDescriptor(d ocispec.Descriptor, limit int64) error {
	if !sumPattern.MatchString(string(d.Digest)) {
		return fmt.Errorf("digest %q in the manifest: want sha256: and 64 hex digits", printable(string(d.Digest)))
	}
	if d.Size < 0 || d.Size > limit {
		return fmt.Errorf("%s: a size of %d bytes makes no sense", d.Digest, d.Size)
	}
	return nil
}

// maxBlobBytes is more than any disk image has.
const maxBlobBytes = 1 << 46

// artifact makes a list of files of a manifest.
func (d document) artifact(title string) (*artifact, error) {
	a := &artifact{title: title}
	if d.isIndex() {
		return nil, errors.New("an index inside an index")
	}
	for _, l := range d.Layers {
		if err := checkDescriptor(l, maxBlobBytes); err != nil {
			return nil, err
		}
		b := blob{name: l.Annotations[ocispec.AnnotationTitle], sha256: l.Digest.Encoded(), sizeBytes: l.Size}
		if b.name != "" && (fileName(b.name) != b.name || l.Annotations[unpackMark] == "true") {
			return nil, fmt.Errorf("%q in the manifest is no name of a file; folders are not taken", printable(b.name))
		}
		if packing, ok := layerTypes[l.MediaType]; ok && b.name == "" {
			b.name, b.packing, a.unpack = "layer.tar", strings.TrimSpace("tar "+packing), true
		}
		if b.name == "" {
			b.name = "disk.img"
		}
		a.blobs = append(a.blobs, b)
	}
	if len(a.blobs) == 0 {
		return nil, errors.New("the manifest names no files")
	}
	if a.unpack && len(a.blobs) > 1 {
		return nil, fmt.Errorf("a container's image of %d layers; one that holds a disk image has one layer with one file", len(a.blobs))
	}
	return a, a.unique()
}

func (a *artifact) unique() error {
	seen := map[string]bool{}
	for _, b := range a.blobs {
		if seen[b.name] {
			return fmt.Errorf("the manifest has two files with the name %q", b.name)
		}
		seen[b.name] = true
	}
	return nil
}

// accompanies says whether a file is one of those that lie beside images.
func accompanies(name string) bool {
	for _, ending := range []string{".bmap", ".sig", ".minisig", ".asc", ".json", ".txt", ".md", ".sha256", ".spdx"} {
		if strings.HasSuffix(name, ending) {
			return true
		}
	}
	return strings.HasPrefix(strings.ToUpper(name), "SHA256SUM")
}

// find is the file with a title, and without one the image: the only file, or the
// only one that does not lie beside another.
func (a *artifact) find(title string) (blob, error) {
	var names []string
	fit := slices.DeleteFunc(slices.Clone(a.blobs), func(b blob) bool {
		names = append(names, b.name)
		return title != "" && b.name != title || title == "" && len(a.blobs) > 1 && accompanies(b.name)
	})
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case title != "":
		return blob{}, fmt.Errorf("%s: %w; the artifact has %s", title, errNoFile, strings.Join(names, ", "))
	}
	return blob{}, fmt.Errorf("which of its files is the image? It has %s; name one with #FILE", strings.Join(names, ", "))
}

// name is what the image is called.
func (a *artifact) name() string {
	b, err := a.find(a.title)
	if err != nil {
		return ""
	}
	return b.name
}
