package hub

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// A hub can keep its records in another NATS. People and stations do not reach that: they talk to the
// server in the hub's process, as always, which then has no JetStream.

// theirSpace is how much of another NATS a hub's streams take at most.
const theirSpace = 64 << 30

// connectEngine connects to the other NATS, once it answers.
func (r *running) connectEngine(ctx context.Context) (e bus.Engine, err error) {
	err = progress.Run(ctx, "nats", func(step *progress.Step) (string, error) {
		for {
			if e, err = bus.ConnectEngine(ctx, r.NATS, r.Creds, r.Replicas); !errors.Is(err, bus.ErrAway) || ctx.Err() != nil {
				return "", err
			}
			step.Detail("waiting: " + plaintext.OneLine(err.Error()))
			_ = run.Sleep(ctx, time.Second)
		}
	})
	return e, err
}

// openElsewhere gives a hub the other NATS as its engine, and takes the lease there.
func (r *running) openElsewhere(ctx context.Context, h *Hub) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("keep records in the NATS at %s: %w", strings.Join(r.folder.NATS, ", "), err)
		}
	}()
	if h.js, err = r.connectEngine(ctx); err != nil {
		return err
	}
	r.lease = &lease{conn: h.js.Conn(), holder: holder{V: job.Version, Hub: r.folder.Name, Keys: r.keys.Public(), Run: rand.Text()}}
	if r.lease.keys, err = bus.NewBucket(ctx, h.js, "lease", leaseTTL, 0); err == nil {
		err = r.lease.take(ctx)
	}
	h.Majority = func() bool { return r.lease.conn.IsConnected() && time.Since(*r.lease.renewed.Load()) < leaseTTL }
	return err
}

// lease is what one hub at a time has of another NATS. A second one would have other keys: its people
// and stations would be the same names.
type lease struct {
	conn     *nats.Conn
	keys     *bus.Bucket
	holder   holder
	revision uint64
	renewed  atomic.Pointer[time.Time]
}

// holder is whose a lease is.
type holder struct {
	V    job.Form `json:"v"`
	Hub  string   `json:"hub"`
	Keys string   `json:"keys"` // public
	Run  string   `json:"run"`  // of this process
}

const leaseKey = "hub"

// take takes or renews the lease. That of an earlier run with the same state folder is over, as the
// folder's lock says.
func (l *lease) take(ctx context.Context) error {
	for {
		at, err := bus.Agree(ctx, func(ctx context.Context) (jetstream.KeyValueEntry, error) { return l.keys.Get(ctx, leaseKey) })
		var now holder
		var revision uint64
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
		case err != nil:
			return err
		case json.Unmarshal(at.Value(), &now) != nil || now.Keys != l.holder.Keys || l.revision > 0 && now.Run != l.holder.Run:
			const next = "\nnext: slipway hub --nats=URL --creds=FILE  # of an account of its own, or 30 seconds after that hub's end"
			return fmt.Errorf("the hub %s works there, and one does at a time"+next, plaintext.OneLine(now.Hub))
		default:
			revision = at.Revision()
		}
		sent := time.Now()
		data, _ := json.Marshal(l.holder) // never fails
		if revision, err = l.keys.Update(ctx, leaseKey, data, revision, 0); errors.Is(err, bus.ErrConflict) {
			continue
		}
		if err == nil {
			l.revision = revision
			l.renewed.Store(&sent)
		}
		return err
	}
}

// hold renews the lease until ctx ends, or returns an error if another hub has it.
func (l *lease) hold(ctx context.Context) error {
	defer l.end()
	for run.Sleep(ctx, leaseTTL/3) == nil {
		if err := l.take(ctx); err != nil {
			return err
		}
	}
	return nil
}

// end gives the lease back, if this run has it, and closes the connection.
func (l *lease) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if l.revision > 0 {
		_ = l.keys.Delete(ctx, leaseKey, l.revision) // or it ends by itself
	}
	l.conn.Close()
}
