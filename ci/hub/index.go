package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/run"
)

// relist is how often the index reads all keys again. A watcher may be silent for ever without an
// error (nats.go#1777).
const relist = time.Minute

// follows is how often the index looks whether its watches still tell all.
const follows = 2 * time.Second

// index is a copy of all keys in memory. Writes of this hub are in it at once, those of other hubs
// when the engine tells. The engine tells all changes of a bucket in their order, and only that moves
// until: polls wait for it, because another hub's change may be older than this hub's last write.
type index struct {
	buckets []*bus.Bucket
	began   time.Time

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	told    chan struct{} // closed when until moves
	keys    map[string]map[string]entry
	until   map[string]uint64 // by bucket, the revision up to which this hub knows all
}

// entry is one key: what it holds, at which revision, and when the engine took it.
type entry struct {
	value    []byte
	revision uint64
	at       time.Time // zero for this hub's own write, until the engine tells
	gone     bool
	since    time.Time  // when this hub heard that it is gone
	job      *job.Job   // in the bucket jobs; nil for one that this hub cannot read
	board    *job.Board // as job, in the bucket boards
	wish     job.Wish   // in the bucket rollouts
}

// newIndex reads all keys of the buckets.
func newIndex(ctx context.Context, buckets ...*bus.Bucket) (*index, error) {
	x := &index{buckets: buckets, began: time.Now(), changed: make(chan struct{}), told: make(chan struct{}), keys: map[string]map[string]entry{}, until: map[string]uint64{}}
	for _, b := range buckets {
		x.keys[b.Bucket()] = map[string]entry{}
	}
	return x, x.catchUp(ctx)
}

// watch reads all keys of a bucket, and forgets those that the engine no longer has. Then it follows
// the changes until ctx ends, unless once is set.
func (x *index) watch(ctx context.Context, b *bus.Bucket, once bool) error {
	before := x.revision(b.Bucket())
	w, err := b.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer w.Stop() //nolint:errcheck // it ends with ctx, too
	look := time.NewTicker(follows)
	defer look.Stop()
	var due uint64
	seen := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
			if x.revision(b.Bucket()) < due { // the server of this watch may be gone
				return errSilent
			}
			due, _ = b.Last(ctx) // without an answer, there is nothing new
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				return context.Cause(ctx)
			case e != nil:
				seen[e.Key()] = true
				x.put(b.Bucket(), e.Key(), entry{value: e.Value(), revision: e.Revision(), at: e.Created(), gone: e.Operation() != jetstream.KeyValuePut})
				x.reach(b.Bucket(), e.Revision())
				continue
			}
			x.forget(b.Bucket(), before, seen)
			if once {
				return nil
			}
		}
	}
}

var errSilent = errors.New("the engine does not tell what it has")

// follow keeps the index as the engine tells, until ctx ends.
func (x *index) follow(ctx context.Context) error {
	var group sync.WaitGroup
	for _, b := range x.buckets {
		group.Go(func() {
			for ctx.Err() == nil {
				round, cancel := context.WithTimeout(ctx, relist)
				err := x.watch(round, b, false) // the next round tries again
				if round.Err() == nil && !errors.Is(err, errSilent) {
					_ = run.Sleep(ctx, time.Second)
				}
				cancel()
			}
		})
	}
	group.Wait()
	return nil
}

// catchUp brings the index to what the engine has now. A watch alone may be of a server that came back
// just now, and lacks the newest.
func (x *index) catchUp(ctx context.Context) error {
	for _, b := range x.buckets {
		for {
			last, err := bus.Agree(ctx, b.Last)
			if err == nil && x.revision(b.Bucket()) >= last {
				break
			}
			if err = errors.Join(err, ctx.Err()); err != nil {
				return fmt.Errorf("read the bucket %s: %w", b.Bucket(), err)
			}
			if x.watch(ctx, b, true) != nil {
				_ = run.Sleep(ctx, 100*time.Millisecond)
			}
		}
	}
	return nil
}

