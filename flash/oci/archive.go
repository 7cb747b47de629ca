package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/layers/plaintext"
)

const (
	maxEntries   = 100_000
	maxNameBytes = 4096
	maxLinks     = 8
)

// archiveFiles maps the names in an open tar archive to their offsets.
type archiveFiles struct {
	in      *io.SectionReader
	entries map[string]archiveEntry
}

// archiveEntry is a file's offset and size in an archive, or the name that it links to.
type archiveEntry struct {
	offset, size int64
	link         string
}

// readTar records each file's offset in a tar archive, by the headers. It refuses a compressed or
// empty archive, more than maxEntries entries, and names over maxNameBytes.
func readTar(f io.ReaderAt, size int64) (*archiveFiles, error) {
	if err := rejectCompressed(f); err != nil {
		return nil, err
	}
	a := &archiveFiles{in: io.NewSectionReader(f, 0, size), entries: map[string]archiveEntry{}}
	r := tar.NewReader(a.in)
	for {
		h, err := r.Next()
		if err == io.EOF && len(a.entries) > 0 {
			return a, nil
		}
		if err == io.EOF {
			return nil, errors.New("an empty archive, or none of tar")
		}
		if err != nil {
			return nil, fmt.Errorf("not an archive of tar, or not a whole one: %w", err)
		}
		if len(a.entries) >= maxEntries || len(h.Name) > maxNameBytes {
			return nil, fmt.Errorf("more than %d files in the archive, or names over %d bytes", maxEntries, maxNameBytes)
		}
		if err := a.addEntry(h); err != nil {
			return nil, err
		}
	}
}

// addEntry records a file's offset and size, or a link's target. It ignores other entries.
func (a *archiveFiles) addEntry(h *tar.Header) error {
	name := path.Clean(h.Name)
	switch h.Typeflag {
	case tar.TypeReg:
		offset, err := a.in.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		a.entries[name] = archiveEntry{offset: offset, size: h.Size}
	case tar.TypeSymlink: // older releases of docker link to a layer that occurs twice
		a.entries[name] = archiveEntry{link: path.Join(path.Dir(name), h.Linkname)}
	case tar.TypeLink:
		a.entries[name] = archiveEntry{link: path.Clean(h.Linkname)}
	}
	return nil
}

// rejectCompressed refuses gzip, zstd, xz and bzip2: packed blobs cannot be read one by one.
func rejectCompressed(f io.ReaderAt) error {
	head := make([]byte, 6)
	if _, err := f.ReadAt(head, 0); err != nil && err != io.EOF {
		return err
	}
	for magic, program := range map[string]string{"\x1f\x8b": "gunzip", "\x28\xb5\x2f\xfd": "unzstd", "\xfd7zXZ\x00": "unxz", "BZh": "bunzip2"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return fmt.Errorf("it is packed; unpack it first: %s", program)
		}
	}
	return nil
}

// openFile returns the file with a name, and follows fewer than maxLinks links to it.
func (a *archiveFiles) openFile(name string) (file, error) {
	for range maxLinks {
		p, ok := a.entries[name]
		if !ok {
			return file{}, fmt.Errorf("%s: %w in the archive", plaintext.OneLine(name), fs.ErrNotExist)
		}
		if p.link == "" {
			return file{io.NewSectionReader(a.in, p.offset, p.size), io.NopCloser(nil), p.size}, nil
		}
		name = p.link
	}
	return file{}, fmt.Errorf("%s: links that lead nowhere", plaintext.OneLine(name))
}

