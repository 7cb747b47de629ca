package store

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"slipway/flash/fetch"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Entry is a manifest in a store, with all of its tags.
type Entry struct {
	Tags      []string  `json:"tags"`
	Digest    string    `json:"digest"`
	Board     string    `json:"board,omitempty"`
	Arch      string    `json:"arch,omitempty"`
	Key       string    `json:"key,omitempty"`
	Built     time.Time `json:"built,omitzero"`
	SizeBytes int64     `json:"sizeBytes,omitempty"`
	Commit    string    `json:"commit,omitempty"`
	Source    string    `json:"source,omitempty"`
	Signed    bool      `json:"signed"`          // it has a signature; "evidence" verifies it
	Other     string    `json:"other,omitempty"` // why it is not an artifact that Slipway pushed

	manifest v1.Manifest
}

// List returns the manifests of a store, the newest first.
func List(ctx context.Context, reference string) ([]Entry, error) {
	s, place, err := openWhole(reference, toPull)
	if err != nil {
		return nil, err
	}
	defer s.close()
	all, err := list(ctx, s)
	if err != nil {
		return nil, listError(place, err)
	}
	return all, nil
}

// listError adds the store's name and the next step to an error of list.
func listError(place fetch.Place, err error) error {
	err = fmt.Errorf("%s: %w", place, err)
	if fetch.StatusOf(err) == 404 {
		return fmt.Errorf("%w\nnext: curl -I https://%s/v2/  # look for a typing error in the name, or push an artifact first", err, place.Host)
	}
	return explainStoreError(place, err)
}

const readersAtOnce = 8

// list reads the manifests of all tags and returns them, the newest first. It shows the progress.
func list(ctx context.Context, s Store) ([]Entry, error) {
	tags, err := s.tags(ctx)
	if err != nil {
		return nil, err
	}
	step := progress.Start(ctx, "list", int64(len(tags)), "tags")
	all, err := readEntries(ctx, s, tags, step)
	step.End(fmt.Sprintf("%d artifacts", len(all)), err)
	slices.SortFunc(all, func(a, b Entry) int {
		return cmp.Or(b.Built.Compare(a.Built), cmp.Compare(a.Digest, b.Digest))
	})
	return all, err
}

// readEntries reads the manifests of all tags, several at once, and joins the tags of each. It
// leaves out manifests that a registry no longer has.
func readEntries(ctx context.Context, s Store, tags []tagged, step *progress.Step) ([]Entry, error) {
	var mu sync.Mutex
	byDigest := map[string]*Entry{}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(readersAtOnce)
	for _, t := range tags {
		group.Go(func() error {
			data, err := s.manifest(inner, cmp.Or(t.digest, t.tag))
			step.Add(1)
			if fetch.StatusOf(err) == 404 {
				return nil // it was removed since
			}
			if err != nil {
				return err
			}
			e := entryOf(data)
			mu.Lock()
			defer mu.Unlock()
			if byDigest[e.Digest] == nil {
				byDigest[e.Digest] = &e
			}
			if t.tag != "" {
				known := byDigest[e.Digest]
				known.Tags = append(known.Tags, t.tag)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var all []Entry
	for _, e := range byDigest {
		slices.Sort(e.Tags)
		all = append(all, *e)
	}
	return all, nil
}

// entryOf parses a manifest that anybody may have written. The values are not verified: they are
// shown, and Pull verifies them. If Slipway did not push it, only Other says why.
func entryOf(data []byte) Entry {
	e := Entry{Digest: string(digest.FromBytes(data)), Tags: []string{}}
	m, err := parseManifest(data)
	if err != nil {
		e.Other = err.Error()
		return e
	}
	said := func(key string) string { return plaintext.OneLine(plaintext.Clean(m.Annotations[key], maxShown)) }
	e.manifest = m
	e.Board, e.Arch, e.Key = said(boardKey), said(archKey), said(keyKey)
	e.Commit, e.Source = said(v1.AnnotationRevision), said(v1.AnnotationSource)
	e.Built, _ = time.Parse(time.RFC3339, m.Annotations[v1.AnnotationCreated]) // zero is the oldest
	for _, l := range m.Layers {
		e.SizeBytes += l.Size
		e.Signed = e.Signed || slices.Contains(images.SignatureEndings, strings.TrimPrefix(nameOf(l), images.ArtifactName))
	}
	return e
}

const maxShown = 200

// Show prints entries for a person.
func Show(w io.Writer, all []Entry) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TAGS\tBOARD\tBUILT\tSIZE\tCOMMIT\tSIGNED")
	for _, e := range all {
		fmt.Fprintln(tw, e.row())
	}
	return tw.Flush()
}

// row returns the columns of an entry.
func (e Entry) row() string {
	tags := cmp.Or(strings.Join(e.Tags, ","), e.Digest)
	if e.Other != "" {
		return tags + "\t" + e.Other
	}
	built := plaintext.Either(e.Built.IsZero(), "unknown", e.Built.UTC().Format("2006-01-02 15:04"))
	commit := cmp.Or(e.Commit, "-")
	return strings.Join([]string{tags, cmp.Or(e.Board, "-"), built, plaintext.SizeText(e.SizeBytes), commit[:min(len(commit), 12)], plaintext.Either(e.Signed, "yes", "no")}, "\t")
}
