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
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/sealed"
	"slipway/layers/plaintext"
)

// imageName is the annotation that some programs use for an image's full name.
const imageName = "io.containerd.image.name"

// Source is an open archive or layout.
type Source struct {
	path  string
	tree  fileTree
	close func() error
}

// Open opens a folder with an OCI layout, an archive of one, or an archive of docker save. It does
// not look into a folder. Close the Source after the image is consumed.
func Open(path string) (*Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return &Source{path, layoutFolder(path), func() error { return nil }}, nil
	}
	f, err := sealed.Open(path)
	if err != nil {
		return nil, err
	}
	return OpenArchive(f)
}

// OpenArchive returns the Source of an open archive, whose Close closes f. An error closes f too.
func OpenArchive(f *sealed.File) (*Source, error) {
	t, err := readTar(f, f.SizeBytes())
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return &Source{f.Name(), t, f.Close}, nil
}

// Close closes the source's files.
func (s *Source) Close() error { return s.close() }

// Image returns the named image for a platform. Without a name the source must have only one image.
func (s *Source) Image(ctx context.Context, name string, platform v1.Platform) (*Image, error) {
	read := s.readLayout
	switch f, err := s.tree.openFile(v1.ImageLayoutFile); {
	case err == nil:
		f.Close()
	case errors.Is(err, fs.ErrNotExist):
		read = s.readDocker
	}
	image, err := read(ctx, name, platform)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return image, nil
}

// Index reads the index.json of a layout, and checks the layout's version.
func (s *Source) Index() (index v1.Index, err error) {
	var layout v1.ImageLayout
	if err := s.readJSON(v1.ImageLayoutFile, &layout); err != nil {
		return index, fmt.Errorf("not an OCI layout: %w", err)
	}
	if !strings.HasPrefix(layout.Version, "1.") {
		return index, fmt.Errorf("%s names version %q, want 1.x", v1.ImageLayoutFile, plaintext.OneLine(layout.Version))
	}
	data, err := s.readFile(v1.ImageIndexFile)
	if err != nil {
		return index, err
	}
	if _, err = ParseDocument(data); err == nil { // which checks its limits
		err = json.Unmarshal(data, &index)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", v1.ImageIndexFile, err)
	}
	return index, err
}

// readLayout finds the named image in the layout's index and returns it for the platform.
func (s *Source) readLayout(ctx context.Context, name string, platform v1.Platform) (*Image, error) {
	index, err := s.Index()
	if err != nil {
		return nil, err
	}
	top, called, err := s.pickEntry(index.Manifests, name, platform)
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

// localRegistry is the registry in the full name of an image whose name is incomplete.
const localRegistry = "slipway.local/"

var plainTag = plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// fullName returns the name under which a container engine stores the image: name, which FullName
// completes if the manifest is docker's. If name is "", or only a tag in an OCI layout, fullName
// makes one of localRegistry and the source's file name.
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

// FullName completes an image's name as docker does: docker.io/library/busybox:latest for busybox.
func FullName(name string) (string, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", fmt.Errorf("%q is no name for an image: %w; give one with --name", plaintext.OneLine(name), err)
	}
	return reference.TagNameOnly(named).String(), nil
}

// pickEntry returns the index entry with a name, and its entryName. Without a name, it accepts only
// entries of one name. If several entries fit, it chooses by platform.
func (s *Source) pickEntry(all []v1.Descriptor, name string, platform v1.Platform) (top v1.Descriptor, called string, err error) {
	var fit []v1.Descriptor
	var names []string
	for _, d := range all {
		n := entryName(d)
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
		return fit[0], entryName(fit[0]), nil
	case name == "" && len(names) > 1:
		return top, "", fmt.Errorf("it has several images, %q; name one with #NAME", names)
	}
	top, err = choosePlatform(fit, platform)
	return top, entryName(top), err
}

func sameDigest(all []v1.Descriptor) bool {
	return !slices.ContainsFunc(all, func(d v1.Descriptor) bool { return d.Digest != all[0].Digest })
}

// entryName returns the most complete name of an entry, without control characters; "" if none.
func entryName(d v1.Descriptor) string {
	for _, key := range []string{imageName, v1.AnnotationRefName} {
		if n := d.Annotations[key]; n != "" {
			return plaintext.OneLine(n)
		}
	}
	return ""
}

// Open opens a blob of a layout.
func (s *Source) Open(_ context.Context, d v1.Descriptor) (Blob, error) {
	return s.openSized("blobs/sha256/"+d.Digest.Encoded(), d)
}

// openSized opens a file whose size must match its descriptor.
func (s *Source) openSized(name string, d v1.Descriptor) (Blob, error) {
	f, err := s.tree.openFile(name)
	if err != nil {
		return nil, err
	}
	if f.size != d.Size {
		f.Close()
		return nil, fmt.Errorf("%s: %d bytes, its manifest says %d: it is damaged, or was not copied whole", name, f.size, d.Size)
	}
	return f, nil
}

// readJSON decodes a file of at most MaxDocumentBytes into v.
func (s *Source) readJSON(name string, v any) error {
	data, err := s.readFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readFile reads a file of at most MaxDocumentBytes.
func (s *Source) readFile(name string) ([]byte, error) {
	f, err := s.tree.openFile(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.size > MaxDocumentBytes {
		return nil, fmt.Errorf("%s: more than %d MiB", name, MaxDocumentBytes>>20)
	}
	return io.ReadAll(io.NewSectionReader(f, 0, f.size))
}

// fileTree is the files of a source.
type fileTree interface {
	openFile(name string) (file, error)
}

// file is one file of a source.
type file struct {
	io.ReaderAt
	io.Closer
	size int64
}

// layoutFolder is a layout in a folder.
type layoutFolder string

// openFile opens a file of the layout. It refuses a name or a link that leads out of the folder.
func (d layoutFolder) openFile(name string) (file, error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return file{}, err
	}
	defer root.Close()
	if _, err := root.Stat(name); err != nil {
		return file{}, fmt.Errorf("%s: no file of the image: %w", plaintext.OneLine(name), errors.Unwrap(err))
	}
	f, err := sealed.Open(filepath.Join(string(d), filepath.FromSlash(name)))
	if err != nil {
		return file{}, err
	}
	return file{f, f, f.SizeBytes()}, nil
}

// File returns a Blob with the content of f.
func File(f *sealed.File) Blob { return file{f, f, f.SizeBytes()} }
