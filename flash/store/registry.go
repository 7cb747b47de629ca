package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	orascontent "oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"

	"slipway/flash/fetch"
)

// registry is a Store in a repository of a registry.
type registry struct{ *fetch.Repository }

func (r *registry) close() { r.Close() }

func (r *registry) has(ctx context.Context, d v1.Descriptor) (there bool, err error) {
	err = r.Try(ctx, func(ctx context.Context, repo *remote.Repository) error {
		there, err = repo.Blobs().Exists(ctx, d)
		return err
	})
	return there, err
}

// put uploads a blob. If the blob has another digest or size, the error is errChanged.
func (r *registry) put(ctx context.Context, b blob, sent func(int64)) error {
	err := r.Upload(ctx, b.Descriptor, b.name, b.open, sent)
	if errors.Is(err, fetch.ErrOther) {
		err = fmt.Errorf("%s: %w", b.name, errChanged)
	}
	return err
}

// tag pushes the manifest once for each tag.
func (r *registry) tag(ctx context.Context, manifest []byte, tags []string) error {
	d := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}
	for _, tag := range tags {
		err := r.Try(ctx, func(ctx context.Context, repo *remote.Repository) error {
			return repo.PushReference(ctx, d, bytes.NewReader(manifest), tag)
		})
		if err != nil {
			return fmt.Errorf("tag %s: %w", tag, err)
		}
	}
	return nil
}

func (r *registry) manifest(ctx context.Context, name string) ([]byte, error) {
	return r.Manifest(ctx, name)
}

func (r *registry) read(ctx context.Context, d v1.Descriptor) (data []byte, err error) {
	err = r.Try(ctx, func(ctx context.Context, repo *remote.Repository) error {
		data, err = orascontent.FetchAll(ctx, repo.Blobs(), d)
		return err
	})
	return data, err
}

func (r *registry) get(ctx context.Context, d v1.Descriptor, name, dir string) (string, error) {
	f, err := r.Fetch(ctx, d, name, dir)
	return f.Path, err
}

// maxTags is the limit for the tags of a repository.
const maxTags = 20_000

// tags returns all tags. An invalid tag, or more than maxTags, is an error.
func (r *registry) tags(ctx context.Context) (all []tagged, err error) {
	err = r.Try(ctx, func(ctx context.Context, repo *remote.Repository) error {
		all = nil
		return repo.Tags(ctx, "", func(page []string) error {
			slices.Sort(page)
			for _, tag := range page {
				if err := fetch.CheckTag(tag); err != nil {
					return err
				}
				all = append(all, tagged{tag: tag})
			}
			if len(all) > maxTags {
				return fmt.Errorf("more than %d tags", maxTags)
			}
			return nil
		})
	})
	return all, err
}

// remove deletes the manifests from the registry; with dry, none. One that is gone is no error. It
// frees no bytes: the registry's own collector does.
func (r *registry) remove(ctx context.Context, digests []string, dry bool) (int64, error) {
	for _, d := range digests {
		if dry {
			break
		}
		err := r.Try(ctx, func(ctx context.Context, repo *remote.Repository) error {
			return repo.Manifests().Delete(ctx, v1.Descriptor{Digest: digest.Digest(d)})
		})
		switch fetch.StatusOf(err) {
		case http.StatusNotFound: // somebody else removed it
		case http.StatusMethodNotAllowed:
			return 0, fmt.Errorf("%w: this registry deletes nothing\nnext: repeat the line  # after starting the registry with REGISTRY_STORAGE_DELETE_ENABLED=true (storage: delete: enabled: true in config.yml)", err)
		default:
			if err != nil {
				return 0, err
			}
		}
	}
	return 0, nil
}
