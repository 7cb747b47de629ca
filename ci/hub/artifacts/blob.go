package artifacts

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/layers/run"
)

// The messages of an object are those of NATS's own clients, so that "nats object" reads them. Each
// chunk also says which one it is, and the object says where its first one is in the stream. A reader
// begins in the middle with it: the sequence of chunk k is that of the first plus k, or higher if
// other objects came in at the same time.
const (
	chunkBytes  = 512 << 10
	indexHeader = "Slipway-Chunk"
	firstKey    = "first"
	typeKey     = "type" // the media type of a manifest
)

func chunksOf(upload string) string { return "$O." + store + ".C." + upload }

func objectOf(d ociregistry.Digest) string {
	return "$O." + store + ".M." + base64.URLEncoding.EncodeToString([]byte(d))
}

// object is a blob that is whole.
type object struct {
	jetstream.ObjectInfo
	sequence uint64
	at       time.Time // of the engine
}

// find returns the object with this digest.
func (a *Artifacts) find(ctx context.Context, d ociregistry.Digest) (object, error) {
	o, err := a.read(ctx, objectOf(d))
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && o.Deleted {
		err = ociregistry.ErrBlobUnknown
	}
	return o, err
}

func (a *Artifacts) read(ctx context.Context, subject string) (object, error) {
	m, err := a.stream.GetLastMsgForSubject(ctx, subject)
	if err != nil {
		return object{}, err
	}
	o := object{sequence: m.Sequence, at: m.Time}
	return o, json.Unmarshal(m.Data, &o.ObjectInfo)
}

// write makes an object visible, if its last message is the one with this sequence; 0 is none.
func (a *Artifacts) write(ctx context.Context, o jetstream.ObjectInfo, sequence uint64) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	m := &nats.Msg{Subject: objectOf(ociregistry.Digest(o.Name)), Data: data, Header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}}}
	for {
		_, err = a.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(sequence))
		if codeOf(err) != jetstream.JSErrCodeStreamWrongLastSequenceConstant { // another write is in flight
			return err
		}
		if err := run.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// renew writes an object again, so that Collect counts from now. mediaType is that of a manifest, or "".
func (a *Artifacts) renew(ctx context.Context, d ociregistry.Digest, mediaType string) (object, error) {
	for {
		o, err := a.find(ctx, d)
		if err != nil {
			return o, err
		}
		if mediaType != "" {
			o.Metadata[typeKey] = mediaType
		}
		if err := a.write(ctx, o.ObjectInfo, o.sequence); codeOf(err) != jetstream.JSErrCodeStreamWrongLastSequence {
			return o, err
		}
	}
}

// codeOf returns the engine's code of an error, or 0.
func codeOf(err error) jetstream.ErrorCode {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode
	}
	return 0
}

// GetBlob returns a reader of a blob.
func (a *Artifacts) GetBlob(ctx context.Context, repo string, d ociregistry.Digest) (ociregistry.BlobReader, error) {
	return a.GetBlobRange(ctx, repo, d, 0, -1)
}

// GetBlobRange returns a reader of the bytes from one offset to before another, or to the end.
func (a *Artifacts) GetBlobRange(ctx context.Context, _ string, d ociregistry.Digest, from, to int64) (ociregistry.BlobReader, error) {
	o, err := a.find(ctx, d)
	if err != nil {
		return nil, err
	}
	if to < 0 || to > int64(o.Size) {
		to = int64(o.Size)
	}
	if from > to || from == to && from > 0 {
		return nil, ociregistry.ErrRangeInvalid
	}
	first, _ := strconv.ParseUint(o.Metadata[firstKey], 10, 64) // 0 also finds the first
	r := &reader{ctx: ctx, a: a, object: o, at: from, to: to, sequence: first + uint64(from/chunkBytes)}
	return r, nil
}

// reader reads an object, one chunk after the other.
type reader struct {
	ctx      context.Context
	a        *Artifacts
	object   object
	at, to   int64  // offsets
	sequence uint64 // the next chunk is not before it
	chunk    []byte // what is left of one
}

func (r *reader) Close() error { return nil }

func (r *reader) Descriptor() ociregistry.Descriptor {
	mediaType := cmp.Or(r.object.Metadata[typeKey], "application/octet-stream")
	return ociregistry.Descriptor{MediaType: mediaType, Digest: ociregistry.Digest(r.object.Name), Size: int64(r.object.Size)}
}

func (r *reader) Read(p []byte) (int, error) {
	if r.at == r.to {
		return 0, io.EOF
	}
	if len(r.chunk) == 0 {
		if err := r.next(); err != nil {
			return 0, fmt.Errorf("read %s: %w", r.object.Name, err)
		}
	}
	n := copy(p, r.chunk[:min(int64(len(r.chunk)), r.to-r.at)])
	r.chunk, r.at = r.chunk[n:], r.at+int64(n)
	return n, nil
}

// next reads the chunk with the offset.
func (r *reader) next() error {
	for want := r.at / chunkBytes; ; {
		m, err := r.a.stream.GetMsg(r.ctx, r.sequence, jetstream.WithGetMsgSubject(chunksOf(r.object.NUID)))
		if err != nil {
			return err
		}
		r.sequence = m.Sequence + 1
		index, err := strconv.ParseInt(m.Header.Get(indexHeader), 10, 64)
		skip := r.at - want*chunkBytes
		switch {
		case err != nil || index > want || index == want && int64(len(m.Data)) <= skip:
			return fmt.Errorf("chunk %d is not there", want)
		case index == want:
			r.chunk = m.Data[skip:]
			return nil
		}
	}
}
