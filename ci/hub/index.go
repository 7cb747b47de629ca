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

	"slipway/ci/fleet"
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
	buckets   []*bus.Bucket
	began     time.Time
	partBytes int

	mu       sync.Mutex
	hearers  map[chan struct{}][]string             // who hears of news, and of which buckets
	keys     map[string]map[string]map[string]entry // by bucket, and by the first token of the key
	until    map[string]uint64                      // by bucket, the revision up to which this hub knows all
	told     int                                    // how often until has moved
	ids      map[string]string                      // the keys of jobs, by their last token
	failures int                                    // how often a rollout's job has failed
}

// entry is one key: what it holds, at which revision, and when the engine took it.
type entry struct {
	key      string
	holds    any // a pointer to a form, which nobody changes; nil if this hub cannot read it
	bytes    int
	revision uint64
	at       time.Time // zero for this hub's own write, until the engine tells
	gone     bool
	since    time.Time // when this hub heard that it is gone
}

// record is a key with what it holds.
type record[F any] struct {
	entry
	form F
}

// parsers read what the keys of each bucket hold.
var parsers = map[string]func(value []byte) any{
	"jobs":     parser(job.Parse[job.Job]),
	"boards":   parser(job.Parse[job.Board]),
	"stations": parser(job.Parse[job.Station]),
	"alive":    parser(parseJSON[job.Alive]),
	"people":   parser(parseJSON[job.Person]),
	"invites":  parser(parseJSON[job.Person]),
	"rollouts": parser(parseJSON[job.Rollout]),
	"hubs":     parser(parseJSON[job.HubPlace]),
	"rows":     parser(parseJSON[tableRow]),
}

func parser[F any](parse func([]byte) (F, error)) func([]byte) any {
	return func(value []byte) any {
		if f, err := parse(value); err == nil {
			return &f
		}
		return nil
	}
}

func parseJSON[F any](value []byte) (f F, err error) {
	err = json.Unmarshal(value, &f)
	return f, err
}

// newIndex reads all keys of the buckets.
func newIndex(ctx context.Context, buckets ...*bus.Bucket) (*index, error) {
	x := &index{buckets: buckets, began: time.Now(), partBytes: maxPartBytes, hearers: map[chan struct{}][]string{}, keys: map[string]map[string]map[string]entry{}}
	x.until, x.ids = map[string]uint64{}, map[string]string{}
	for bucket := range parsers {
		x.keys[bucket] = map[string]map[string]entry{}
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
				x.put(b.Bucket(), e.Value(), entry{key: e.Key(), revision: e.Revision(), at: e.Created(), gone: e.Operation() != jetstream.KeyValuePut})
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
	if revision <= x.until[bucket] {
		return
	}
	x.until[bucket] = revision
	x.told++
	x.tell(bucket)
}

// anyWrite is a bucket's name for those who hear of all changes, also of this hub's own ones at once.
const anyWrite = ""

// tell tells those who hear of a bucket.
func (x *index) tell(bucket string) {
	for news, buckets := range x.hearers {
		if slices.Contains(buckets, bucket) {
			select {
			case news <- struct{}{}:
			default: // it has yet to look at the last ones
			}
		}
	}
}

// hear returns a channel that gets something when the engine has told more of these buckets, until end
// is called.
func (x *index) hear(buckets ...string) (news chan struct{}, end func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	news = make(chan struct{}, 1)
	x.hearers[news] = buckets
	return news, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.hearers, news)
	}
}

// firstToken returns the part of a key before its first dot.
func firstToken(key string) string {
	token, _, _ := strings.Cut(key, ".")
	return token
}

