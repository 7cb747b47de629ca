package artifacts

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/opencontainers/go-digest"

	"slipway/layers/bus"
)

// NATS's object store is not used: its client fills one buffer again and again, and sends from it once
// more if the engine has no leader for a moment. The object is wrong then.
const (
	chunkBytes  = 512 << 10
	maxOnTheWay = 16 // chunks that the engine has not acknowledged
)

// chunkOf returns the subject of a chunk.
func chunkOf(upload, number string) string { return "blob." + upload + "." + number }

// blob is the entry of a blob that is whole. A manifest is in its entry, with its media type.
type blob struct {
	Digest   ociregistry.Digest `json:"digest"`
	Size     int64              `json:"size"`
	Upload   string             `json:"upload,omitempty"` // which brought its chunks
	Type     string             `json:"type,omitempty"`
	Manifest []byte             `json:"manifest,omitempty"`
}

// find returns a blob, and the revision of its entry.
func (a *Artifacts) find(ctx context.Context, d ociregistry.Digest) (b blob, revision uint64, err error) {
	e, err := a.blobs.Get(ctx, bus.Token(string(d)))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = ociregistry.ErrBlobUnknown
	}
	if err != nil {
		return b, 0, err
	}
	return b, e.Revision(), json.Unmarshal(e.Value(), &b)
}

// write makes a blob visible, if its entry is at this revision.
func (a *Artifacts) write(ctx context.Context, b blob, revision uint64) error {
	data, err := json.Marshal(b)
	if err == nil {
		_, err = a.blobs.Update(ctx, bus.Token(string(b.Digest)), data, revision, 0)
	}
	return err
}

// renew writes an entry again, so that Collect counts from now, or makes that of a manifest.
func (a *Artifacts) renew(ctx context.Context, d ociregistry.Digest, manifest *blob) (blob, error) {
	for {
		b, revision, err := a.find(ctx, d)
		if manifest != nil && (err == nil || errors.Is(err, ociregistry.ErrBlobUnknown)) {
			b, err = *manifest, nil
		}
		if err == nil {
			err = a.write(ctx, b, revision)
		}
		if !errors.Is(err, bus.ErrConflict) {
			return b, err
		}
	}
}

// GetBlob returns a reader of a blob.
func (a *Artifacts) GetBlob(ctx context.Context, repo string, d ociregistry.Digest) (ociregistry.BlobReader, error) {
	return a.GetBlobRange(ctx, repo, d, 0, -1)
}

// GetBlobRange returns a reader of the bytes from one offset to before another, or to the end.
func (a *Artifacts) GetBlobRange(ctx context.Context, _ string, d ociregistry.Digest, from, to int64) (ociregistry.BlobReader, error) {
	b, _, err := a.find(ctx, d)
	if err != nil {
		return nil, err
	}
	if to < 0 || to > b.Size {
		to = b.Size
	}
	if from > to || from == to && from > 0 {
		return nil, ociregistry.ErrRangeInvalid
	}
	return &reader{ctx: ctx, chunks: a.chunks, blob: b, at: from, to: to, chunk: b.Manifest[min(from, int64(len(b.Manifest))):]}, nil
}

// reader reads a blob, one chunk after the other.
type reader struct {
	ctx    context.Context
	chunks jetstream.Stream
	blob   blob
	at, to int64  // offsets
	chunk  []byte // what is left of one
}

func (r *reader) Close() error { return nil }

func (r *reader) Descriptor() ociregistry.Descriptor {
	return ociregistry.Descriptor{MediaType: cmp.Or(r.blob.Type, "application/octet-stream"), Digest: r.blob.Digest, Size: r.blob.Size}
}

func (r *reader) Read(p []byte) (int, error) {
	if r.at == r.to {
		return 0, io.EOF
	}
	if skip := int(r.at % chunkBytes); len(r.chunk) == 0 {
		m, err := r.chunks.GetLastMsgForSubject(r.ctx, chunkOf(r.blob.Upload, strconv.FormatInt(r.at/chunkBytes, 10)))
		if err == nil && len(m.Data) <= skip {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, fmt.Errorf("read %s at %d: %w", r.blob.Digest, r.at, err)
		}
		r.chunk = m.Data[skip:]
	}
	n := copy(p, r.chunk[:min(int64(len(r.chunk)), r.to-r.at)])
	r.chunk, r.at = r.chunk[n:], r.at+int64(n)
	return n, nil
}

