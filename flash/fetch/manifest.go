package fetch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/oci"
	"slipway/layers/plaintext"
)

var errNoFile = fmt.Errorf("no such file in the artifact: %w", fs.ErrNotExist)

// layerTypes are the layer types of container images.
var layerTypes = []string{
	ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd,
	"application/vnd.docker.image.rootfs.diff.tar.gzip",
}

var errContainerImage = errors.New(`it is a container image, and Slipway takes no disk out of its layers
next: skopeo --help  # copy the image to a folder, unpack its layer by tar, and flash the disk image in it; or push the disk by oras push`)

// unpackMark is the annotation with which ORAS marks a folder that it pushed as a tar archive.
const unpackMark = "io.deis.oras.content.unpack"

// blob is one file of an artifact.
type blob struct {
	name      string // "" if the artifact does not name it
	sha256    string
	sizeBytes int64
}

// artifact is an OCI manifest: named files, as ORAS pushes them.
type artifact struct {
	title string // which file the reference names; "" leaves the choice to findFile
	blobs []blob
}

// resolveArtifact parses a manifest and returns its files. If it is an index, resolveArtifact reads
// the manifest for arch. It returns an error if ref's file is missing or ambiguous.
func resolveArtifact(text []byte, ref reference, arch string, read func(ocispec.Descriptor) ([]byte, error)) (*artifact, error) {
	d, err := oci.ParseDocument(text)
	if err != nil {
		return nil, err
	}
	if d.IsIndex() {
		m, err := choosePlatform(d, arch)
		if err != nil {
			return nil, err
		}
		if text, err = read(m); err != nil {
			return nil, err
		}
		if d, err = oci.ParseDocument(text); err != nil {
			return nil, err
		}
	}
	a, err := artifactOf(d, ref.title)
	if err == nil {
		_, err = a.findFile(ref.title)
	}
	return a, err
}

// choosePlatform returns the index's only manifest for an architecture, attestations aside. An
// index with a single manifest matches every architecture.
func choosePlatform(index oci.Document, arch string) (ocispec.Descriptor, error) {
	all := slices.DeleteFunc(slices.Clone(index.Manifests), func(m ocispec.Descriptor) bool {
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
	return fit[0], nil
}

// artifactOf returns the files of a manifest; one without a name becomes disk.img. It refuses an
// index, a container image, no files, and unsafe or duplicate names. It stores title unchecked.
func artifactOf(d oci.Document, title string) (*artifact, error) {
	a, seen := &artifact{title: title}, map[string]bool{}
	if d.IsIndex() {
		return nil, errors.New("an index inside an index")
	}
	for _, l := range d.Layers {
		b := blob{name: l.Annotations[ocispec.AnnotationTitle], sha256: l.Digest.Encoded(), sizeBytes: l.Size}
		if b.name != "" && (SafeFileName(b.name) != b.name || l.Annotations[unpackMark] == "true") {
			return nil, fmt.Errorf("%q in the manifest is no name of a file; folders are not taken", plaintext.OneLine(b.name))
		}
		if b.name == "" && slices.Contains(layerTypes, l.MediaType) {
			return nil, errContainerImage
		}
		if b.name = cmp.Or(b.name, "disk.img"); seen[b.name] {
			return nil, fmt.Errorf("the manifest has two files with the name %q", b.name)
		}
		seen[b.name] = true
		a.blobs = append(a.blobs, b)
	}
	if len(a.blobs) == 0 {
		return nil, errors.New("the manifest names no files")
	}
	return a, nil
}

// isCompanionFile reports whether a file usually lies beside an image, such as a signature or a
// block map: by its ending, or because it begins with SHA256SUM in upper or lower case.
func isCompanionFile(name string) bool {
	endings := []string{".bmap", ".sig", ".asc", ".json", ".txt", ".md", ".sha256", ".spdx"}
	return slices.Contains(endings, path.Ext(name)) || strings.HasPrefix(strings.ToUpper(name), "SHA256SUM")
}

// PackedEnding is the suffix that package store adds to the title of a file that it compresses.
const PackedEnding = ".zst"

// findFile returns the file with a title, or else with the title and PackedEnding. Without a title
// it returns the image: the only file, or the only one that is no companion.
func (a *artifact) findFile(title string) (blob, error) {
	var names []string
	named := func(name string) bool {
		return slices.ContainsFunc(a.blobs, func(b blob) bool { return b.name == name })
	}
	if title != "" && !named(title) && named(title+PackedEnding) {
		title += PackedEnding
	}
	fit := slices.DeleteFunc(slices.Clone(a.blobs), func(b blob) bool {
		names = append(names, b.name)
		return title != "" && b.name != title || title == "" && len(a.blobs) > 1 && isCompanionFile(b.name)
	})
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case title != "":
		return blob{}, fmt.Errorf("%s: %w; the artifact has %s", title, errNoFile, strings.Join(names, ", "))
	}
	return blob{}, fmt.Errorf("which of its files is the image? It has %s; name one with #FILE", strings.Join(names, ", "))
}
