package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/layers/run"
)

// ErrConflict means that a key is not at the revision that a write named: somebody else changed it.
var ErrConflict = errors.New("it was changed meanwhile")

// Bucket is a bucket of keys with compare-and-set.
type Bucket struct {
	jetstream.KeyValue
	js     jetstream.JetStream
	stream jetstream.Stream
}

// Retries counts the writes that this process repeated because the engine did not know yet.
var Retries atomic.Int64

// NewBucket makes a bucket, unless it is there. ttl is how long a key lives after its last write; 0
// is for ever.
func NewBucket(ctx context.Context, js jetstream.JetStream, name string, replicas int, ttl time.Duration) (*Bucket, error) {
	c := jetstream.KeyValueConfig{Bucket: name, Replicas: replicas, TTL: ttl, LimitMarkerTTL: time.Minute}
	kv, err := js.CreateOrUpdateKeyValue(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("make the bucket %s: %w", name, err)
	}
	stream, err := js.Stream(ctx, "KV_"+name)
	if err != nil {
		return nil, fmt.Errorf("open the bucket %s: %w", name, err)
	}
	return &Bucket{kv, js, stream}, nil
}

// Update writes a key that is at this revision, 0 for a key that is not there, and returns its new
// revision. It returns ErrConflict if the key is at another one. ttl is how long the key lives after
// this write; 0 is what its bucket says. Nothing else writes keys.
//
// A cluster's leader refuses a write for a moment while it has another one in flight (error 10164),
// and an acknowledgement can be lost. Only the key itself says what happened then.
func (b *Bucket) Update(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	opts := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(revision), jetstream.WithRetryAttempts(0)}
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(ttl))
	}
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		msg := &nats.Msg{Subject: "$KV." + b.Bucket() + "." + key, Data: value}
		ack, err := b.js.PublishMsg(ctx, msg, opts...)
		if err == nil {
			return ack.Sequence, nil
		}
		mayBeGone := revision == 0 && errors.Is(explain(err), ErrConflict) // expired or removed
		if !isUnsure(err) && !mayBeGone || ctx.Err() != nil {
			return 0, fmt.Errorf("write the key %s: %w", key, explain(err))
		}
		Retries.Add(1)
		now, err := b.read(ctx, key)
		switch {
		case err == nil && now.gone && revision == 0:
			return b.Update(ctx, key, value, now.revision, ttl)
		case err != nil && ctx.Err() != nil:
			return 0, fmt.Errorf("read the key %s: %w", key, err)
		case err != nil || now.revision == revision: // the engine has no leader, or the write was lost
		case bytes.Equal(now.value, value) && now.revision > revision:
			return now.revision, nil
		case now.revision > revision:
			return 0, fmt.Errorf("write the key %s: %w", key, ErrConflict)
		}
		if err := run.Sleep(ctx, wait); err != nil {
			return 0, fmt.Errorf("write the key %s: %w", key, err)
		}
	}
}

// state is what a key holds at a revision; 0 is a key that is not there.
type state struct {
	value    []byte
	revision uint64
	gone     bool
}

// read reads a key at the stream's leader, or at a follower, which may be behind. The revision of a
// key that was removed, or whose time is over, is that of the engine's mark.
func (b *Bucket) read(ctx context.Context, key string) (state, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m, err := b.stream.GetLastMsgForSubject(ctx, "$KV."+b.Bucket()+"."+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return state{}, nil
	}
	if err != nil {
		return state{}, err
	}
	gone := m.Header.Get("KV-Operation") != "" || m.Header.Get("Nats-Marker-Reason") != ""
	return state{m.Data, m.Sequence, gone}, nil
}

// Delete removes a key that is at this revision.
func (b *Bucket) Delete(ctx context.Context, key string, revision uint64) error {
	return explain(b.KeyValue.Delete(ctx, key, jetstream.LastRevision(revision)))
}

// The engine's error codes of a write at a wrong revision.
const (
	wrongRevision   jetstream.ErrorCode = 10071 // the key is at another one
	unknownRevision jetstream.ErrorCode = 10164 // another write of the key is in flight
)

// isUnsure reports whether a failed write may have happened, or may succeed at the same revision.
func isUnsure(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == unknownRevision || api.Code == 503
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrReconnectBufExceeded)
}

func explain(err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == wrongRevision {
		return ErrConflict
	}
	return err
}
