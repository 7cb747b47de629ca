package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/bus"
)

// hostileRequests are no requests that Slipway sends. A newer version is tried at each place where a
// form may be.
func hostileRequests() map[string]string {
	deep := strings.Repeat("[", 20_000)
	all := map[string]string{
		"nothing":            "",
		"null":               "null",
		"a list":             "[]",
		"a text":             `"x"`,
		"half an object":     `{"id":`,
		"two objects":        `{} {}`,
		"wrong types":        `{"id":{},"job":3,"station":[],"boards":{},"instance":1,"name":{},"secret":{}}`,
		"huge numbers":       `{"revision":1e400,"since":-1,"n":99999999999999999999,"epoch":1.5}`,
		"names":              `{"name":"../../x","station":"*","id":">","table":"a.b","role":"hub","instance":"$KV.jobs.>"}`,
		"control characters": "{\"name\":\"\\u001b[2J\\u0000\",\"station\":\"a\\nb\",\"id\":\"\\u202e\"}",
		"much":               `{"name":"` + strings.Repeat("x", 64<<10) + `"}`,
		"deep":               `{"job":` + deep,
		"no UTF-8":           "{\"name\":\"\xff\xfe\"}",
	}
	for name, format := range map[string]string{"": "%s", "job": `{"job":%s}`, "station": `{"station":%s}`, "boards": `{"boards":[%s]}`} {
		all["a newer form "+name] = fmt.Sprintf(format, `{"v":2,"name":"lab-1","instance":"i9"}`)
	}
	return all
}

// state is all keys and their revisions, but for those that a request of nothing may change: leases,
// and links to the page.
func (h *Hub) state(t *testing.T) map[string]uint64 {
	t.Helper()
	if err := h.index.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := map[string]uint64{}
	for _, b := range h.index.buckets {
		if b.Bucket() == "alive" || b.Bucket() == "invites" {
			continue
		}
		entries, _ := h.index.list(b.Bucket(), "")
		for _, e := range entries {
			all[b.Bucket()+"/"+e.key] = e.revision
		}
	}
	return all
}

