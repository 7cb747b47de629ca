package fetch

import (
	"context"
	"fmt"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/oci"
	"slipway/layers/plaintext"
)

// openLayout reads the manifest in an OCI image layout, as oras, skopeo and buildah
// write it.
func openLayout(ctx context.Context, ref reference, arch string) (*artifact, error) {
	dir, err := ref.absolutePath()
	if err != nil {
		return nil, err
	}
	layout, err := oci.Open(dir)
	if err != nil {
		return nil, err
	}
	defer layout.Close()
	index, err := layout.Index()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	m, err := findManifest(index, ref)
	if err != nil {
		return nil, err
	}
	read := func(m ocispec.Descriptor) ([]byte, error) { return oci.ReadDocument(ctx, layout, m) }
	text, err := read(m)
	if err != nil {
		return nil, err
	}
	a, err := resolveArtifact(text, ref, arch, read)
	if err == nil {
		a.dir = dir
	}
	return a, err
}

// findManifest returns the manifest that a reference means: by digest, by tag, or the
// only one.
func findManifest(index oci.Document, ref reference) (ocispec.Descriptor, error) {
	var tags []string
	fit := slices.DeleteFunc(slices.Clone(index.Manifests), func(m ocispec.Descriptor) bool {
		tag := m.Annotations[ocispec.AnnotationRefName]
		tags = append(tags, plaintext.OneLine(tag))
		return ref.tag != "" && tag != ref.tag || ref.sum != "" && string(m.Digest) != ref.sum
	})
	if len(fit) != 1 {
		return ocispec.Descriptor{}, fmt.Errorf("%d manifests of that name in %s; it has the tags %q", len(fit), ocispec.ImageIndexFile, tags)
	}
	return fit[0], nil
}
