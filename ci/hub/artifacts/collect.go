package artifacts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/flash/oci"
	"slipway/layers/bus"
)

const (
	keepFor   = 30 * 24 * time.Hour
	orphanFor = 24 * time.Hour // chunks that no entry names
)

// Collect removes the blobs that no tag has named for 30 days, and what uploads left that did not end.
// Pushes may go on meanwhile. It removes nothing if it cannot read all manifests.
func (a *Artifacts) Collect(ctx context.Context) error {
	tags, err := list(ctx, a.tags, "*.*")
	seen := map[ociregistry.Digest]bool{}
	for _, e := range tags {
		err = errors.Join(err, a.keep(ctx, seen, ociregistry.Digest(e.Value())))
	}
	if err != nil {
		return fmt.Errorf("read the manifests: %w", err)
	}
	all, err := list(ctx, a.blobs, "*")
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, e := range all {
		var b blob
		if err := json.Unmarshal(e.Value(), &b); err != nil {
			return fmt.Errorf("read the entry %s: %w", e.Key(), err)
		}
		if seen[b.Digest] || time.Since(e.Created()) < a.keepFor {
			named[chunkOf(b.Upload, "0")] = true
			continue
		}
		// A push that needs it has written it again by now, or does not find it.
		switch err := a.blobs.Delete(ctx, e.Key(), e.Revision()); {
		case errors.Is(err, bus.ErrConflict):
			named[chunkOf(b.Upload, "0")] = true
		case err != nil:
			return err
		}
	}
	return a.removeOrphans(ctx, named)
}

// keep renews a blob and all that it names, so that the time of each begins when it loses its tag.
func (a *Artifacts) keep(ctx context.Context, seen map[ociregistry.Digest]bool, d ociregistry.Digest) error {
	if seen[d] {
		return nil
	}
	seen[d] = true
	b, err := a.renew(ctx, d, nil)
	if errors.Is(err, ociregistry.ErrBlobUnknown) {
		return nil
	}
	if err != nil || b.Manifest == nil {
		return err
	}
	doc, err := oci.ParseDocument(b.Manifest)
	for _, part := range partsOf(doc) {
		err = errors.Join(err, a.keep(ctx, seen, part.Digest))
	}
	return err
}

// removeOrphans removes the chunks of uploads whose first one has another subject than those.
func (a *Artifacts) removeOrphans(ctx context.Context, named map[string]bool) error {
	info, err := a.chunks.Info(ctx, jetstream.WithSubjectFilter(chunkOf("*", "0")))
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		if named[subject] {
			continue
		}
		m, err := a.chunks.GetLastMsgForSubject(ctx, subject)
		if err == nil && time.Since(m.Time) >= a.orphanFor {
			err = a.chunks.Purge(ctx, jetstream.WithPurgeSubject(subject[:len(subject)-1]+"*"))
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return err
		}
	}
	return nil
}