// A stolen identity sends whatever it likes to each verb that its role may ask for. The hub answers each
// request in one line, and changes nothing.
func TestHostileRequests(t *testing.T) {
	admin, invite, h := newHubAnd(t)
	station, operator := invite(job.AStation, "bench-1"), invite(job.Operator, "otto")
	announce(t, station, "i1")
	waits := wish
	waits.StartWithinMS = time.Hour.Milliseconds() // else it ends by itself meanwhile
	ask[job.Change](t, admin, job.VerbJobAdd, waits)
	before := h.state(t)
	for verb, v := range verbs {
		c := map[job.Role]*access.Client{job.AStation: station, job.Admin: admin}[job.RoleOf(verb)]
		if c == nil {
			c = operator
		}
		for name, request := range hostileRequests() {
			if v.polls && json.Valid([]byte(request)) {
				continue // it would wait
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			m, err := c.RequestWithContext(ctx, job.Subject(c.Name, verb), []byte(request))
			cancel()
			if err != nil {
				t.Fatalf("%s with %s: %v; want an answer", verb, name, err)
			}
			var refusal bus.Refusal
			if err := json.Unmarshal(m.Data, &refusal); err != nil || strings.ContainsAny(refusal.Text, "\n\x1b\x00") || len([]rune(refusal.Text)) > 600 {
				t.Errorf("%s with %s is answered %.700q, %v; want one line", verb, name, m.Data, err)
			}
			if strings.HasPrefix(name, "a newer form") && refusal.Text != "" && strings.Contains(refusal.Text, "newer") && refusal.Next == "" {
				t.Errorf("%s with %s is answered %q without a next step", verb, name, refusal.Text)
			}
		}
	}
	if after := h.state(t); !maps.Equal(after, before) {
		t.Errorf("the keys were\n%v\nand are\n%v", before, after)
	}
}

// No form of a newer Slipway is taken for one of this version.
func TestNewerForms(t *testing.T) {
	admin, invite, h := newHubAnd(t)
	station := invite(job.AStation, "bench-1")
	announce(t, station, "i1")
	before := h.state(t)
	newer := wish
	newer.V = job.Version + 1
	newerStation := job.Station{V: job.Version + 1, Name: "bench-1", Instance: "i1"}
	for verb, in := range map[string]any{
		job.VerbJobAdd:     newer,
		job.VerbRolloutAdd: job.Rollout{V: job.Version + 1, Board: "virt", Steps: wish.Steps, LimitMS: 1000, PatienceMS: 1000},
		job.VerbInvite:     job.Person{V: job.Version + 1, Name: "eve", Role: job.Admin},
	} {
		refused(t, admin, verb, in, job.ErrNewer.Error())
	}
	for verb, in := range map[string]any{
		job.VerbHello:   job.Hello{Station: newerStation},
		job.VerbBoards:  job.Boards{Instance: "i1", Boards: []job.Board{{V: job.Version + 1, Name: "lab-1", Board: "virt"}}},
		job.VerbClaim:   job.Change{Job: newer, Instance: "i1"},
		job.VerbRestore: job.Change{Job: newer, Instance: "i1"},
	} {
		refused(t, station, verb, in, job.ErrNewer.Error())
	}
	if after := h.state(t); !maps.Equal(after, before) {
		t.Errorf("the keys were\n%v\nand are\n%v", before, after)
	}
}

// Requests of a job's whole life, sent again in any order, change nothing that has ended.
func TestReplayedRequests(t *testing.T) {
	admin, invite, h := newHubAnd(t)
	station := invite(job.AStation, "bench-1")
	lease := announce(t, station, "i1")
	renewed := ask[job.Lease](t, station, job.VerbAlive, job.Alive{Instance: "i1", Revision: lease.Revision})
	added := ask[job.Change](t, admin, job.VerbJobAdd, wish)
	claim := added
	claim.Instance, claim.Job.Claim = "i1", &job.Claim{Instance: "i1", Epoch: 1, Attempt: 1}
	claimed := ask[job.Change](t, station, job.VerbClaim, claim)
	end := claimed
	end.Instance, end.Job.Result = "i1", &job.Result{Attempts: 1}
	end.Job.Result.Host, end.Job.Result.Kind = "lab-1", "passed"
	ask[job.Change](t, station, job.VerbEnd, end)
	before := h.state(t)
	restore := claimed
	restore.Instance = "i1"
	late := end
	late.Job.Result = &job.Result{Attempts: 1}
	late.Job.Result.Host, late.Job.Result.Kind = "lab-1", "unreachable"
	for _, r := range []struct {
		c    *access.Client
		verb string
		in   any
	}{
		{admin, job.VerbJobAdd, wish},
		{station, job.VerbClaim, claim},
		{station, job.VerbEnd, end},
		{station, job.VerbEnd, late},
		{station, job.VerbRestore, restore},
		{admin, job.VerbJobStop, job.StopWish{ID: wish.ID, How: job.Now}},
		{station, job.VerbAlive, job.Alive{Instance: "i1", Epoch: 0, Revision: lease.Revision}},
	} {
		for range 2 {
			_, err := access.Ask[nothing](t.Context(), r.c, r.verb, r.in)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s again: %v", r.verb, err)
			}
		}
	}
	if after := h.state(t); !reflect.DeepEqual(after, before) {
		t.Errorf("the keys were\n%v\nand are\n%v", before, after)
	}
	refused(t, station, job.VerbAlive, job.Alive{Instance: "i0", Revision: lease.Revision}, errNoLease.Error())
	ask[job.Lease](t, station, job.VerbAlive, job.Alive{Instance: "i1", Revision: renewed.Revision})
}
