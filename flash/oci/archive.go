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

// archived is the files of an archive, which stays open: nothing is unpacked.
type archived struct {
	in    *io.SectionReader
	parts map[string]part
}

// part is where a file lies in an archive, or what it is another name of.
type part struct {
	offset, size int64
	link         string
}

// readTar notes where each file of an archive lies. Seeking over their content, it
// reads headers alone.
func readTar(f io.ReaderAt, size int64) (*archived, error) {
	if err := refusePacked(f); err != nil {
		return nil, err
	}
	a := &archived{in: io.NewSectionReader(f, 0, size), parts: map[string]part{}}
	r := tar.NewReader(a.in)
	for {
		h, err := r.Next()
		if err == io.EOF && len(a.parts) > 0 {
			return a, nil
		}
		if err == io.EOF {
			return nil, errors.New("an empty archive, or none of tar")
		}
		if err != nil {
			return nil, fmt.Errorf("not an archive of tar, or not a whole one: %w", err)
		}
		if len(a.parts) >= maxEntries || len(h.Name) > maxNameBytes {
			return nil, fmt.Errorf("more than %d files in the archive, or names over %d bytes", maxEntries, maxNameBytes)
		}
		if err := a.add(h); err != nil {
			return nil, err
		}
	}
}

func (a *archived) add(h *tar.Header) error {
	name := path.Clean(h.Name)
	switch h.Typeflag {
	case tar.TypeReg:
		offset, err := a.in.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		a.parts[name] = part{offset: offset, size: h.Size}
	case tar.TypeSymlink: // docker's older releases name a layer twice so
		a.parts[name] = part{link: path.Join(path.Dir(name), h.Linkname)}
	case tar.TypeLink:
		a.parts[name] = part{link: path.Clean(h.Linkname)}
	}
	return nil
}

// refusePacked tells a packed archive: its blobs cannot be read one by one.
func refusePacked(f io.ReaderAt) error {
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

func (a *archived) open(name string) (file, error) {
	for range maxLinks {
		p, ok := a.parts[name]
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

// saved is an entry of the manifest.json of docker save.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// docker reads what docker save wrote before it wrote OCI's layout. It has no manifest
// of the form that containerd keeps, so that one is made of it here.
func (s *Source) docker(ctx context.Context, name string, platform v1.Platform) (*Image, error) {
	var all []saved
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
	doc, err := store.manifest(one)
	if err != nil {
		return nil, err
	}
	top, err := store.keep(doc)
	if err != nil {
		return nil, err
	}
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

func pickSaved(all []saved, name string) (saved, error) {
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
		return saved{}, fmt.Errorf("it has no image %q; it has %q", name, names)
	case len(all) != 1:
		return saved{}, fmt.Errorf("it has %d images, %q; name one with #NAME", len(all), names)
	}
	return all[0], nil
}

// savedStore is the blobs of docker save, which it names by other things than their
// digests, and the manifest that was made of them.
type savedStore struct {
	source *Source
	files  map[digest.Digest]string
	made   []byte
}

func (s *savedStore) Open(_ context.Context, d v1.Descriptor) (Blob, error) {
	if d.Digest == digest.FromBytes(s.made) {
		return Bytes(s.made), nil
	}
	name, ok := s.files[d.Digest]
	if !ok {
		return nil, fmt.Errorf("%s is not in the archive", d.Digest)
	}
	return s.source.sized(name, d)
}

func (s *savedStore) manifest(one saved) (v1.Manifest, error) {
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
	if doc.Config, err = s.describe(one.Config, ""); err != nil {
		return doc, err
	}
	doc.Config.MediaType = dockerConfig
	for i, name := range one.Layers {
		layer, err := s.describe(name, config.RootFS.DiffIDs[i])
		if err != nil {
			return doc, err
		}
		doc.Layers = append(doc.Layers, layer)
	}
	return doc, nil
}

// describe finds out what a file is called as a blob. A layer that is not packed has
// the digest that the configuration gives; who takes it proves that.
func (s *savedStore) describe(name string, unpacked digest.Digest) (v1.Descriptor, error) {
	name = path.Clean(name)
	f, err := s.source.tree.open(name)
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
		if d.Digest, err = sum(f); err != nil {
			return d, err
		}
	}
	s.files[d.Digest] = name
	return d, check(d)
}

func (s *savedStore) keep(doc v1.Manifest) (v1.Descriptor, error) {
	var err error
	if s.made, err = json.Marshal(doc); err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: dockerManifest, Digest: digest.FromBytes(s.made), Size: int64(len(s.made))}, nil
}
