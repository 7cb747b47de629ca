package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// Workers of all three servers claim keys as soon as they hear of them. Two claim each key. Exactly
// one must win, and whoever won must be in the key: a write is never lost, or believed to be.
func TestClaimsOfThree(t *testing.T) {
	t.Parallel()
	const workers = 40
	keys := 2_000
	if os.Getenv("SLIPWAY_LONG") != "" {
		keys = 20_000
	}
	hubs := startThree(t)
	var buckets [3]*Bucket
	for i, h := range hubs {
		buckets[i] = bucket(t, h.Server, "jobs", 3, 0)
	}
	before := Retries.Load()
	group, ctx := errgroup.WithContext(t.Context())
	offers := make(chan jetstream.KeyValueEntry, 2*keys)
	group.Go(func() error { return offer(ctx, buckets[1], keys, offers) })
	for i := range 8 {
		group.Go(func() error {
			for n := i; n < keys; n += 8 {
				if _, err := buckets[i%3].Update(ctx, fmt.Sprint(n), []byte("queued"), 0, 0); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var winners sync.Map
	var won, refused atomic.Int64
	for i := range workers {
		group.Go(func() error {
			for e := range offers {
				me := fmt.Sprintf("worker %d", i)
				_, err := buckets[i%3].Update(ctx, e.Key(), []byte(me), e.Revision(), 0)
				switch {
				case errors.Is(err, ErrConflict):
					refused.Add(1)
				case err != nil:
					return err
				default:
					won.Add(1)
					if other, twice := winners.Swap(e.Key(), me); twice {
						t.Errorf("%v and %s both won the key %s", other, me, e.Key())
					}
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d keys, %d claims, %d won, %d refused, %d writes repeated", keys, 2*keys, won.Load(), refused.Load(), Retries.Load()-before)
	if int(won.Load()) != keys || int(refused.Load()) != keys {
		t.Errorf("%d claims won and %d were refused; want %d each", won.Load(), refused.Load(), keys)
	}
	for n := range keys {
		e, err := buckets[n%3].read(t.Context(), fmt.Sprint(n))
		if winner, _ := winners.Load(fmt.Sprint(n)); err != nil || string(e.value) != fmt.Sprint(winner) {
			t.Errorf("key %d holds %q at %d, %v; want %v", n, e.value, e.revision, err, winner)
		}
	}
}

// offer passes each queued key on twice, as soon as it is heard of.
func offer(ctx context.Context, b *Bucket, keys int, offers chan<- jetstream.KeyValueEntry) error {
	defer close(offers)
	w, err := b.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer w.Stop()
	for n := 0; n < keys; {
		select {
		case e := <-w.Updates():
			if e != nil && string(e.Value()) == "queued" {
				n++
				offers <- e
				offers <- e
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// A user is revoked on each server, and reaches none. The others stay.
func TestRevokedOnThree(t *testing.T) {
	t.Parallel()
	hubs := startThree(t)
	b := bucket(t, hubs[0].Server, "jobs", 3, 0)
	a, public := hubs[0].user(t, "viewer", "mallory")
	good, _ := hubs[0].user(t, "viewer", "alice")
	for i, h := range hubs {
		a.Addresses, good.Addresses = []string{h.Address()}, []string{h.Address()}
		gone, stays := connect(t, a), connect(t, good)
		if err := h.SetRevocations([]string{public}); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the connection to end", func() bool { return !gone.IsConnected() })
		refused(t, a, "refuses mallory")
		flush(t, stays)
		if n := stays.Stats().Reconnects; n != 0 {
			t.Errorf("server %d disconnected another user %d times", i, n)
		}
		if _, err := b.Update(withLimit(t), fmt.Sprint(i), nil, 0, 0); err != nil {
			t.Errorf("the engine after a revocation on server %d: %v", i, err)
		}
	}
	a.Addresses = []string{hubs[0].Address(), hubs[1].Address(), hubs[2].Address()}
	refused(t, a, a.Addresses...)
}

// Who does not have the cluster's secret is no server of it, whatever its certificate.
func TestStrangerIsNoServer(t *testing.T) {
	t.Parallel()
	ca, leaf := newAuthority(t), startHub(t).leaf
	o := options(t, ca, leaf)
	o.Cluster = &Cluster{"three", "127.0.0.1:0", nil}
	o.Cluster.Routes = []string{"127.0.0.1:1"}
	var said lines
	o.Log = &said
	s := startServer(t, o)
	stranger := options(t, ca, leaf)
	stranger.Name, stranger.Cluster = "stranger", &Cluster{"three", "127.0.0.1:0", []string{s.nats.ClusterAddr().String()}}
	other := startServer(t, stranger)
	waitFor(t, "the refusal", func() bool { return strings.Contains(said.text(), "authentication error") })
	waitFor(t, "both to have no route", func() bool { return s.nats.NumRoutes()+other.nats.NumRoutes() == 0 })
}

// lines keeps what a server writes.
type lines struct {
	mu   sync.Mutex
	said strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.String()
}
