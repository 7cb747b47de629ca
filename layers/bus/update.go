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
	js     Engine
	stream jetstream.Stream
}

// Retries counts the writes that this process repeated because the engine did not know yet.
var Retries atomic.Int64

// NewBucket makes a bucket, unless it is there. ttl is how long a key lives after its last write; 0 is
// for ever. most is how many bytes all take at most; 0 is no limit. AllowDirect would let a follower
// answer, which may be behind.
func NewBucket(ctx context.Context, e Engine, name string, ttl time.Duration, most int64) (*Bucket, error) {
	s, err := NewStream(ctx, e, jetstream.StreamConfig{
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"}, MaxAge: ttl, MaxBytes: most, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew,
		AllowRollup: true, DenyDelete: true, AllowMsgTTL: true, SubjectDeleteMarkerTTL: time.Minute,
	})
	if err != nil {
		return nil, err
	}
	kv, err := Agree(ctx, func(ctx context.Context) (jetstream.KeyValue, error) { return e.KeyValue(ctx, name) })
	return &Bucket{kv, e, s}, err
}

// attemptLimit is how long the engine may take for an answer. A request without a leader has none.
const attemptLimit = 2 * time.Second

// Agree asks the engine again until a cluster has a leader, and as many servers as a stream needs. The
// first attempts are short, as most often the leader is elected just now.
func Agree[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	for limit := attemptLimit / 16; ; limit = min(2*limit, attemptLimit) {
		once, cancel := context.WithTimeout(ctx, limit)
		answer, err := ask(once)
		cancel()
		if err == nil || !IsUnsure(err) && !isUnready(err) || run.Sleep(ctx, 100*time.Millisecond) != nil {
			return answer, err
		}
	}
}

// Update writes a key that is at this revision, 0 for a key that is not there, and returns its new
// revision. It returns ErrConflict if the key is at another one. ttl is how long the key lives after
// this write; 0 is what its bucket says. Nothing else writes keys.
//
// A cluster's leader refuses a write for a moment while it has another one of the key in flight. And
// an acknowledgement can be lost: then only the key itself says what happened.
func (b *Bucket) Update(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	expected, unsure := revision, false // unsure is whether an earlier attempt may have succeeded
	for wait := time.Duration(0); ; wait = min(2*wait+5*time.Millisecond, time.Second) {
		if err := run.Sleep(ctx, wait); err != nil {
			return 0, fmt.Errorf("write the key %s: %w", key, err)
		}
		ack, err := b.put(ctx, key, value, expected, ttl)
		switch refused := hasCode(err, wrongRevision); {
		case err == nil:
			return ack.Sequence, nil
		case ctx.Err() != nil, !refused && !IsUnsure(err):
			return 0, fmt.Errorf("write the key %s: %w", key, err)
		case refused && !unsure && revision > 0:
			return 0, fmt.Errorf("write the key %s: %w", key, ErrConflict)
		case hasCode(err, inFlight):
			Retries.Add(1)
			continue
		case !refused:
			Retries.Add(1)
			unsure = true
		}
		now, unread := b.read(ctx, key)
		switch {
		case unread != nil: // the engine has no leader
		case now.gone && revision == 0:
			expected = now.revision
		case unsure && !now.gone && now.revision > revision && bytes.Equal(now.value, value):
			return now.revision, nil
		case now.revision > revision, hasCode(err, wrongRevision) && now.revision < revision:
			return 0, fmt.Errorf("write the key %s: %w", key, ErrConflict)
		} // else the write was lost, or the leader has yet to apply what a follower has told already
	}
}

// put tries once to write a key whose last write has this revision.
func (b *Bucket) put(ctx context.Context, key string, value []byte, expected uint64, ttl time.Duration) (*jetstream.PubAck, error) {
	opts := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(expected), jetstream.WithRetryAttempts(0)}
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(ttl))
	}
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	return b.js.PublishMsg(ctx, &nats.Msg{Subject: "$KV." + b.Bucket() + "." + key, Data: value}, opts...)
}

// state is what a key holds at a revision. It is gone if it was deleted or has expired, at that
// revision if a marker says so, else at 0.
type state struct {
	value    []byte
	revision uint64
	gone     bool
}

// Last returns the newest revision of the bucket that a key or a marker still has.
func (b *Bucket) Last(ctx context.Context) (uint64, error) {
	s, err := b.read(ctx, ">")
	return s.revision, err
}

// read reads a key at the stream's leader, also one that is gone.
func (b *Bucket) read(ctx context.Context, key string) (state, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	m, err := b.stream.GetLastMsgForSubject(ctx, "$KV."+b.Bucket()+"."+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return state{gone: true}, nil
	}
	if err != nil {
		return state{}, err
	}
	return state{m.Data, m.Sequence, m.Header.Get("KV-Operation") != "" || m.Header.Get("Nats-Marker-Reason") != ""}, nil
}

// Delete removes a key that is at this revision.
func (b *Bucket) Delete(ctx context.Context, key string, revision uint64) error {
	err := b.KeyValue.Delete(ctx, key, jetstream.LastRevision(revision))
	if hasCode(err, wrongRevision) {
		return fmt.Errorf("remove the key %s: %w", key, ErrConflict)
	}
	return err
}

// The engine's error codes of a write that did not happen.
const (
	wrongRevision jetstream.ErrorCode = 10071 // the key is at another one
	inFlight      jetstream.ErrorCode = 10164 // another write of the key is not applied yet
	fewServers    jetstream.ErrorCode = 10005 // a stream has more replicas than there are servers
	otherStream   jetstream.ErrorCode = 10058 // another hub makes the stream just now
)

func hasCode(err error, code jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == code
}

// isUnready reports whether the servers of a cluster do not know each other or a new stream yet.
func isUnready(err error) bool {
	var watch *nats.APIError // of the older API, which watches keys
	return hasCode(err, fewServers) && !isFull(err) || hasCode(err, otherStream) || errors.Is(err, jetstream.ErrBucketNotFound) ||
		errors.As(err, &watch) && (watch.Code == 503 || watch.ErrorCode == nats.JSErrCodeStreamNotFound)
}

// IsUnsure reports whether a failed write may have happened, or may succeed at the same revision.
func IsUnsure(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == inFlight || api.Code == 503
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrReconnectBufExceeded)
}
