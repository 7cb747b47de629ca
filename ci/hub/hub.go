// Package hub keeps what is wanted of boards and what is known of them, in NATS JetStream. It answers
// stations, which have the boards, and people. It decides nothing about a board that it cannot hear.
package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"slipway/ci/hub/artifacts"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/run"
)

// How long the engine keeps what. A share says how much.
const (
	leaseTTL  = 30 * time.Second
	endedTTL  = 7 * 24 * time.Hour
	inviteTTL = 24 * time.Hour
	logsFor   = 14 * 24 * time.Hour
	reportsOf = 200 // the newest of each board
	auditFor  = 400 * 24 * time.Hour
)

// Hub answers requests. Any number of hubs may share one engine: all that they know is in it.
type Hub struct {
	nc    *nats.Conn
	js    bus.Engine
	lease time.Duration // of stations

	jobs, boards, stations, alive, people, invites, rollouts, sessions, hubs, rows *bus.Bucket

	logs, reports, records, cards jetstream.Stream
	taking                        sync.Mutex // one place after another takes rows
	artifacts                     *artifacts.Artifacts
	index                         *index
	told                          sync.Map // by station, the revision of rollouts up to which it was told
	gates                         sync.Map // by rollout

	// Admit makes the JWT of a person or station whose invitation was right. Revoke ends the
	// connections of these keys, and admits them no more.
	Admit  func(role job.Role, name, publicKey string) (jwt string, err error)
	Revoke func(publicKeys []string) error
	// Majority reports whether enough hubs are reached for a change, or the NATS of others.
	Majority func() bool
	folder   folder
	Place    job.HubPlace // of this hub
}

// share is how much of the engine's space a stream takes: percent, and at most so many bytes. The rest,
// a tenth, is for keys, so that nothing else takes their place.
type share struct{ percent, most int64 }

var (
	ofArtifacts = share{60, 1 << 62}
	ofLogs      = share{10, 10 << 30}
	ofReports   = share{10, 20 << 30}
	ofCards     = share{5, 5 << 30}
	ofAudit     = share{5, 5 << 30}
)

func (s share) of(space int64) int64 { return min(space/100*s.percent, s.most) }

// openStreams makes the buckets and streams, unless they are there, and reads all keys. space is how
// many bytes the engine gives, as this hub sees it. who proves who sends a request of HTTP.
func (h *Hub) openStreams(ctx context.Context, space int64, who func(*http.Request) (role string, err error)) error {
	group, making := errgroup.WithContext(ctx)
	for _, b := range []struct {
		name string
		ttl  time.Duration
		at   **bus.Bucket
	}{
		{"jobs", 0, &h.jobs},
		{"boards", 0, &h.boards},
		{"stations", 0, &h.stations},
		{"alive", h.lease, &h.alive},
		{"people", 0, &h.people},
		{"invites", inviteTTL, &h.invites},
		{"rollouts", 0, &h.rollouts},
		{"sessions", SessionTTL, &h.sessions},
		{"hubs", 0, &h.hubs},
		{"rows", 0, &h.rows},
	} {
		group.Go(func() (err error) {
			*b.at, err = bus.NewBucket(making, h.js, b.name, b.ttl, 0)
			return err
		})
	}
	err := group.Wait()
	if err == nil {
		space, err = h.leastSpace(ctx, space)
	}
	if err != nil {
		return err
	}
	group, making = errgroup.WithContext(ctx)
	for at, c := range map[*jetstream.Stream]jetstream.StreamConfig{
		&h.logs:    {Name: "LOGS", Subjects: []string{"log.>"}, MaxAge: logsFor, MaxBytes: ofLogs.of(space), Compression: jetstream.S2Compression, Duplicates: time.Hour},
		&h.reports: {Name: "REPORTS", Subjects: []string{"report.>"}, MaxMsgsPerSubject: reportsOf, MaxBytes: ofReports.of(space), Duplicates: time.Hour},
		&h.cards:   {Name: "CARDS", Subjects: []string{"card.>"}, MaxMsgsPerSubject: 1, MaxAge: auditFor, MaxBytes: ofCards.of(space), Compression: jetstream.S2Compression},
		&h.records: {Name: "AUDIT", Subjects: []string{"audit.>"}, MaxAge: auditFor, MaxBytes: ofAudit.of(space), DenyDelete: true, DenyPurge: true},
	} {
		group.Go(func() (err error) {
			*at, err = bus.NewStream(making, h.js, c)
			return err
		})
	}
	group.Go(func() (err error) {
		h.artifacts, err = artifacts.New(making, h.js, ofArtifacts.of(space), who)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	h.index, err = newIndex(ctx, h.jobs, h.boards, h.stations, h.alive, h.people, h.invites, h.rollouts, h.hubs, h.rows)
	return err
}

// leastSpace returns what the smallest of the hubs gives. At the first start it waits for all of them,
// so that all make the same streams. Later, streams stay as they are.
func (h *Hub) leastSpace(ctx context.Context, own int64) (int64, error) {
	_, isNew := bus.Agree(ctx, func(ctx context.Context) (jetstream.Stream, error) { return h.js.Stream(ctx, "artifacts") })
	if h.js.Theirs && isNew != nil {
		return h.js.Space(ctx, own)
	}
	if len(h.folder.Hubs) == 0 {
		return own, nil
	}
	if _, err := h.hubs.Update(ctx, spaceOf(h.folder.Name), fmt.Append(nil, own), 0, 0); err != nil && !errors.Is(err, bus.ErrConflict) {
		return 0, err
	}
	least := own
	for _, host := range hostsOf(h.folder.Hubs) {
		said, err := bus.Agree(ctx, func(ctx context.Context) (jetstream.KeyValueEntry, error) { return h.hubs.Get(ctx, spaceOf(host)) })
		for isNew != nil && errors.Is(err, jetstream.ErrKeyNotFound) && run.Sleep(ctx, 50*time.Millisecond) == nil {
			said, err = h.hubs.Get(ctx, spaceOf(host))
		}
		if err == nil {
			size, _ := strconv.ParseInt(string(said.Value()), 10, 64)
			least = min(least, size)
		}
	}
	return least, ctx.Err()
}

// spaceOf is the key of what a hub gives, in the bucket hubs.
func spaceOf(host string) string { return "space." + bus.Key(host) }

// Serve answers requests until ctx ends.
func (h *Hub) Serve(ctx context.Context) error {
	sub, err := h.nc.QueueSubscribe("api.>", "hub", h.accept(ctx))
	if err != nil {
		return err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection ends with the hub
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.index.follow(ctx) })
	group.Go(func() error { return h.expireJobs(ctx) })
	group.Go(func() error { return h.revokeKeys(ctx) })
	group.Go(func() error { return h.driveRollouts(ctx) })
	return group.Wait()
}