// reach notes that the engine has told all up to a revision.
func (x *index) reach(bucket string, revision uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if revision > x.until[bucket] {
		x.until[bucket] = revision
		close(x.told)
		x.told = make(chan struct{})
	}
}

// put sets a key of a bucket that is followed, unless a newer revision is known.
func (x *index) put(bucket, key string, e entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.keys[bucket] == nil {
		return
	}
	old, known := x.keys[bucket][key]
	if known && (old.revision > e.revision || old.revision == e.revision && !old.at.IsZero()) {
		return
	}
	if e.gone {
		e.since = time.Now()
	}
	switch bucket {
	case "jobs":
		if j, err := job.Parse[job.Job](e.value); err == nil {
			e.job = &j
		}
	case "boards":
		if b, err := job.Parse[job.Board](e.value); err == nil {
			e.board = &b
		}
	case "rollouts":
		var r struct{ Wish job.Wish }
		_ = json.Unmarshal(e.value, &r) // one that cannot be read goes nowhere
		e.wish = r.Wish
	}
	x.keys[bucket][key] = e
	if known && old.revision == e.revision {
		return
	}
	close(x.changed)
	x.changed = make(chan struct{})
}

// forget removes keys up to a revision that were not seen.
func (x *index) forget(bucket string, revision uint64, seen map[string]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.keys[bucket], func(key string, e entry) bool { return e.revision <= revision && !seen[key] })
}

// get returns what is known of a key.
func (x *index) get(bucket, key string) (entry, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, known := x.keys[bucket][key]
	return e, known && !e.gone
}

// goneFor returns for how long a key has been gone, as this hub heard it.
func (x *index) goneFor(bucket, key string) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, known := x.keys[bucket][key]
	switch {
	case !known:
		return time.Since(x.began)
	case e.gone:
		return time.Since(e.since)
	}
	return 0
}

// find returns the key of a bucket whose last token is an ID, and its entry.
func (x *index) find(bucket, id string) (string, entry, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, e := range x.keys[bucket] {
		if !e.gone && key[strings.LastIndexByte(key, '.')+1:] == id {
			return key, e, true
		}
	}
	return "", entry{}, false
}

// reread reads a key from the engine.
func (x *index) reread(ctx context.Context, b *bus.Bucket, key string) error {
	e, err := b.Get(ctx, key)
	if err != nil {
		return err
	}
	x.put(b.Bucket(), key, entry{value: e.Value(), revision: e.Revision(), at: e.Created()})
	return nil
}

// list returns the keys of a bucket with one of these prefixes, sorted, what they hold, and the
// revision up to which that is all.
func (x *index) list(bucket string, prefixes ...string) (keys []string, entries map[string]entry, until uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	entries = map[string]entry{}
	for key, e := range x.keys[bucket] {
		if !e.gone && slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			entries[key] = e
		}
	}
	return slices.Sorted(maps.Keys(entries)), entries, x.until[bucket]
}

func (x *index) revision(bucket string) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.until[bucket]
}

// next returns a channel that is closed at the next change.
func (x *index) next() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.changed
}

// nextTold returns a channel that is closed when the engine tells more.
func (x *index) nextTold() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.told
}

// patience is how long a request waits for a change.
const patience = 25 * time.Second

// wait calls look whenever the engine has told more, until it returns true, or patience is over.
func (x *index) wait(ctx context.Context, look func() bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		told := x.nextTold()
		if look() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-told:
		}
	}
}

// write writes a form to a key at a revision by compare-and-set, and returns its new revision. ttl is
// how long the key lives after it; 0 is what the bucket says.
func (h *Hub) write(ctx context.Context, b *bus.Bucket, key string, form any, revision uint64, ttl time.Duration) (uint64, error) {
	data, err := json.Marshal(form)
	if err != nil {
		return 0, err
	}
	at, err := b.Update(ctx, key, data, revision, ttl)
	if err == nil {
		h.index.put(b.Bucket(), key, entry{value: data, revision: at})
	}
	return at, err
}