// upload is a blob that comes in one request. Nothing shows its chunks before Commit.
type upload struct {
	a     *Artifacts
	ctx   context.Context
	id    string
	size  int64
	sum   hash.Hash
	chunk []byte
	sent  int // chunks
	acks  []jetstream.PubAckFuture
	shown bool // or perhaps: the engine's answer was lost
}

// PushBlobChunked begins an upload.
func (a *Artifacts) PushBlobChunked(ctx context.Context, _ string, _ int) (ociregistry.BlobWriter, error) {
	select {
	case a.uploads <- struct{}{}:
		return &upload{a: a, ctx: ctx, id: nuid.Next(), sum: sha256.New()}, nil
	default:
		return nil, ociregistry.ErrTooManyRequests
	}
}

// PushBlobChunkedResume begins an upload, too: the client does not choose whose chunks it writes.
func (a *Artifacts) PushBlobChunkedResume(ctx context.Context, repo, _ string, offset int64, _ int) (ociregistry.BlobWriter, error) {
	if offset > 0 {
		return nil, ociregistry.ErrRangeInvalid
	}
	return a.PushBlobChunked(ctx, repo, 0)
}

func (u *upload) ID() string     { return u.id }
func (u *upload) Size() int64    { return u.size }
func (u *upload) ChunkSize() int { return chunkBytes }
func (u *upload) Cancel() error  { return nil } // as Close does it

func (u *upload) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(chunkBytes-len(u.chunk), len(rest))
		u.chunk = append(u.chunk, rest[:n]...)
		u.sum.Write(rest[:n])
		u.size += int64(n)
		if rest = rest[n:]; len(u.chunk) == chunkBytes {
			if err := u.send(maxOnTheWay); err != nil {
				return len(p) - len(rest), err
			}
		}
	}
	return len(p), nil
}

// send sends the chunk to the engine, and waits until at most so many are on their way.
func (u *upload) send(most int) error {
	if len(u.chunk) > 0 {
		m := &nats.Msg{Subject: chunkOf(u.id, strconv.Itoa(u.sent)), Data: u.chunk}
		ack, err := u.a.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
		if err != nil {
			return err
		}
		u.acks, u.sent, u.chunk = append(u.acks, ack), u.sent+1, u.chunk[:0]
	}
	for len(u.acks) > most {
		ack := u.acks[0]
		u.acks = u.acks[1:] // it answers once, so Close must not wait for it again
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return explainFull(err)
		case <-u.ctx.Done():
			return context.Cause(u.ctx)
		}
	}
	return nil
}

// storeFailed is the engine's error code of a message that a stream could not take.
const storeFailed jetstream.ErrorCode = 10077

// explainFull returns an error that no client tries again, if the store is full.
func explainFull(err error) error {
	var api *jetstream.APIError
	if !errors.As(err, &api) || api.ErrorCode != storeFailed {
		return err
	}
	err = fmt.Errorf("the hub has no space for this artifact: %w", err)
	return ociregistry.NewHTTPError(err, http.StatusRequestEntityTooLarge, nil, nil)
}

// Commit makes the blob visible if it has this digest.
func (u *upload) Commit(want ociregistry.Digest) (ociregistry.Descriptor, error) {
	d := ociregistry.Descriptor{Digest: want, Size: u.size}
	if err := u.send(0); err != nil {
		return d, err
	}
	if digest.NewDigest(digest.SHA256, u.sum) != want {
		return d, ociregistry.ErrDigestInvalid
	}
	err := u.a.write(u.ctx, blob{Digest: want, Upload: u.id, Size: u.size}, 0)
	if errors.Is(err, bus.ErrConflict) { // somebody else was first
		return d, nil
	}
	u.shown = true
	return d, err
}

// Close removes an upload that broke. What it cannot remove, Collect does.
func (u *upload) Close() error {
	defer func() { <-u.a.uploads }()
	if u.sent == 0 || u.shown {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), answerLimit)
	defer cancel()
	for _, ack := range u.acks { // a chunk on its way would come after the purge
		select {
		case <-ack.Ok():
		case <-ack.Err():
		case <-ctx.Done():
		}
	}
	return u.a.chunks.Purge(ctx, jetstream.WithPurgeSubject(chunkOf(u.id, "*")))
}
