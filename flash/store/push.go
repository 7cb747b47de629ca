package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"slipway/flash/fetch"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// atOnce is how many blobs are transferred at the same time.
const atOnce = 3

// Pushed is the result of Push.
type Pushed struct {
	Store     string   `json:"store"`
	Digest    string   `json:"digest"`
	Tags      []string `json:"tags"`
	Board     string   `json:"board"`
	Files     int      `json:"files"`
	SizeBytes int64    `json:"sizeBytes"`
	Sent      []string `json:"sent"` // files that were not there
	SentBytes int64    `json:"sentBytes"`
}

// Push copies the artifact in dir, and its report below reports, into the store that reference
// names. It compresses disk images, sends only missing blobs, and tags last: a tag always names a
// complete artifact. It adds the reference's tag to tags. Without any it makes one by defaultTag.
func Push(ctx context.Context, dir, reports, reference string, tags []string) (Pushed, error) {
	for _, tag := range tags {
		if err := fetch.CheckTag(tag); err != nil {
			return Pushed{}, err
		}
	}
	place, err := fetch.ParsePlace(reference)
	if err == nil && place.Digest != "" {
		err = fmt.Errorf("%q names a digest, and that of an artifact is known only after the push", reference)
	}
	if err != nil {
		return Pushed{}, err
	}
	c, err := readContent(dir, reports)
	if err != nil {
		return Pushed{}, err
	}
	if place.Tag != "" && !slices.Contains(tags, place.Tag) {
		tags = append([]string{place.Tag}, tags...)
	}
	if len(tags) == 0 {
		tags = []string{defaultTag(c.artifact.Board, c.artifact.Key)}
	}
	p := Pushed{Store: place.String(), Tags: tags, Board: c.artifact.Board, Sent: []string{}}
	s, err := open(place, toPush)
	if err == nil {
		defer s.close()
		err = c.pack(ctx, s, tags)
	}
	if err == nil {
		p.Digest = string(digest.FromBytes(c.manifest))
		err = p.send(ctx, s, c)
	}
	if err != nil {
		return p, pushError(place, p.Board, err)
	}
	return p, nil
}

// send puts the missing blobs, several at once, then the tagged manifest, and sets p's counts.
func (p *Pushed) send(ctx context.Context, s Store, c content) error {
	var mu sync.Mutex
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, b := range c.blobs {
		if b.name != "" {
			p.Files, p.SizeBytes = p.Files+1, p.SizeBytes+b.Size
		}
		group.Go(func() error {
			sent, err := putMissing(inner, s, b)
			mu.Lock()
			defer mu.Unlock()
			if sent && b.name != "" {
				p.Sent, p.SentBytes = append(p.Sent, b.name), p.SentBytes+b.Size
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	slices.Sort(p.Sent)
	return s.tag(ctx, c.manifest, p.Tags)
}

// putMissing puts a blob unless the store has it, and shows that as a step. sent is true if it did.
func putMissing(ctx context.Context, s Store, b blob) (sent bool, err error) {
	there, err := s.has(ctx, b.Descriptor)
	if err != nil || there && b.name == "" {
		return false, err
	}
	if b.name == "" {
		return true, s.put(ctx, b, func(int64) {})
	}
	step := progress.Start(ctx, "push "+b.name, b.Size, progress.Bytes)
	if there {
		step.Reuse("the store has it")
		return false, nil
	}
	err = s.put(ctx, b, step.Add)
	step.End("sha256 "+b.Digest.Encoded(), err)
	return err == nil, err
}

// pushError adds the store's name and the next step to an error of Push.
func pushError(place fetch.Place, board string, err error) error {
	err = fmt.Errorf("%s: %w", place, err)
	if errors.Is(err, errChanged) {
		return fmt.Errorf("%w; nothing is tagged\nnext: build %s  # then push it again", err, board)
	}
	return explainStoreError(place, err)
}

// Show prints the result for a person.
func (p Pushed) Show(w io.Writer) error {
	fmt.Fprintf(w, "pushed: %d of %d files, %s of %s\n", len(p.Sent), p.Files, plaintext.SizeText(p.SentBytes), plaintext.SizeText(p.SizeBytes))
	sep := ":"
	for _, tag := range p.Tags {
		fmt.Fprintf(w, "%s%s%s\n", p.Store, sep, tag)
	}
	_, err := fmt.Fprintf(w, "%s@%s\n", p.Store, p.Digest)
	return err
}