// put sets a key of a bucket that is followed, unless a newer revision is known.
func (x *index) put(bucket string, value []byte, e entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	group := x.keys[bucket][firstToken(e.key)]
	old, known := group[e.key]
	switch {
	case known && (old.revision > e.revision || old.revision == e.revision && !old.at.IsZero()):
		return
	case known && old.revision == e.revision: // this hub's own write
		old.at = e.at
		group[e.key] = old
		return
	case e.gone:
		e.since = time.Now()
	default:
		e.holds, e.bytes = parsers[bucket](value), len(value)
	}
	if group == nil {
		group = map[string]entry{}
		x.keys[bucket][firstToken(e.key)] = group
	}
	group[e.key] = e
	if bucket == "jobs" && !e.gone {
		x.ids[e.key[strings.LastIndexByte(e.key, '.')+1:]] = e.key
	}
	if j, isJob := e.holds.(*job.Job); isJob && j.Rollout != "" && j.Result != nil && j.Result.Kind.Failed() {
		x.failures++
	}
	x.tell(anyWrite)
}

// forget removes keys up to a revision that were not seen.
func (x *index) forget(bucket string, revision uint64, seen map[string]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for token, group := range x.keys[bucket] {
		maps.DeleteFunc(group, func(key string, e entry) bool { return e.revision <= revision && !seen[key] })
		if len(group) == 0 {
			delete(x.keys[bucket], token)
		}
	}
	if bucket == "jobs" {
		maps.DeleteFunc(x.ids, func(_, key string) bool { _, known := x.keys[bucket][firstToken(key)][key]; return !known })
	}
}

// get returns the entry of a key, and whether the key exists.
func (x *index) get(bucket, key string) (entry, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, known := x.keys[bucket][firstToken(key)][key]
	return e, known && !e.gone
}

// get returns the form and the entry of a key, and whether this hub can read it.
func get[F any](x *index, bucket, key string) (f F, e entry, known bool) {
	e, _ = x.get(bucket, key)
	p, known := e.holds.(*F)
	if known {
		f = *p
	}
	return f, e, known
}

// goneFor returns for how long a key has been gone, as this hub heard it.
func (x *index) goneFor(bucket, key string) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, known := x.keys[bucket][firstToken(key)][key]
	switch {
	case !known:
		return time.Since(x.began)
	case e.gone:
		return time.Since(e.since)
	}
	return 0
}

// find returns the key of the job with an ID, and whether there is one.
func (x *index) find(id string) (string, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := x.ids[id]
	e, known := x.keys["jobs"][firstToken(key)][key]
	return key, known && !e.gone
}

// reread reads a key from the engine.
func (x *index) reread(ctx context.Context, b *bus.Bucket, key string) error {
	e, err := b.Get(ctx, key)
	if err != nil {
		return err
	}
	x.put(b.Bucket(), e.Value(), entry{key: key, revision: e.Revision(), at: e.Created()})
	return nil
}

// each calls do with the keys of a bucket that have one of these prefixes, which is "" or ends with a dot.
// It returns the revision up to which these are all.
func (x *index) each(bucket string, do func(entry), prefixes ...string) (until uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, prefix := range prefixes {
		groups := x.keys[bucket]
		if token := firstToken(prefix); token != "" {
			groups = map[string]map[string]entry{token: groups[token]}
		}
		for _, group := range groups {
			for key, e := range group {
				if !e.gone && strings.HasPrefix(key, prefix) {
					do(e)
				}
			}
		}
	}
	return x.until[bucket]
}

// list returns the keys of a bucket that have one of these prefixes, sorted.
func (x *index) list(bucket string, prefixes ...string) (all []entry, until uint64) {
	until = x.each(bucket, func(e entry) { all = append(all, e) }, prefixes...)
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	return all, until
}

// list returns the records of a bucket that this hub can read and whose keys have a prefix, sorted.
func list[F any](x *index, bucket, prefix string) (all []record[F]) {
	entries, _ := x.list(bucket, prefix)
	for _, e := range entries {
		if f, known := e.holds.(*F); known {
			all = append(all, record[F]{e, *f})
		}
	}
	return all
}

// maxPartBytes limits a part of a list, of which a message has one.
const maxPartBytes = 4 << 20

