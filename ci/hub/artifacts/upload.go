package artifacts

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/opencontainers/go-digest"
)

// NATS's own client is not used to write objects: it fills one buffer again and again, and sends from
// it once more if the engine has no leader for a moment. The object is wrong then.
const (
	maxOnTheWay = 16 // chunks that the engine has not acknowledged
	maxUploads  = 64
	idleFor     = 10 * time.Minute // is how long an upload waits for its next piece
)

// upload is a blob that comes in one or several requests, one at a time. The chunks are in the engine,
// without an object that names them.
type upload struct {
	a    *Artifacts
	id   string
	size atomic.Int64

	busy   sync.Mutex // of the request that has it, for all below
	ctx    context.Context
	last   time.Time // when the last request ended
	sum    hash.Hash
	chunk  []byte
	chunks int
	first  uint64
	acks   []jetstream.PubAckFuture
	err    error // that broke it
}

// PushBlobChunked begins an upload.
func (a *Artifacts) PushBlobChunked(ctx context.Context, repo string, _ int) (ociregistry.BlobWriter, error) {
	if len(repo) > maxRepositoryBytes {
		return nil, ociregistry.ErrNameInvalid
	}
	a.endIdle(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.uploads) >= maxUploads {
		return nil, ociregistry.ErrTooManyRequests
	}
	u := &upload{a: a, id: nuid.Next(), ctx: ctx, sum: sha256.New()}
	u.busy.Lock()
	a.uploads[u.id] = u
	return u, nil
}

// endIdle ends the uploads that have waited for too long.
func (a *Artifacts) endIdle(ctx context.Context) {
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.uploads))
	a.mu.Unlock()
	for _, u := range all {
		if u.busy.TryLock() {
			if u.ctx = ctx; time.Since(u.last) >= idleFor {
				_ = u.Cancel() // Collect removes what stays
			}
			u.busy.Unlock()
		}
	}
}

// PushBlobChunkedResume goes on with an upload at an offset; -1 and 0 are where it ended.
func (a *Artifacts) PushBlobChunkedResume(ctx context.Context, _, id string, offset int64, _ int) (ociregistry.BlobWriter, error) {
	a.mu.Lock()
	u := a.uploads[id]
	a.mu.Unlock()
	switch {
	case u == nil:
		return nil, ociregistry.ErrBlobUploadUnknown
	case !u.busy.TryLock():
		return nil, ociregistry.ErrTooManyRequests
	}
	u.ctx = ctx
	if offset > 0 && offset != u.size.Load() {
		u.busy.Unlock()
		return nil, ociregistry.ErrRangeInvalid
	}
	return u, nil
}

func (u *upload) ID() string     { return u.id }
func (u *upload) Size() int64    { return u.size.Load() }
func (u *upload) ChunkSize() int { return chunkBytes }

// Close lets the next request have the upload.
func (u *upload) Close() error {
	u.last = time.Now()
	u.busy.Unlock()
	return nil
}

func (u *upload) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(chunkBytes-len(u.chunk), len(rest))
		u.chunk = append(u.chunk, rest[:n]...)
		u.sum.Write(rest[:n])
		u.size.Add(int64(n))
		rest = rest[n:]
		if len(u.chunk) < chunkBytes {
			break
		}
		if err := u.send(maxOnTheWay); err != nil {
			return len(p) - len(rest), err
		}
	}
	return len(p), u.err
}

// send sends the chunk to the engine, and waits until at most so many are on their way.
func (u *upload) send(most int) error {
	if len(u.chunk) > 0 && u.err == nil {
		m := &nats.Msg{Subject: chunksOf(u.id), Data: u.chunk, Header: nats.Header{indexHeader: {strconv.Itoa(u.chunks)}}}
		var ack jetstream.PubAckFuture
		ack, u.err = u.a.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
		u.acks, u.chunks, u.chunk = append(u.acks, ack), u.chunks+1, u.chunk[:0]
	}
	for u.err == nil && len(u.acks) > most {
		select {
		case ack := <-u.acks[0].Ok():
			if u.first == 0 {
				u.first = ack.Sequence
			}
		case err := <-u.acks[0].Err():
			u.err = err
		case <-u.ctx.Done():
			return context.Cause(u.ctx) // a later request can go on
		}
		u.acks = u.acks[1:]
	}
	return u.err
}

// Commit makes the blob visible if it has this digest, and ends the upload.
func (u *upload) Commit(want ociregistry.Digest) (ociregistry.Descriptor, error) {
	err := u.send(0)
	d := ociregistry.Descriptor{Digest: digest.NewDigest(digest.SHA256, u.sum), Size: u.Size()}
	if err == nil && d.Digest != want {
		err = ociregistry.ErrDigestInvalid
	}
	if err != nil {
		return d, errors.Join(err, u.Cancel())
	}
	err = u.a.write(u.ctx, u.info(d), 0)
	u.end()
	if err == nil {
		return d, nil
	}
	// Somebody else was first, or the engine's answer was lost.
	o, unknown := u.a.find(u.ctx, d.Digest)
	if unknown != nil {
		return d, err // Collect removes the chunks, unless the object appears
	}
	if o.NUID != u.id {
		_ = u.Cancel()
	}
	return d, nil
}

// info is the object of the upload.
func (u *upload) info(d ociregistry.Descriptor) jetstream.ObjectInfo {
	return jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{
			Name: string(d.Digest), Metadata: map[string]string{firstKey: strconv.FormatUint(u.first, 10)},
			Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkBytes},
		},
		Bucket: store, NUID: u.id, Size: uint64(d.Size), Chunks: uint32(u.chunks), Digest: jetstream.GetObjectDigestValue(u.sum),
	}
}

// Cancel removes an upload.
func (u *upload) Cancel() error {
	u.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), answerLimit)
	defer cancel()
	return u.a.stream.Purge(ctx, jetstream.WithPurgeSubject(chunksOf(u.id)))
}

// end forgets an upload. A request that waits for it gets an error.
func (u *upload) end() {
	u.err = ociregistry.ErrBlobUploadUnknown
	u.a.mu.Lock()
	defer u.a.mu.Unlock()
	delete(u.a.uploads, u.id)
}
