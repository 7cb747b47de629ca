package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/layers/lazy"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// imageName is where programs that know more than OCI keep an image's whole name.
const imageName = "io.containerd.image.name"

// Source is an archive or a layout that is open.
type Source struct {
	path  string
	tree  tree
	close func() error
}

// Open opens a folder of OCI's image layout, an archive of one, or an archive as
// docker save writes it. Close it when the image was taken.
func Open(path string) (*Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return &Source{path, folder(path), func() error { return nil }}, nil
	}
	f, err := localfile.Open(path)
	if err != nil {
		return nil, err
	}
	t, err := readTar(f, info.Size())
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Source{path, t, f.Close}, nil
}

// Close ends all that was opened of the source.
func (s *Source) Close() error { return s.close() }

// Image is the image with a name, for a platform. Without a name there must be only
// one.
func (s *Source) Image(ctx context.Context, name string, platform v1.Platform) (*Image, error) {
	read := s.layout
	switch f, err := s.tree.open(v1.ImageLayoutFile); {
	case err == nil:
		f.Close()
	case errors.Is(err, fs.ErrNotExist):
		read = s.docker
	}
	image, err := read(ctx, name, platform)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return image, nil
}

// Index is the index of a layout.
func (s *Source) Index() (Document, error) {
	var layout v1.ImageLayout
	var index Document
	if err := s.readJSON(v1.ImageLayoutFile, &layout); err != nil {
		return index, fmt.Errorf("not an OCI layout: %w", err)
	}
	if !strings.HasPrefix(layout.Version, "1.") {
		return index, fmt.Errorf("%s names version %q, want 1.x", v1.ImageLayoutFile, plaintext.OneLine(layout.Version))
	}
	data, err := s.read(v1.ImageIndexFile)
	if err != nil {
		return index, err
	}
	if index, err = ParseDocument(data); err != nil {
		return index, fmt.Errorf("%s: %w", v1.ImageIndexFile, err)
	}
	return index, nil
}

func (s *Source) layout(ctx context.Context, name string, platform v1.Platform) (*Image, error) {
	index, err := s.Index()
	if err != nil {
		return nil, err
	}
	top, called, err := s.pick(index.Manifests, name, platform)
	if err != nil {
		return nil, err
	}
	image, err := Find(ctx, s, top, platform)
	if err != nil {
		return nil, err
	}
	image.Name, err = s.fullName(called, image)
	return image, err
}

// localRegistry stands before names that an image leaves incomplete.
const localRegistry = "slipway.local/"

var plainTag = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// fullName is the name under which an engine keeps the image. What a layout calls it
// stands; a tag alone, or nothing, is completed by the layout's own name.
func (s *Source) fullName(name string, image *Image) (string, error) {
	base := strings.ToLower(strings.TrimSuffix(filepath.Base(s.path), filepath.Ext(s.path)))
	switch {
	case name == "":
		return FullName(localRegistry + base + "@" + string(image.Manifest.Digest))
	case image.Manifest.MediaType == dockerManifest:
		return FullName(name)
	case plainTag().MatchString(name):
		return FullName(localRegistry + base + ":" + name)
	}
	_, err := FullName(name)
	return name, err
}

// FullName completes an image's name as docker does: busybox is
// docker.io/library/busybox:latest.
func FullName(name string) (string, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", fmt.Errorf("%q is no name for an image: %w; give one with -name", plaintext.OneLine(name), err)
	}
	return reference.TagNameOnly(named).String(), nil
}

// pick is the entry of a layout's index with a name. An index that names several
// platforms of one image, as some programs write it, leaves the choice to choose.
func (s *Source) pick(all []v1.Descriptor, name string, platform v1.Platform) (top v1.Descriptor, called string, err error) {
	var fit []v1.Descriptor
	var names []string
	for _, d := range all {
		n := nameOf(d)
		if n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
		if name == "" || n == name || d.Annotations[v1.AnnotationRefName] == name {
			fit = append(fit, d)
		}
	}
	switch {
	case len(fit) == 0:
		return top, "", fmt.Errorf("it has no image %q; it has %q", name, names)
	case len(fit) == 1 || sameDigest(fit):
		return fit[0], nameOf(fit[0]), nil
	case name == "" && len(names) > 1:
		return top, "", fmt.Errorf("it has several images, %q; name one with #NAME", names)
	}
	top, err = choose(fit, platform)
	return top, nameOf(top), err
}

func sameDigest(all []v1.Descriptor) bool {
	return !slices.ContainsFunc(all, func(d v1.Descriptor) bool { return d.Digest != all[0].Digest })
}

// nameOf is the most that an entry says of its name, of what can be shown.
func nameOf(d v1.Descriptor) string {
	for _, key := range []string{imageName, v1.AnnotationRefName} {
		if n := d.Annotations[key]; n != "" {
			return plaintext.OneLine(n)
		}
	}
	return ""
}

// Open is a blob of a layout.
func (s *Source) Open(_ context.Context, d v1.Descriptor) (Blob, error) {
	return s.sized("blobs/sha256/"+d.Digest.Encoded(), d)
}

func (s *Source) sized(name string, d v1.Descriptor) (Blob, error) {
	f, err := s.tree.open(name)
	if err != nil {
		return nil, err
	}
	if f.size != d.Size {
		f.Close()
		return nil, fmt.Errorf("%s: %d bytes, its manifest says %d: it is damaged, or was not copied whole", name, f.size, d.Size)
	}
	return f, nil
}

func (s *Source) readJSON(name string, v any) error {
	data, err := s.read(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (s *Source) read(name string) ([]byte, error) {
	f, err := s.tree.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.size > MaxDocumentBytes {
		return nil, fmt.Errorf("%s: more than %d MiB", name, MaxDocumentBytes>>20)
	}
	return io.ReadAll(io.NewSectionReader(f, 0, f.size))
}

// tree is the files of a source.
type tree interface {
	open(name string) (file, error)
}

// file is one of them.
type file struct {
	io.ReaderAt
	io.Closer
	size int64
}

// folder is a layout that is not in an archive.
type folder string

func (d folder) open(name string) (file, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return file{}, fmt.Errorf("%s: no file of the image", plaintext.OneLine(name))
	}
	return openFile(filepath.Join(string(d), filepath.FromSlash(name)))
}

// File is a blob that is a file of its own.
func File(path string) (Blob, error) { return openFile(path) }

func openFile(path string) (file, error) {
	f, err := localfile.Open(path)
	if err != nil {
		return file{}, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err != nil {
		f.Close()
		return file{}, err
	}
	return file{f, f, info.Size()}, nil
}

// sum is the digest of a file that no manifest names.
func sum(f file) (digest.Digest, error) {
	return digest.SHA256.FromReader(io.NewSectionReader(f, 0, f.size))
}