// savedImage is an entry of the manifest.json of docker save.
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// readDocker returns the image of an archive of docker save from before its OCI layouts. Such an
// archive has no OCI manifest, so readDocker makes one.
func (s *Source) readDocker(ctx context.Context, name string, platform v1.Platform) (*Image, error) {
	var all []savedImage
	if err := s.readJSON("manifest.json", &all); errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("neither an OCI layout nor an archive of docker save: it has no oci-layout and no manifest.json")
	} else if err != nil {
		return nil, err
	}
	one, err := pickSaved(all, name)
	if err != nil {
		return nil, err
	}
	store := &savedStore{source: s, files: map[digest.Digest]string{}}
	doc, err := store.makeManifest(one)
	if err != nil {
		return nil, err
	}
	if store.manifestText, err = json.Marshal(doc); err != nil {
		return nil, err
	}
	top := v1.Descriptor{MediaType: dockerManifest, Digest: digest.FromBytes(store.manifestText), Size: int64(len(store.manifestText))}
	image, err := Find(ctx, store, top, platform)
	if err != nil {
		return nil, err
	}
	if name == "" && len(one.RepoTags) > 0 {
		name = one.RepoTags[0]
	}
	image.Name, err = s.fullName(name, image)
	return image, err
}

// pickSaved returns the image with that name; without a name, the only image.
func pickSaved(all []savedImage, name string) (savedImage, error) {
	var names []string
	for _, one := range all {
		if name != "" && slices.Contains(one.RepoTags, name) {
			return one, nil
		}
		for _, tag := range one.RepoTags {
			names = append(names, plaintext.OneLine(tag))
		}
	}
	switch {
	case name != "":
		return savedImage{}, fmt.Errorf("it has no image %q; it has %q", name, names)
	case len(all) != 1:
		return savedImage{}, fmt.Errorf("it has %d images, %q; name one with #NAME", len(all), names)
	}
	return all[0], nil
}

// savedStore is the Store of a docker save archive: its files' digests, and a manifest made of it.
type savedStore struct {
	source       *Source
	files        map[digest.Digest]string
	manifestText []byte
}

// Open opens the manifest, or the archive's file with d's digest and size.
func (s *savedStore) Open(_ context.Context, d v1.Descriptor) (Blob, error) {
	if d.Digest == digest.FromBytes(s.manifestText) {
		return Bytes(s.manifestText), nil
	}
	name, ok := s.files[d.Digest]
	if !ok {
		return nil, fmt.Errorf("%s is not in the archive", d.Digest)
	}
	return s.source.openSized(name, d)
}

// makeManifest returns a manifest, of docker's type, of an image of at most maxLayers layers, and
// records its files for Open. The image's configuration must list as many layers.
func (s *savedStore) makeManifest(one savedImage) (v1.Manifest, error) {
	doc := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: dockerManifest}
	if len(one.Layers) > maxLayers {
		return doc, fmt.Errorf("an image with more than %d layers", maxLayers)
	}
	var config v1.Image
	if err := s.source.readJSON(path.Clean(one.Config), &config); err != nil {
		return doc, err
	}
	if len(config.RootFS.DiffIDs) != len(one.Layers) {
		return doc, fmt.Errorf("%d layers, and %d in the image's configuration", len(one.Layers), len(config.RootFS.DiffIDs))
	}
	var err error
	if doc.Config, err = s.describeBlob(one.Config, ""); err != nil {
		return doc, err
	}
	doc.Config.MediaType = dockerConfig
	for i, name := range one.Layers {
		layer, err := s.describeBlob(name, config.RootFS.DiffIDs[i])
		if err != nil {
			return doc, err
		}
		doc.Layers = append(doc.Layers, layer)
	}
	return doc, nil
}

// describeBlob returns the descriptor of a file of the archive, with a layer's media type, and
// records its name for Open. An uncompressed file gets the digest unpacked, which the layer's
// consumer verifies. It computes the digest of others, or if unpacked is "".
func (s *savedStore) describeBlob(name string, unpacked digest.Digest) (v1.Descriptor, error) {
	name = path.Clean(name)
	f, err := s.source.tree.openFile(name)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer f.Close()
	d := v1.Descriptor{Digest: unpacked, Size: f.size, MediaType: dockerLayer}
	head := make([]byte, 2)
	if n, _ := f.ReadAt(head, 0); n == 2 && head[0] == 0x1f && head[1] == 0x8b {
		d.Digest, d.MediaType = "", dockerLayerGzip
	}
	if d.Digest == "" {
		if d.Digest, err = digest.SHA256.FromReader(io.NewSectionReader(f, 0, f.size)); err != nil {
			return d, err
		}
	}
	s.files[d.Digest] = name
	return d, checkDescriptor(d)
}
