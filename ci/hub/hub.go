// Package hub keeps what is wanted of boards and what is known of them, in NATS JetStream. It answers
// stations, which have the boards, and people. It decides nothing about a board that it cannot hear.
package hub

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"slipway/ci/hub/artifacts"
	"slipway/ci/job"
	"slipway/layers/bus"
)

// How long the engine keeps what.
const (
	leaseTTL   = 30 * time.Second
	endedTTL   = 7 * 24 * time.Hour
	inviteTTL  = 24 * time.Hour
	logsFor    = 14 * 24 * time.Hour
	logsBytes  = 10 << 30
	reportsOf  = 200 // the newest of each board
	reportSize = 20 << 30
	cardsBytes = 5 << 30
	auditFor   = 400 * 24 * time.Hour
)

// Hub answers requests. Any number of hubs may share one engine: all that they know is in it.
type Hub struct {
	nc    *nats.Conn
	js    jetstream.JetStream
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
	// Majority reports whether enough hubs are reached for a change.
	Majority func() bool
	folder   folder
	Place    job.HubPlace // of this hub
}

// open makes the buckets and streams, unless they are there, and reads all keys. lease is how long a
// station that is not heard keeps its boards. fit limits what a stream may take of the disk.
func open(ctx context.Context, nc *nats.Conn, f folder, lease time.Duration, fit func(most int64) int64) (*Hub, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	h, replicas := &Hub{nc: nc, js: js, lease: lease, folder: f}, f.replicas()
	group, making := errgroup.WithContext(ctx)
	for _, b := range []struct {
		name string
		ttl  time.Duration
		at   **bus.Bucket
	}{
		{"jobs", 0, &h.jobs},
		{"boards", 0, &h.boards},
		{"stations", 0, &h.stations},
		{"alive", lease, &h.alive},
		{"people", 0, &h.people},
		{"invites", inviteTTL, &h.invites},
		{"rollouts", 0, &h.rollouts},
		{"sessions", SessionTTL, &h.sessions},
		{"hubs", 0, &h.hubs},
		{"rows", 0, &h.rows},
	} {
		group.Go(func() (err error) {
			*b.at, err = bus.NewBucket(making, js, b.name, replicas, b.ttl)
			return err
		})
	}
	for at, c := range map[*jetstream.Stream]jetstream.StreamConfig{
		&h.logs:    {Name: "LOGS", Subjects: []string{"log.>"}, MaxAge: logsFor, MaxBytes: fit(logsBytes), Compression: jetstream.S2Compression, Duplicates: time.Hour},
		&h.reports: {Name: "REPORTS", Subjects: []string{"report.>"}, MaxMsgsPerSubject: reportsOf, MaxBytes: fit(reportSize), Duplicates: time.Hour},
		&h.cards:   {Name: "CARDS", Subjects: []string{"card.>"}, MaxMsgsPerSubject: 1, MaxAge: auditFor, MaxBytes: fit(cardsBytes), Compression: jetstream.S2Compression},
		&h.records: {Name: "AUDIT", Subjects: []string{"audit.>"}, MaxAge: auditFor, DenyDelete: true, DenyPurge: true},
	} {
		c.Replicas = replicas
		group.Go(func() (err error) {
			*at, err = bus.NewStream(making, js, c)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	h.index, err = newIndex(ctx, h.jobs, h.boards, h.stations, h.alive, h.people, h.invites, h.rollouts, h.hubs, h.rows)
	return h, err
}

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
