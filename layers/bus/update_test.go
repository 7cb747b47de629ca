package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestUpdate(t *testing.T) {
	t.Parallel()
	b := bucket(t, startHub(t).Server, "jobs", 1, 0)
	update := func(value string, revision uint64, want error) uint64 {
		t.Helper()
		now, err := b.Update(withLimit(t), "key", []byte(value), revision, 0)
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Fatalf("Update(%s, %d) = %v; want %v", value, revision, err, want)
		}
		return now
	}
	update("none", 9, ErrConflict)
	first := update("one", 0, nil)
	update("one", 0, ErrConflict) // the same content, of another writer
	second := update("two", first, nil)
	update("three", first, ErrConflict)
	update("three", second+1, ErrConflict)
	if e, err := b.Get(t.Context(), "key"); err != nil || string(e.Value()) != "two" || e.Revision() != second {
		t.Errorf("Get = %v, %v; want two at %d", e, err, second)
	}
	if err := b.Delete(t.Context(), "key", first); !errors.Is(err, ErrConflict) {
		t.Errorf("Delete at an old revision = %v; want %v", err, ErrConflict)
	}
	if err := b.Delete(t.Context(), "key", second); err != nil {
		t.Fatal(err)
	}
	update("three", second, ErrConflict)
	update("three", 0, nil)
	if _, err := b.Update(t.Context(), "two keys", nil, 0, 0); err == nil || errors.Is(err, ErrConflict) {
		t.Errorf("Update of a key with a space = %v; want another error", err)
	}
}

// faults are what happens to the first writes of a bucket.
type faults struct {
	jetstream.JetStream
	busy  int          // writes that the engine refuses, because another one is in flight
	lost  int          // writes whose acknowledgement is lost
	late  bool         // the first write times out, and happens before the second
	held  func() error // that write
	other func() error // what another writer does after the first write
}

func (f *faults) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	write := func() (*jetstream.PubAck, error) { return f.JetStream.PublishMsg(ctx, m, opts...) }
	if f.busy > 0 {
		f.busy--
		return nil, errors.Join(&jetstream.APIError{Code: 400, ErrorCode: inFlight}, f.other())
	}
	if f.late {
		f.late = false
		ctx = context.WithoutCancel(ctx) // what is on its way does not end with the attempt
		f.held = func() error { _, err := write(); return err }
		return nil, context.DeadlineExceeded
	}
	if f.held != nil {
		err := f.held()
		if f.held = nil; err != nil {
			return nil, err
		}
	}
	ack, err := write()
	if f.lost > 0 && err == nil {
		f.lost--
		err = nats.ErrTimeout
		err = errors.Join(err, f.other())
	}
	return ack, err
}

func TestUpdateInDoubt(t *testing.T) {
	t.Parallel()
	s := startHub(t).Server
	good := bucket(t, s, "jobs", 1, 0)
	for i, c := range []struct {
		name   string
		faults faults
		value  string // of another writer, after the first write
		want   error
	}{
		{"lost acknowledgement", faults{lost: 1}, "", nil},
		{"late write", faults{late: true}, "", nil},
		{"late write, lost acknowledgement", faults{late: true, lost: 1}, "", nil},
		{"overwritten", faults{lost: 1}, "other", ErrConflict},
		{"another write in flight, which was lost", faults{busy: 2}, "", nil},
		{"another write in flight, of the same content", faults{busy: 1}, "mine", ErrConflict},
	} {
		for _, there := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, key is there %v", c.name, there), func(t *testing.T) {
				key := fmt.Sprintf("%d.%v", i, there)
				var revision uint64
				var err error
				if there {
					if revision, err = good.Update(t.Context(), key, []byte("before"), 0, 0); err != nil {
						t.Fatal(err)
					}
				}
				f := c.faults
				f.JetStream = good.js.JetStream
				f.other = func() error { return nil }
				if c.value != "" {
					f.other = func() error { _, err := good.Put(t.Context(), key, []byte(c.value)); return err }
				}
				b := &Bucket{good.KeyValue, Engine{JetStream: &f}, good.stream}
				before := Retries.Load()
				now, err := b.Update(withLimit(t), key, []byte("mine"), revision, 0)
				if !errors.Is(err, c.want) || c.want == nil && err != nil || Retries.Load() == before {
					t.Fatalf("Update = %v; want %v, and a retry", err, c.want)
				}
				e, gone := good.Get(t.Context(), key)
				if gone != nil || err == nil && (string(e.Value()) != "mine" || e.Revision() != now) {
					t.Errorf("the key holds %v, %v; want mine at %d", e, gone, now)
				}
			})
		}
	}
}

// An engine without a leader answers nothing. Update asks until its context ends.
func TestUpdateEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := bucket(t, startHub(t).Server, "jobs", 1, 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	tired := errors.New("tired")
	f := &faults{JetStream: b.js.JetStream, lost: 1 << 30, other: func() error { cancel(tired); return nil }}
	b.js.JetStream = f
	if _, err := b.Update(ctx, "key", nil, 0, 0); err == nil || errors.Is(err, ErrConflict) {
		t.Errorf("Update, ended = %v; want an error that is no conflict", err)
	}
}