// part returns the records that fit, as list, from the one after a key on. next is the key after which the
// others begin, or "". Each counts what its key says, and what the answer adds.
func part[F any](x *index, bucket, after string, fits func(*F) bool) (some []record[F], next string) {
	entries, _ := x.list(bucket, "")
	bytes := 0
	for _, e := range entries {
		f, known := e.holds.(*F)
		if e.key <= after || !known || !fits(f) {
			continue
		}
		if bytes += e.bytes + len(e.key) + 200; bytes > x.partBytes && len(some) > 0 {
			return some, some[len(some)-1].key
		}
		some = append(some, record[F]{e, *f})
	}
	return some, ""
}

func (x *index) revision(bucket string) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.until[bucket]
}

// heard returns how often the engine has told more.
func (x *index) heard() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.told
}

// failed returns how often a rollout's job has failed.
func (x *index) failed() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failures
}

// patience is how long a request waits for a change.
const patience = 25 * time.Second

// wait calls look whenever the engine has told more of these buckets, until it returns true, or patience
// is over.
func (x *index) wait(ctx context.Context, look func() bool, buckets ...string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	news, end := x.hear(buckets...)
	defer end()
	for !look() {
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
	}
}

// write writes a form to a key at a revision by compare-and-set, and returns its new revision.
func (h *Hub) write(ctx context.Context, b *bus.Bucket, key string, form any, revision uint64) (uint64, error) {
	data, err := json.Marshal(form)
	if err != nil {
		return 0, err
	}
	at, err := b.Update(ctx, key, data, revision, ttlOf(form))
	if err == nil {
		h.index.put(b.Bucket(), data, entry{key: key, revision: at})
	}
	return at, err
}

// ttlOf returns how long the engine keeps a form; 0 is as long as its bucket does. Jobs of a rollout say
// whom it need not do again, and what its boards had before. One that was abandoned says so to its
// station, which would begin again what the hub has no more, and may come back late.
func ttlOf(form any) time.Duration {
	switch f := form.(type) {
	case job.Job:
		switch {
		case f.State != job.Ended:
			return 0
		case f.Result.Kind == fleet.Unsure:
			return auditFor
		case f.Rollout != "":
			return rolloutJobTTL
		}
		return endedTTL
	case job.Rollout:
		if f.Ended {
			return rolloutTTL
		}
	case job.Person:
		if !f.Until.IsZero() { // an invitation
			return max(time.Until(f.Until), time.Second)
		}
	}
	return 0
}

// create writes a key that is not there. If it is, create returns what it holds, and ErrConflict.
func create[F any](ctx context.Context, h *Hub, b *bus.Bucket, key string, form F) (F, uint64, error) {
	revision, err := h.write(ctx, b, key, form, 0)
	if !errors.Is(err, bus.ErrConflict) {
		return form, revision, err
	}
	if err := h.index.reread(ctx, b, key); err != nil {
		return form, 0, err
	}
	old, e, _ := get[F](h.index, b.Bucket(), key)
	return old, e.revision, err
}

// errSame is what a function for edit returns if the key holds what it is to hold.
var errSame = errors.New("nothing to change")

// edit changes what a key holds by compare-and-set, again if somebody else changes it meanwhile. change
// hears whether this hub can read the key.
func edit[F any](ctx context.Context, h *Hub, b *bus.Bucket, key string, change func(f *F, known bool) error) (F, uint64, error) {
	for {
		f, e, known := get[F](h.index, b.Bucket(), key)
		revision, err := e.revision, change(&f, known)
		switch {
		case errors.Is(err, errSame):
			return f, revision, nil
		case err != nil:
			return f, revision, err
		}
		if revision, err = h.write(ctx, b, key, f, revision); !errors.Is(err, bus.ErrConflict) {
			return f, revision, err
		}
		if err := h.index.reread(ctx, b, key); err != nil {
			return f, 0, err
		}
	}
}
