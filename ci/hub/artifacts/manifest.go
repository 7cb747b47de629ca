package artifacts

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/opencontainers/go-digest"

	"slipway/flash/oci"
	"slipway/layers/bus"
)

// A manifest is in all repositories, because its digest says all. A tag is a key of its repository. The
// value is the digest.

// GetManifest returns a reader of a manifest.
func (a *Artifacts) GetManifest(ctx context.Context, repo string, d ociregistry.Digest) (ociregistry.BlobReader, error) {
	r, err := a.GetBlob(ctx, repo, d)
	if errors.Is(err, ociregistry.ErrBlobUnknown) || err == nil && r.(*reader).blob.Type == "" {
		return nil, ociregistry.ErrManifestUnknown
	}
	return r, err
}

// GetTag returns a reader of the manifest with a tag.
func (a *Artifacts) GetTag(ctx context.Context, repo, tag string) (ociregistry.BlobReader, error) {
	e, err := a.tags.Get(ctx, bus.Key(repo, tag))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = ociregistry.ErrManifestUnknown
	}
	if err != nil {
		return nil, err
	}
	return a.GetManifest(ctx, repo, ociregistry.Digest(e.Value()))
}

// PushManifest stores a manifest whose blobs are all there, and tags it.
func (a *Artifacts) PushManifest(ctx context.Context, repo, tag string, data []byte, mediaType string) (ociregistry.Descriptor, error) {
	d := ociregistry.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	err := a.checkManifest(ctx, data, mediaType)
	if err == nil {
		_, err = a.renew(ctx, d.Digest, &blob{Digest: d.Digest, Size: d.Size, Type: mediaType, Manifest: data})
	}
	if err == nil && tag != "" {
		_, err = a.tags.Put(ctx, bus.Key(repo, tag), []byte(d.Digest)) // the last one wins
	}
	return d, err
}

// checkManifest refuses what is no manifest, and one whose blobs are not there or have other sizes.
// Collect does not remove the blobs before there is a tag, as they are new then.
func (a *Artifacts) checkManifest(ctx context.Context, data []byte, mediaType string) error {
	doc, err := oci.ParseDocument(data)
	if err == nil && (!slices.Contains(oci.DocumentTypes, mediaType) || doc.MediaType != "" && doc.MediaType != mediaType) {
		err = errors.New("its type is another one, or none of a manifest")
	}
	if err != nil {
		return ociregistry.NewError(err.Error(), ociregistry.ErrManifestInvalid.Code(), nil)
	}
	for _, part := range partsOf(doc) {
		b, err := a.renew(ctx, part.Digest, nil)
		if err == nil && b.Size != part.Size || errors.Is(err, ociregistry.ErrBlobUnknown) {
			why := fmt.Sprintf("%s of %d bytes is not there", part.Digest, part.Size)
			err = ociregistry.NewError(why, ociregistry.ErrManifestBlobUnknown.Code(), nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// partsOf returns all that a manifest or an index names.
func partsOf(doc oci.Document) []ociregistry.Descriptor {
	parts := slices.Concat(doc.Layers, doc.Manifests)
	if doc.Config.Digest != "" {
		parts = append(parts, doc.Config)
	}
	return parts
}

// DeleteManifest removes a manifest's tags of a repository, and the manifest unless another repository
// has a tag of it.
func (a *Artifacts) DeleteManifest(ctx context.Context, repo string, d ociregistry.Digest) error {
	if _, err := a.GetManifest(ctx, repo, d); err != nil {
		return err
	}
	all, err := list(ctx, a.tags, "*.*")
	elsewhere := false
	for _, e := range all {
		switch {
		case string(e.Value()) != string(d):
		case strings.HasPrefix(e.Key(), bus.Key(repo)+"."):
			err = errors.Join(err, a.tags.Delete(ctx, e.Key(), e.Revision()))
		default:
			elsewhere = true
		}
	}
	if err != nil || elsewhere {
		return err
	}
	return a.blobs.KeyValue.Delete(ctx, bus.Token(string(d))) // Collect removes the chunks
}

// Tags returns the tags of a repository after one of them, sorted.
func (a *Artifacts) Tags(ctx context.Context, repo, after string) iter.Seq2[string, error] {
	all, err := list(ctx, a.tags, bus.Key(repo)+".*")
	if err == nil && len(all) == 0 {
		err = ociregistry.ErrNameUnknown
	}
	if err != nil {
		return ociregistry.ErrorSeq[string](err)
	}
	var tags []string
	for _, e := range all {
		_, tag, _ := strings.Cut(e.Key(), ".")
		tags = append(tags, bus.Name(tag))
	}
	slices.Sort(tags)
	return ociregistry.SliceSeq(slices.DeleteFunc(tags, func(tag string) bool { return tag <= after }))
}

// list returns the keys of a bucket that match. A list that breaks off is an error.
func list(ctx context.Context, b *bus.Bucket, keys string) (all []jetstream.KeyValueEntry, err error) {
	w, err := b.Watch(ctx, keys, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, err
	}
	defer w.Stop() //nolint:errcheck // it ends with ctx, too
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case e, ok := <-w.Updates():
			if !ok {
				return nil, errors.New("the engine ended a list of keys")
			}
			if e == nil {
				return all, nil
			}
			all = append(all, e)
		}
	}
}