func TestOneOfEightWins(t *testing.T) {
	t.Parallel()
	b := bucket(t, startHub(t).Server, "jobs", 1, 0)
	var revision uint64
	for round := range 20 {
		var group sync.WaitGroup
		won := make(chan string, 8)
		for i := range 8 {
			group.Go(func() {
				me := fmt.Sprintf("%d of round %d", i, round)
				switch _, err := b.Update(t.Context(), "key", []byte(me), revision, 0); {
				case err == nil:
					won <- me
				case !errors.Is(err, ErrConflict):
					t.Error(err)
				}
			})
		}
		group.Wait()
		close(won)
		e, err := b.Get(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		if n, me := len(won), <-won; n != 1 || me != string(e.Value()) {
			t.Errorf("round %d: %d writers won, one is %q, the key holds %q; want one", round, n, me, e.Value())
		}
		revision = e.Revision()
	}
}

func expired(t *testing.T, b *Bucket, key string) func() bool {
	return func() bool {
		_, err := b.Get(t.Context(), key)
		return errors.Is(err, jetstream.ErrKeyNotFound)
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	b := bucket(t, startHub(t).Server, "alive", 1, ttl)
	first, err := b.Update(t.Context(), "bench-1", []byte("one"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The lease lives for longer than its time if each renewal comes in time. A machine that is too
	// busy for that proves nothing, so the clock begins again.
	revision, began, renewed := first, time.Now(), time.Now()
	for time.Since(began) < ttl+ttl/2 {
		sent := time.Now()
		now, err := b.Update(t.Context(), "bench-1", []byte("one"), revision, 0)
		if late := time.Since(renewed) > ttl/2; late {
			began = time.Now()
			if errors.Is(err, ErrConflict) {
				now, err = b.Update(t.Context(), "bench-1", []byte("one"), 0, 0)
			}
		}
		if err != nil {
			t.Fatalf("a renewal after %v = %v", time.Since(renewed), err)
		}
		revision, renewed = now, sent
	}
	waitFor(t, "the lease to end", expired(t, b, "bench-1"))
	if _, err := b.Update(t.Context(), "bench-1", []byte("one"), revision, 0); !errors.Is(err, ErrConflict) {
		t.Errorf("a renewal after the end = %v; want %v", err, ErrConflict)
	}
	if _, err := b.Update(t.Context(), "bench-1", []byte("two"), 0, 0); err != nil {
		t.Errorf("another run takes the lease: %v", err)
	}
	if _, err := b.Update(t.Context(), "bench-1", []byte("three"), 0, 0); !errors.Is(err, ErrConflict) {
		t.Errorf("a third run takes the lease: %v; want %v", err, ErrConflict)
	}
}

func TestTimeOfOneKey(t *testing.T) {
	t.Parallel()
	b := bucket(t, startHub(t).Server, "jobs", 1, 0)
	for key, ttl := range map[string]time.Duration{"ends": time.Second, "stays": 0, "renewed": time.Second} {
		revision, err := b.Update(t.Context(), key, []byte(key), 0, ttl)
		if err != nil {
			t.Fatal(err)
		}
		if key == "renewed" {
			if _, err := b.Update(t.Context(), key, []byte(key), revision, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	waitFor(t, "the key to end", expired(t, b, "ends"))
	for _, key := range []string{"stays", "renewed"} {
		if expired(t, b, key)() {
			t.Errorf("the key %s is gone; want it kept: its last write has no time", key)
		}
	}
	if _, err := b.Update(t.Context(), "ends", []byte("again"), 0, 0); err != nil {
		t.Errorf("Update after the end = %v", err)
	}
}

// A hub of an earlier release made buckets from which followers answered. They become buckets of this
// one, with their keys.
func TestBucketOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	nc, err := h.Connect()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	old, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "jobs", TTL: time.Hour, LimitMarkerTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	revision, err := old.Put(t.Context(), "k", []byte("v"))
	if err != nil {
		t.Fatal(err)
	}
	b := bucket(t, h.Server, "jobs", 1, time.Hour)
	if e, err := b.Get(t.Context(), "k"); err != nil || string(e.Value()) != "v" || e.Revision() != revision {
		t.Errorf("the key is %v, %v; want v at %d", e, err, revision)
	}
	stream, err := js.Stream(t.Context(), "KV_jobs")
	if err != nil || stream.CachedInfo().Config.AllowDirect {
		t.Errorf("followers answer from the bucket, %v", err)
	}
	if last, err := b.Last(t.Context()); err != nil || last != revision {
		t.Errorf("Last = %d, %v; want %d", last, err, revision)
	}
}

// A stream that a hub of an earlier release made without a limit gets one, unless it holds more.
func TestLimitOfAnEarlierStream(t *testing.T) {
	t.Parallel()
	e := bucket(t, startHub(t).Server, "jobs", 1, 0).js
	for name, want := range map[string]int64{"few": 1 << 20, "many": -1} {
		c := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}}
		if _, err := e.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if name == "many" {
			if _, err := e.Publish(t.Context(), "many.x", make([]byte, 2<<20)); err != nil {
				t.Fatal(err)
			}
		}
		c.MaxBytes = 1 << 20
		for range 2 {
			s, err := NewStream(t.Context(), e, c)
			if err != nil || s.CachedInfo().Config.MaxBytes != want {
				t.Errorf("%s: %v; want the limit %d", name, err, want)
			}
			c.MaxBytes *= 2 // once there is a limit, it stays
		}
	}
}
