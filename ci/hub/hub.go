// Package hub keeps what is wanted of boards and what is known of them, in NATS JetStream. It answers
// stations, which have the boards, and people. It decides nothing about a board that it cannot hear.
package hub

import (
	"context"
	"fmt"
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

	jobs, boards, stations, alive, people, invites, rollouts, sessions, rows *bus.Bucket

	logs      jetstream.Stream
	cards     jetstream.Stream
	taking    sync.Mutex // one place after another takes rows
	artifacts *artifacts.Artifacts
	index     *index

	// Admit makes the JWT of a person or station whose invitation was right. Revoke ends the
	// connections of these keys, and admits them no more.
	Admit  func(role job.Role, name, publicKey string) (jwt string, err error)
	Revoke func(publicKeys []string) error
	// Addresses are those of NATS, for who joins.
	Addresses []string
}

// open makes the buckets and streams, unless they are there, and reads all keys. replicas is 1, or 3
// in a cluster. lease is how long a station that is not heard keeps its boards.
func open(ctx context.Context, nc *nats.Conn, replicas int, lease time.Duration) (*Hub, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	h := &Hub{nc: nc, js: js, lease: lease}
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
		{"rows", 0, &h.rows},
	} {
		if *b.at, err = bus.NewBucket(ctx, js, b.name, replicas, b.ttl); err != nil {
			return nil, err
		}
	}
	for _, c := range []jetstream.StreamConfig{
		{Name: "LOGS", Subjects: []string{"log.>"}, MaxAge: logsFor, MaxBytes: logsBytes, Compression: jetstream.S2Compression, Duplicates: time.Hour},
		{Name: "REPORTS", Subjects: []string{"report.>"}, MaxMsgsPerSubject: reportsOf, MaxBytes: reportSize, Duplicates: time.Hour},
		{Name: "CARDS", Subjects: []string{"card.>"}, MaxMsgsPerSubject: 1, MaxAge: auditFor, MaxBytes: cardsBytes, Compression: jetstream.S2Compression},
		{Name: "AUDIT", Subjects: []string{"audit.>"}, MaxAge: auditFor, DenyDelete: true, DenyPurge: true},
	} {
		c.Replicas = replicas
		stream, err := js.CreateOrUpdateStream(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("make the stream %s: %w", c.Name, err)
		}
		switch c.Name {
		case "LOGS":
			h.logs = stream
		case "CARDS":
			h.cards = stream
		}
	}
	h.index, err = newIndex(ctx, h.jobs, h.boards, h.stations, h.alive, h.people, h.rollouts, h.rows)
	return h, err
}

// Serve answers requests until ctx ends.
func (h *Hub) Serve(ctx context.Context) error {
	sub, err := h.nc.QueueSubscribe("api.>", "hub", func(m *nats.Msg) { go h.answer(ctx, m) })
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
