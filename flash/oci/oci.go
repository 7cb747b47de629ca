// Package oci reads a local container image (an OCI layout, an OCI archive, or the output of docker
// save) blob by blob. An image is untrusted: its documents have limits, match their digests, and
// name only blobs. A layer's consumer verifies its digest. For the network see fetch and target.
package oci

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/layers/plaintext"
)

// Limits of an image's documents.
const (
	MaxDocumentBytes = 4 << 20
	MaxManifests     = 10_000 // of an index: a folder of many tags
	maxLayers        = 512
	maxBlobBytes     = 1 << 46 // more than any disk image has
	maxDepth         = 4       // of an index inside an index
)

// Types of documents: those of OCI, and docker's older names for the same.
const (
	dockerManifest  = "application/vnd.docker.distribution.manifest.v2+json"
	dockerIndex     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerConfig    = "application/vnd.docker.container.image.v1+json"
	dockerLayer     = "application/vnd.docker.image.rootfs.diff.tar"
	dockerLayerGzip = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

// DocumentTypes are the media types of the documents that ParseDocument reads.
var DocumentTypes = []string{v1.MediaTypeImageManifest, dockerManifest, v1.MediaTypeImageIndex, dockerIndex}

// Blob is the content of one blob.
type Blob interface {
	io.ReaderAt
	io.Closer
}

// Bytes returns a Blob with data in memory.
func Bytes(data []byte) Blob {
	return file{bytes.NewReader(data), io.NopCloser(nil), int64(len(data))}
}

// Store provides blobs. Opening one may fetch it, which may take long.
type Store interface {
	Open(ctx context.Context, d v1.Descriptor) (Blob, error)
}

// Image is one image for one platform.
type Image struct {
	Name     string // its name in the source, or ""
	Platform v1.Platform
	Manifest v1.Descriptor
	Config   v1.Descriptor
	Layers   []v1.Descriptor
	DiffIDs  []digest.Digest // of the layers, unpacked
	Store    Store
}

// Blobs returns each blob of the image once, the manifest last, as it names all others.
func (i *Image) Blobs() []v1.Descriptor {
	var all []v1.Descriptor
	seen := map[digest.Digest]bool{}
	for _, d := range slices.Concat(i.Layers, []v1.Descriptor{i.Config, i.Manifest}) {
		if !seen[d.Digest] {
			seen[d.Digest] = true
			all = append(all, d)
		}
	}
	return all
}

// Document is an index or a manifest.
type Document struct {
	MediaType string          `json:"mediaType"`
	Config    v1.Descriptor   `json:"config"`
	Layers    []v1.Descriptor `json:"layers"`
	Manifests []v1.Descriptor `json:"manifests"`
}

// IsIndex reports whether the document lists manifests.
func (d Document) IsIndex() bool {
	return d.MediaType == v1.MediaTypeImageIndex || d.MediaType == dockerIndex || d.MediaType == "" && len(d.Manifests) > 0
}

// Find reads the index or manifest top and returns the image for a platform. It selects from an
// index by its entries, and checks a single manifest by its configuration.
func Find(ctx context.Context, store Store, top v1.Descriptor, platform v1.Platform) (*Image, error) {
	for range maxDepth {
		data, err := ReadDocument(ctx, store, top)
		if err != nil {
			return nil, err
		}
		doc, err := ParseDocument(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", top.Digest, err)
		}
		if !doc.IsIndex() {
			return readImage(ctx, store, top, doc, platform)
		}
		if top, err = choosePlatform(doc.Manifests, platform); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("more than %d indexes inside one another", maxDepth)
}

// ParseDocument parses an index or a manifest, and checks its type, its limits, and all descriptors
// but the config's. It ignores a server's media type, because the digest covers only the text.
func ParseDocument(data []byte) (Document, error) {
	var d Document
	if err := json.Unmarshal(data, &d); err != nil {
		return d, fmt.Errorf("the manifest is not one: %w", err)
	}
	switch {
	case d.MediaType != "" && !slices.Contains(DocumentTypes, d.MediaType):
		return d, fmt.Errorf("a manifest of type %q; known are those of OCI and of docker's second version", plaintext.OneLine(d.MediaType))
	case len(d.Layers) > 0 && len(d.Manifests) > 0:
		return d, errors.New("the manifest is an index too; refused, since programs differ in what they make of it")
	case len(d.Layers) > maxLayers || len(d.Manifests) > MaxManifests:
		return d, fmt.Errorf("a manifest with more than %d layers, or an index with more than %d manifests", maxLayers, MaxManifests)
	}
	for _, part := range slices.Concat(d.Layers, d.Manifests) {
		if err := checkDescriptor(part); err != nil {
			return d, err
		}
	}
	return d, nil
}

// checkDescriptor refuses a digest other than SHA-256, and a size over maxBlobBytes or below 0.
func checkDescriptor(d v1.Descriptor) error {
	if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %q in the manifest: want sha256: and 64 hex digits", plaintext.OneLine(string(d.Digest)))
	}
	if d.Size < 0 || d.Size > maxBlobBytes {
		return fmt.Errorf("%s: a size of %d bytes makes no sense", d.Digest, d.Size)
	}
	return nil
}

// choosePlatform returns the index entry that fits the platform best. It skips attestations. An
// entry without a platform fits only if it is the only one.
func choosePlatform(all []v1.Descriptor, platform v1.Platform) (v1.Descriptor, error) {
	fit := platforms.Only(platform)
	var best v1.Descriptor
	var names []string
	for _, d := range all {
		if d.Annotations["vnd.docker.reference.type"] != "" {
			continue
		}
		if d.Platform == nil {
			if len(all) == 1 {
				return d, nil
			}
			names = append(names, "one that names none")
			continue
		}
		names = append(names, plaintext.OneLine(platforms.Format(*d.Platform)))
		if fit.Match(*d.Platform) && (best.Digest == "" || fit.Less(*d.Platform, *best.Platform)) {
			best = d
		}
	}
	if best.Digest == "" {
		return best, fmt.Errorf("no image for this board's platform, %s; there are %q", platforms.Format(platform), names)
	}
	return best, nil
}

// readImage reads the configuration of a manifest and returns the image; an error if it is for
// another platform, has no layers, or another number of them than the manifest.
func readImage(ctx context.Context, store Store, d v1.Descriptor, doc Document, platform v1.Platform) (*Image, error) {
	if err := checkDescriptor(doc.Config); err != nil {
		return nil, err
	}
	data, err := ReadDocument(ctx, store, doc.Config)
	if err != nil {
		return nil, err
	}
	var config v1.Image
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("the image's configuration %s: %w", doc.Config.Digest, err)
	}
	if len(doc.Layers) == 0 || len(config.RootFS.DiffIDs) != len(doc.Layers) {
		return nil, fmt.Errorf("%s is no image of a container: %d layers, and %d in its configuration", d.Digest, len(doc.Layers), len(config.RootFS.DiffIDs))
	}
	if !platforms.Only(platform).Match(config.Platform) {
		return nil, fmt.Errorf("the image is for %s, the board is %s", plaintext.OneLine(platforms.Format(config.Platform)), platforms.Format(platform))
	}
	if d.MediaType != dockerManifest {
		d.MediaType = v1.MediaTypeImageManifest // which old manifests of OCI do not contain
	}
	d.MediaType = cmp.Or(doc.MediaType, d.MediaType)
	return &Image{
		Platform: config.Platform, Manifest: d, Config: doc.Config, Layers: doc.Layers,
		DiffIDs: config.RootFS.DiffIDs, Store: store,
	}, nil
}

// ReadDocument reads a blob of at most MaxDocumentBytes and verifies its digest.
func ReadDocument(ctx context.Context, store Store, d v1.Descriptor) ([]byte, error) {
	if d.Size > MaxDocumentBytes {
		return nil, fmt.Errorf("%s: more than %d MiB", d.Digest, MaxDocumentBytes>>20)
	}
	blob, err := store.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	data, err := io.ReadAll(io.NewSectionReader(blob, 0, MaxDocumentBytes+1))
	if err != nil {
		return nil, err
	}
	if got := digest.FromBytes(data); got != d.Digest {
		return nil, fmt.Errorf("%s has the digest %s; it is damaged", d.Digest, got)
	}
	return data, nil
}
