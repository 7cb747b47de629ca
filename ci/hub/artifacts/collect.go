package artifacts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/flash/oci"
	"slipway/layers/localfile"
)

const (
	keepFor   = 30 * 24 * time.Hour
	orphanFor = 24 * time.Hour // chunks that no object names
)

// Collect removes the blobs that no tag has named for 30 days, and what uploads left that did not end.
// Pushes may go on meanwhile. It removes nothing if it cannot read all manifests.
func (a *Artifacts) Collect(ctx context.Context) error {
	kept, err := a.keepNamed(ctx)
	if err != nil {
		return fmt.Errorf("read the manifests: %w", err)
	}
	all, err := a.objects(ctx)
	if err != nil {
		return err
	}
	for subject, o := range all {
		if _, is := kept[o.Name]; is || time.Since(o.at) < a.keepFor {
			continue
		}
		// A push that needs it has written it again by now, or does not find it.
		if err := a.stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(o.sequence+1)); err != nil {
			return err
		}
	}
	return a.removeOrphans(ctx)
}

// objects returns all objects, by subject.
func (a *Artifacts) objects(ctx context.Context) (map[string]object, error) {
	info, err := a.stream.Info(ctx, jetstream.WithSubjectFilter(objectOf("")+"*"))
	if err != nil {
		return nil, err
	}
	all := map[string]object{}
	for subject := range info.State.Subjects {
		o, err := a.read(ctx, subject)
		if err == nil {
			all[subject] = o
		} else if !errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, err
		}
	}
	return all, nil
}

// keepNamed returns the digests of the manifests that have a tag or are new, and of all that they
// name. It renews those with a tag, so that their time begins when they lose it.
func (a *Artifacts) keepNamed(ctx context.Context) (kept map[string]bool, err error) {
	tags, err := a.listTags(ctx, "*.*")
	if err != nil {
		return nil, err
	}
	kept = map[string]bool{}
	for _, e := range tags {
		_, err := a.renew(ctx, ociregistry.Digest(e.Value()), "")
		if err == nil {
			err = a.keep(ctx, kept, ociregistry.Digest(e.Value()))
		}
		if err != nil && !errors.Is(err, ociregistry.ErrBlobUnknown) {
			return nil, err
		}
	}
	all, err := a.objects(ctx)
	for _, o := range all {
		if o.Metadata[typeKey] != "" && time.Since(o.at) < a.keepFor {
			err = errors.Join(err, a.keep(ctx, kept, ociregistry.Digest(o.Name)))
		}
	}
	return kept, err
}

// keep adds a manifest and all that it names to kept; true means that its own parts are there, too.
func (a *Artifacts) keep(ctx context.Context, kept map[string]bool, d ociregistry.Digest) error {
	if kept[string(d)] {
		return nil
	}
	kept[string(d)] = true
	blob, err := a.GetBlob(ctx, "", d)
	if errors.Is(err, ociregistry.ErrBlobUnknown) || err == nil && blob.Descriptor().Size > oci.MaxDocumentBytes {
		return nil
	}
	if err != nil {
		return err
	}
	data, err := localfile.ReadAll(blob, string(d), oci.MaxDocumentBytes)
	if err != nil {
		return err
	}
	doc, err := oci.ParseDocument(data)
	if err != nil {
		return nil // an index may name anything
	}
	for _, part := range partsOf(doc) {
		if _, is := kept[string(part.Digest)]; !is {
			kept[string(part.Digest)] = false
		}
	}
	for _, m := range doc.Manifests {
		err = errors.Join(err, a.keep(ctx, kept, m.Digest))
	}
	return err
}

// removeOrphans removes the chunks that no object names.
func (a *Artifacts) removeOrphans(ctx context.Context) error {
	all, err := a.objects(ctx)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, o := range all {
		named[chunksOf(o.NUID)] = true
	}
	info, err := a.stream.Info(ctx, jetstream.WithSubjectFilter(chunksOf("*")))
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		if named[subject] {
			continue
		}
		m, err := a.stream.GetLastMsgForSubject(ctx, subject)
		if err == nil && time.Since(m.Time) >= a.orphanFor {
			err = a.stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return err
		}
	}
	return nil
}
