package hub

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/progress"
)

// What the web page asks of a hub besides Call.

// How long a person's secret for the page, and then the page's cookie, are valid.
const (
	openFor    = time.Minute
	SessionTTL = 12 * time.Hour
)

// ErrSignedOut means that a secret or a cookie is unknown, used or over, or that its person was
// removed.
var ErrSignedOut = errors.New("you are not signed in: the link was used or is over, or 12 hours have passed\nnext: slipway hub open  # prints a new link")

// open makes a secret with which a person signs in on the page, once.
func (h *Hub) open(ctx context.Context, who string, _ nothing) (job.Invitation, error) {
	p, _ := h.person(who)
	secret, err := h.newSession(ctx, "in.", p, openFor)
	return job.Invitation{Secret: secret}, err
}

// newSession keeps the hash of a new secret of a person, for as long as it is valid.
func (h *Hub) newSession(ctx context.Context, kind string, p job.Person, valid time.Duration) (secret string, err error) {
	data, err := json.Marshal(job.Person{V: job.Version, Name: p.Name, Key: p.Key})
	if err != nil {
		return "", err
	}
	secret = rand.Text()
	_, err = h.sessions.Update(ctx, kind+hashOf(secret), data, 0, valid)
	return secret, err
}

// SignIn takes a secret that open made, and returns a cookie's value.
func (h *Hub) SignIn(ctx context.Context, secret string) (cookie string, err error) {
	p, revision, err := h.session(ctx, "in."+hashOf(secret))
	if err != nil {
		return "", err
	}
	if err := h.sessions.Delete(ctx, "in."+hashOf(secret), revision); err != nil { // somebody else was first
		return "", errors.Join(ErrSignedOut, err)
	}
	if err := h.audit(ctx, Record{Who: p.Name, Role: p.Role, Verb: "sign in"}); err != nil {
		return "", err
	}
	return h.newSession(ctx, "on.", p, SessionTTL)
}

// SignOut ends a cookie.
func (h *Hub) SignOut(ctx context.Context, cookie string) error {
	_, revision, err := h.session(ctx, "on."+hashOf(cookie))
	if err != nil {
		return err
	}
	return h.sessions.Delete(ctx, "on."+hashOf(cookie), revision)
}

// SignedIn returns the person of a cookie, with the role of this moment.
func (h *Hub) SignedIn(ctx context.Context, cookie string) (job.Person, error) {
	p, _, err := h.session(ctx, "on."+hashOf(cookie))
	return p, err
}

// IsStill reports whether a person has the key and the role of an earlier moment.
func (h *Hub) IsStill(p job.Person) bool {
	now, known := h.person(p.Name)
	return known && now.Key == p.Key && now.Role == p.Role
}

// session returns the person of a secret. Who was removed, or joined again, has none.
func (h *Hub) session(ctx context.Context, key string) (job.Person, uint64, error) {
	e, err := h.sessions.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return job.Person{}, 0, ErrSignedOut
	}
	if err != nil {
		return job.Person{}, 0, fmt.Errorf("ask the engine who you are: %w", err)
	}
	var of job.Person
	if err := json.Unmarshal(e.Value(), &of); err != nil {
		return job.Person{}, 0, err
	}
	p, known := h.person(of.Name)
	if !known || p.Key == "" || p.Key != of.Key || p.Role == job.AStation {
		return job.Person{}, 0, ErrSignedOut
	}
	return p, e.Revision(), nil
}

// Changed returns a channel that gets something when the hub knows something more, until ctx ends.
func (h *Hub) Changed(ctx context.Context) <-chan struct{} {
	news, end := h.index.hear(anyWrite)
	context.AfterFunc(ctx, end)
	return news
}

// maxEventBytes limits an event of a job's progress.
const maxEventBytes = 4 << 10

// Progress calls note with each event of jobs that this hub knows, by the job's key, until ctx ends.
// A station can send only events of its own jobs.
func (h *Hub) Progress(ctx context.Context, note func(key string, e progress.Event)) error {
	sub, err := h.nc.Subscribe("prog.>", func(m *nats.Msg) {
		key, known := h.keyOfEvent(strings.Split(m.Subject, "."))
		if !known || len(m.Data) > maxEventBytes {
			return
		}
		var e progress.Event
		if json.Unmarshal(m.Data, &e) == nil {
			note(key, e)
		}
	})
	if err == nil {
		context.AfterFunc(ctx, func() { _ = sub.Unsubscribe() }) // or the connection ended first
	}
	return err
}

// keyOfEvent returns the key of the job of an event prog.<station>.<name>.<id>. Only the station that
// claimed a build can speak of it.
func (h *Hub) keyOfEvent(tokens []string) (key string, known bool) {
	key = strings.Join(tokens[1:], ".")
	if len(tokens) != 4 || bus.Name(tokens[2]) != job.Builder {
		_, known = h.index.get("jobs", key)
		return key, known
	}
	key, _ = h.index.find(tokens[3])
	j, _, known := get[job.Job](h.index, "jobs", key)
	return key, known && j.Name == job.Builder && j.Station == bus.Name(tokens[1])
}
