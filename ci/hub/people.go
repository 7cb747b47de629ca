package hub

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/layers/bus"
)

// inviteFor is how long an invitation is valid, if nobody says otherwise.
const inviteFor = time.Hour

// invite makes an invitation for a person or a station. It is good once.
func (h *Hub) invite(ctx context.Context, who string, p job.Person) (job.Invitation, error) {
	valid := cmp.Or(time.Duration(p.ValidMS)*time.Millisecond, inviteFor)
	if err := job.CheckName("the name", p.Name); err != nil {
		return job.Invitation{}, err
	}
	if !slices.Contains(job.Roles, p.Role) {
		return job.Invitation{}, fmt.Errorf("the role %q is unknown; have %v", p.Role, job.Roles)
	}
	if valid < 0 || valid > inviteTTL {
		return job.Invitation{}, fmt.Errorf("an invitation is valid for at most %v", inviteTTL)
	}
	if old, _, known := h.person(p.Name); known && old.Key != "" && old.Role != p.Role {
		return job.Invitation{}, fmt.Errorf("%s is a %s\nnext: slipway hub remove %s", p.Name, old.Role, p.Name)
	}
	secret := rand.Text()
	_, err := h.write(ctx, h.invites, hashOf(secret), job.Person{V: job.Version, Name: p.Name, Role: p.Role, By: who}, 0, valid)
	return job.Invitation{Secret: secret}, err
}

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// person returns what is known of a name.
func (h *Hub) person(name string) (p job.Person, revision uint64, known bool) {
	e, known := h.index.get("people", bus.Key(name))
	return p, e.revision, known && json.Unmarshal(e.value, &p) == nil
}

// errInvitation says nothing of why an invitation does not hold.
var errInvitation = errors.New("the invitation is unknown, used or over\nnext: slipway hub invite  # by an admin, for a new one")

// Join takes an invitation and signs the key of who shows it.
func (h *Hub) Join(ctx context.Context, in job.Join) (job.Joined, error) {
	if err := h.check(ctx); err != nil {
		return job.Joined{}, err
	}
	e, err := h.invites.Get(ctx, hashOf(in.Secret))
	var invited job.Person
	if err != nil || json.Unmarshal(e.Value(), &invited) != nil {
		return job.Joined{}, errInvitation
	}
	token, err := h.Admit(invited.Role, invited.Name, in.Key)
	if err != nil {
		return job.Joined{}, err
	}
	if err := h.invites.Delete(ctx, hashOf(in.Secret), e.Revision()); err != nil { // somebody else was first
		return job.Joined{}, errInvitation
	}
	if err := h.audit(ctx, Record{Who: invited.Name, Role: invited.Role, Verb: "join", What: in.Key}); err != nil {
		return job.Joined{}, err
	}
	addresses, pages := h.places()
	err = h.setKey(ctx, invited, in.Key)
	return job.Joined{Name: invited.Name, Role: invited.Role, JWT: token, Addresses: addresses, Pages: pages}, err
}

// renewIdentity signs the key of who asks again, and says where the hubs are.
func (h *Hub) renewIdentity(_ context.Context, who string, in job.Renewal) (j job.Joined, err error) {
	p, _, known := h.person(who)
	if !known || p.Key == "" {
		return j, fmt.Errorf("nobody is called %q", who)
	}
	j.Name, j.Role = p.Name, p.Role
	if j.Addresses, j.Pages = h.places(); in.JWT {
		j.JWT, err = h.Admit(p.Role, p.Name, p.Key)
	}
	return j, err
}

// setKey makes a key the one of a person or station, "" for nobody's. An earlier one is revoked.
func (h *Hub) setKey(ctx context.Context, p job.Person, key string) error {
	old, revision, _ := h.person(p.Name)
	p.V, p.Key, p.Revoked, p.Since = job.Version, key, old.Revoked, time.Now().UTC()
	if old.Key != "" {
		p.Revoked = append(p.Revoked, old.Key)
	}
	_, err := h.write(ctx, h.people, bus.Key(p.Name), p, revision, 0)
	return err
}

// remove revokes the key of a person or station, and closes its connections. A station is forgotten.
// What an earlier removal did not complete is done again.
func (h *Hub) remove(ctx context.Context, who string, in job.Person) (nothing, error) {
	p, _, known := h.person(in.Name)
	_, left := h.index.get("stations", bus.Key(in.Name))
	if !known || p.Key == "" && !left {
		return nothing{}, fmt.Errorf("nobody is called %q\nnext: slipway hub people", in.Name)
	}
	if p.Key != "" && p.Role == job.Admin && h.admins() == 1 {
		return nothing{}, fmt.Errorf("%s is the only admin\nnext: slipway hub invite person NAME --role=admin", p.Name)
	}
	p.By = who
	if p.Key != "" {
		if err := h.setKey(ctx, p, ""); err != nil {
			return nothing{}, err
		}
	}
	if p.Role != job.AStation {
		return nothing{}, nil
	}
	return nothing{}, h.forgetStation(ctx, who, p.Name)
}

// forgetStation ends the jobs of a station that was removed, and removes its keys, that of the station
// last.
func (h *Hub) forgetStation(ctx context.Context, who, name string) error {
	_, jobs, _ := h.index.list("jobs", "")
	for _, e := range jobs {
		if e.job == nil || e.job.Station != name || e.job.State == job.Ended {
			continue
		}
		kind := fleet.NotBegun
		if e.job.State == job.Running {
			kind = fleet.Unsure
		}
		if err := h.endJobAt(ctx, e, kind, "its station was removed by "+who); err != nil && !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	for _, b := range []*bus.Bucket{h.boards, h.alive, h.stations} {
		keys, entries, _ := h.index.list(b.Bucket(), "")
		for _, key := range slices.DeleteFunc(keys, func(key string) bool { return stationOf(key) != name }) {
			err := b.Delete(ctx, key, entries[key].revision)
			if err != nil && (b != h.alive || !errors.Is(err, bus.ErrConflict)) { // a renewed lease ends by itself
				return err
			}
		}
	}
	return nil
}

// admins returns how many admins have joined.
func (h *Hub) admins() (n int) {
	for _, p := range h.all() {
		if p.Role == job.Admin && p.Key != "" {
			n++
		}
	}
	return n
}

// all returns all people and stations that were ever known.
func (h *Hub) all() (all []job.Person) {
	keys, entries, _ := h.index.list("people", "")
	for _, key := range keys {
		var p job.Person
		if json.Unmarshal(entries[key].value, &p) == nil {
			all = append(all, p)
		}
	}
	return all
}

func (h *Hub) listPeople(_ context.Context, _ string, _ nothing) (job.People, error) {
	return job.People{People: h.all()}, nil
}

// revokeKeys calls Revoke with all revoked keys, whenever there are more, until ctx ends.
func (h *Hub) revokeKeys(ctx context.Context) error {
	known := ""
	for ctx.Err() == nil {
		changed := h.index.next()
		var revoked []string
		for _, p := range h.all() {
			revoked = append(revoked, p.Revoked...)
		}
		if now := strings.Join(revoked, " "); now != known && h.Revoke != nil {
			if err := h.Revoke(revoked); err != nil {
				return err
			}
			known = now
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return nil
}
