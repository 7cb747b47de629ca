package hub

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

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
	if old, known := h.person(p.Name); known && old.Key != "" && old.Role != p.Role {
		return job.Invitation{}, fmt.Errorf("%s is a %s\nnext: slipway hub remove %s", p.Name, old.Role, p.Name)
	}
	secret := rand.Text()
	_, err := h.write(ctx, h.invites, hashOf(secret), job.Person{V: job.Version, Name: p.Name, Role: p.Role, By: who, Until: time.Now().Add(valid).UTC()}, 0)
	return job.Invitation{Secret: secret}, err
}

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// person returns what is known of a name.
func (h *Hub) person(name string) (p job.Person, known bool) {
	p, _, known = get[job.Person](h.index, "people", bus.Key(name))
	return p, known
}

// errInvitation says nothing of why an invitation does not hold.
var errInvitation = errors.New("the invitation is unknown, used or over\nnext: slipway hub invite  # by an admin, for a new one")

// Join takes an invitation and signs the key of who shows it. The same key gets the same answer again, as
// the first one may be lost.
func (h *Hub) Join(ctx context.Context, in job.Join) (job.Joined, error) {
	if err := h.check(ctx); err != nil {
		return job.Joined{}, err
	}
	invited, _, known := get[job.Person](h.index, "invites", hashOf(in.Secret))
	if !known {
		return job.Joined{}, errInvitation
	}
	token, err := h.Admit(invited.Role, invited.Name, in.Key)
	if err != nil {
		return job.Joined{}, err
	}
	_, _, err = edit(ctx, h, h.invites, hashOf(in.Secret), func(p *job.Person, known bool) error {
		switch now, _ := h.person(invited.Name); {
		case !known, p.Key != "" && p.Key != in.Key, slices.Contains(now.Revoked, in.Key):
			return errInvitation
		case p.Key == in.Key:
			return errSame
		}
		p.Key = in.Key
		return nil
	})
	if errors.Is(err, jetstream.ErrKeyNotFound) { // it was over, or withdrawn
		err = errInvitation
	}
	if err == nil {
		err = h.audit(ctx, Record{Who: invited.Name, Role: invited.Role, Verb: "join", What: in.Key})
	}
	if err == nil {
		err = h.setKey(ctx, job.Person{Name: invited.Name, Role: invited.Role, By: invited.By}, in.Key)
	}
	if err != nil {
		return job.Joined{}, err
	}
	addresses, pages := h.places()
	return job.Joined{Name: invited.Name, Role: invited.Role, JWT: token, Addresses: addresses, Pages: pages}, nil
}

// renewIdentity signs the key of who asks again, and says where the hubs are.
func (h *Hub) renewIdentity(_ context.Context, who string, in job.Renewal) (j job.Joined, err error) {
	p, known := h.person(who)
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
	_, _, err := edit(ctx, h, h.people, bus.Key(p.Name), func(now *job.Person, _ bool) error {
		if key != "" && now.Key == key {
			return errSame
		}
		p.V, p.Key, p.Revoked, p.Since = job.Version, key, now.Revoked, time.Now().UTC()
		if now.Key != "" {
			p.Revoked = slices.Concat(now.Revoked, []string{now.Key})
		}
		*now = p
		return nil
	})
	return err
}

// remove revokes the key of a person or station, and closes its connections. It withdraws invitations of
// that name. A station is forgotten. What an earlier removal did not complete is done again.
func (h *Hub) remove(ctx context.Context, who string, in job.Person) (nothing, error) {
	p, known := h.person(in.Name)
	_, left := h.index.get("stations", bus.Key(in.Name))
	withdrawn, err := h.withdraw(ctx, in.Name)
	switch {
	case err != nil:
		return nothing{}, err
	case (!known || p.Key == "") && !left && !withdrawn:
		return nothing{}, fmt.Errorf("nobody is called %q\nnext: slipway hub people", in.Name)
	case p.Key != "" && p.Role == job.Admin && h.admins() == 1:
		return nothing{}, fmt.Errorf("%s is the only admin\nnext: slipway hub invite person NAME --role=admin", p.Name)
	}
	p.By = who
	if p.Key != "" {
		err = h.setKey(ctx, p, "")
	}
	if err == nil && p.Role == job.AStation {
		err = h.forgetStation(ctx, who, p.Name)
	}
	return nothing{}, err
}

// withdraw removes the invitations of a name, and reports whether one was open. One that was taken would
// let the same key in again.
func (h *Hub) withdraw(ctx context.Context, name string) (wasOpen bool, err error) {
	all := list[job.Person](h.index, "invites", "")
	for _, i := range all {
		if i.form.Name == name && err == nil {
			wasOpen = wasOpen || i.form.Key == ""
			err = h.invites.Delete(ctx, i.key, i.revision)
		}
	}
	return wasOpen, err
}

// forgetStation ends the jobs of a station that was removed, and removes its keys, that of the station
// last.
func (h *Hub) forgetStation(ctx context.Context, who, name string) error {
	jobs := list[job.Job](h.index, "jobs", "")
	for _, r := range jobs {
		if r.form.Station != name || r.form.State == job.Ended {
			continue
		}
		kind := fleet.NotBegun
		if r.form.State == job.Running {
			kind = fleet.Unsure
		}
		if err := h.endJobAt(ctx, r, kind, "its station was removed by "+who); err != nil && !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	for _, b := range []*bus.Bucket{h.boards, h.alive, h.stations} {
		entries, _ := h.index.list(b.Bucket(), "")
		for _, e := range entries {
			if stationOf(e.key) != name {
				continue
			}
			if err := b.Delete(ctx, e.key, e.revision); err != nil && (b != h.alive || !errors.Is(err, bus.ErrConflict)) { // a renewed lease ends by itself
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
	people := list[job.Person](h.index, "people", "")
	for _, p := range people {
		all = append(all, p.form)
	}
	return all
}

func (h *Hub) listPeople(_ context.Context, _ string, _ nothing) (job.People, error) {
	all := list[job.Person](h.index, "invites", "")
	out := job.People{People: h.all()}
	for _, i := range all {
		if i.form.Key == "" {
			out.Invited = append(out.Invited, i.form)
		}
	}
	slices.SortFunc(out.Invited, func(a, b job.Person) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// revokeKeys calls Revoke with all revoked keys, whenever there are more, until ctx ends.
func (h *Hub) revokeKeys(ctx context.Context) error {
	news, end := h.index.hear("people")
	defer end()
	for known := ""; ; {
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
			return nil
		case <-news:
		}
	}
}
