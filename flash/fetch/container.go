package fetch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/oci"
	"slipway/layers/localfile"
)

// Container is a container image at its source. It fetches a registry's blob when it opens that.
type Container struct {
	source *oci.Source    // of archives and layouts
	name   string         // of one of several in these
	remote *registryStore // of registries
}

// OpenContainer opens a container image: oci:// of a registry, an OCI layout (a folder, or
// oci-dir:), or an archive of a layout or of docker save. It fetches an archive that any reference
// of Open names, and manifests and layers when read. #NAME selects an image, except of a registry.
func OpenContainer(ctx context.Context, text string, o Options) (*Container, error) {
	where, name, _ := strings.Cut(text, "#")
	ref, err := parseReference(where)
	if err != nil {
		return nil, err
	}
	c := &Container{name: name}
	switch ref.kind {
	case kindOCI:
		if name != "" {
			return nil, fmt.Errorf("%s: a tag or a digest names an image of a registry; leave out #%s", text, name)
		}
		c.remote = newRegistryStore(ref, o)
	case kindLayout:
		c.name = cmp.Or(c.name, ref.tag)
		c.source, err = openLocalImage(ref)
	case kindPath:
		c.source, err = openLocalImage(ref)
	default:
		c.source, err = fetchArchive(ctx, where, o)
	}
	return c, err
}

// openLocalImage opens an archive or a layout of this machine.
func openLocalImage(ref reference) (*oci.Source, error) {
	path, err := ref.absolutePath()
	if err != nil {
		return nil, err
	}
	source, err := oci.Open(path)
	if err != nil {
		return nil, localfile.ExplainUnreadable(path, err)
	}
	return source, nil
}

// fetchArchive fetches the whole archive that a reference, text, names, and opens it.
func fetchArchive(ctx context.Context, text string, o Options) (*oci.Source, error) {
	origin, err := Open(ctx, text, o)
	if err != nil {
		return nil, err
	}
	defer origin.Close()
	file, err := origin.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	return oci.OpenArchive(file.Content)
}

// Close closes the archive or the connections. Files of the cache stay.
func (c *Container) Close() error {
	if c.remote != nil {
		c.remote.origin.Close()
		return nil
	}
	return c.source.Close()
}

// Image returns the image for a platform. From a registry it fetches manifests and configuration.
func (c *Container) Image(ctx context.Context, platform v1.Platform) (*oci.Image, error) {
	if c.source != nil {
		return c.source.Image(ctx, c.name, platform)
	}
	image, err := c.remote.findImage(ctx, platform)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.remote.origin.ref.text, err)
	}
	return image, nil
}

// registryStore reads the blobs of one repository of a registry.
type registryStore struct {
	origin    *Origin
	registry  *registry
	documents sync.Map // the bytes of the fetched manifests, by digest
}

func newRegistryStore(ref reference, o Options) *registryStore {
	r := newRegistry(ref)
	return &registryStore{origin: &Origin{ref: ref, opt: o, from: r}, registry: r}
}

// findImage returns the image for a platform, with its full name.
func (s *registryStore) findImage(ctx context.Context, platform v1.Platform) (*oci.Image, error) {
	ref := s.origin.ref
	name, at := ref.tag, ":"
	if ref.sum != "" {
		name, at = ref.sum, "@"
	}
	top, err := s.fetchManifest(ctx, name)
	if err != nil {
		return nil, err
	}
	image, err := oci.Find(ctx, s, top, platform)
	if err == nil {
		image.Name = ref.host + "/" + ref.repo + at + name
	}
	return image, err
}

// fetchManifest fetches a manifest by tag or digest into s.documents. It returns digest and size.
func (s *registryStore) fetchManifest(ctx context.Context, name string) (v1.Descriptor, error) {
	data, err := s.registry.fetchManifest(ctx, name)
	if err != nil {
		return v1.Descriptor{}, err
	}
	d := v1.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))}
	s.documents.Store(d.Digest, data)
	return d, nil
}

// Open fetches a manifest into memory, or any other blob into the cache. It may run concurrently.
// Layers that claim a manifest's media type are limited to a manifest's size.
func (s *registryStore) Open(ctx context.Context, d v1.Descriptor) (oci.Blob, error) {
	data, here := s.documents.Load(d.Digest)
	if !here && slices.Contains(oci.DocumentTypes, d.MediaType) {
		if _, err := s.fetchManifest(ctx, string(d.Digest)); err != nil {
			return nil, err
		}
		data, here = s.documents.Load(d.Digest)
	}
	if here {
		return oci.Bytes(data.([]byte)), nil
	}
	hex := d.Digest.Encoded()
	file, err := s.origin.downloadFile(ctx, fileRequest{
		ref: s.origin.ref, file: File{Name: hex[:16], Reference: s.origin.ref.text}, sha256: hex, sizeBytes: d.Size, sized: true,
	})
	if err != nil {
		return nil, err
	}
	return oci.File(file.Content), nil
}
