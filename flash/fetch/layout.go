package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

var errNoFile = fmt.Errorf("no such file in the artifact: %w", fs.ErrNotExist)

// openLayout reads the manifest in a folder of the form of OCI's image layout, as
// oras, skopeo and buildah write it.
func openLayout(ref reference, arch string) (*artifact, error) {
	dir, err := ref.absolute()
	if err != nil {
		return nil, err
	}
	if err := checkLayout(dir); err != nil {
		return nil, err
	}
	data, err := readFile(filepath.Join(dir, ocispec.ImageIndexFile))
	if err != nil {
		return nil, err
	}
	index, err := parseDocument(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ocispec.ImageIndexFile, err)
	}
	m, err := entry(index, ref)
	if err != nil {
		return nil, err
	}
	d, err := readDocument(dir, m)
	if err == nil && d.isIndex() {
		if m, err = d.choose(arch); err == nil {
			d, err = readDocument(dir, m)
		}
	}
	if err != nil {
		return nil, err
	}
	a, err := d.artifact(ref.title)
	if err != nil {
		return nil, err
	}
	a.dir = dir
	_, err = a.find(ref.title)
	return a, err
}

func checkLayout(dir string) error {
	data, err := readFile(filepath.Join(dir, ocispec.ImageLayoutFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("not an OCI layout: %w", err)
	}
	if err != nil {
		return err
	}
	var layout ocispec.ImageLayout
	if err := json.Unmarshal(data, &layout); err != nil || !strings.HasPrefix(layout.Version, "1.") {
		return fmt.Errorf("%s names version %q, want 1.x", filepath.Join(dir, ocispec.ImageLayoutFile), printable(layout.Version))
	}
	return nil
}

// entry is the manifest that a reference means: by digest, by tag, or the only one.
func entry(index document, ref reference) (ocispec.Descriptor, error) {
	var tags []string
	fit := slices.DeleteFunc(slices.Clone(index.Manifests), func(m ocispec.Descriptor) bool {
		tag := m.Annotations[ocispec.AnnotationRefName]
		tags = append(tags, printable(tag))
		return ref.tag != "" && tag != ref.tag || ref.sum != "" && string(m.Digest) != ref.sum
	})
	if len(fit) != 1 {
		return ocispec.Descriptor{}, fmt.Errorf("%d manifests of that name in %s; it has the tags %q", len(fit), ocispec.ImageIndexFile, tags)
	}
	return fit[0], checkDescriptor(fit[0], maxManifestBytes)
}

func readDocument(dir string, m ocispec.Descriptor) (document, error) {
	path := filepath.Join(dir, "blobs", "sha256", m.Digest.Encoded())
	data, err := readFile(path)
	if err != nil {
		return document{}, err
	}
	if got := digest.FromBytes(data); got != m.Digest {
		return document{}, fmt.Errorf("%s: its digest is %s; the layout is damaged", path, got)
	}
	return parseDocument(data)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxManifestBytes+1))
	if err == nil && len(data) > maxManifestBytes {
		err = fmt.Errorf("%s: more than %d MiB", path, maxManifestBytes>>20)
	}
	return data, err
}
