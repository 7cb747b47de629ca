package hub

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/bus"
)

// newHub runs a hub, and returns its state folder and a client of its admin.
func newHub(t *testing.T, edit ...func(*Options)) (*access.Client, func(role job.Role, name string) *access.Client) {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	type ready struct{ address, token string }
	answers := make(chan ready, 1)
	done := make(chan error, 1)
	o := Options{
		Dir: t.TempDir(), Names: []string{"127.0.0.1"}, Listen: "127.0.0.1:0", Page: "127.0.0.1:0", Admin: "ada",
		Log: testLog{t}, Ready: func(address, token string) { answers <- ready{address, token} },
	}
	for _, change := range edit {
		change(&o)
	}
	go func() { done <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
	})
	var r ready
	select {
	case r = <-answers:
	case err := <-done:
		t.Fatalf("Run = %v", err)
	}
	admin := join(t, r.address, r.token)
	return admin, func(role job.Role, name string) *access.Client {
		t.Helper()
		i, err := access.Ask[job.Invitation](t.Context(), admin, job.VerbInvite, job.Person{Name: name, Role: role})
		if err != nil {
			t.Fatal(err)
		}
		return join(t, r.address, access.Token(i.Secret, []byte(admin.Authority)))
	}
}

// newHubAnd is newHub, and also returns what the hub's page has.
func newHubAnd(t *testing.T) (*access.Client, func(role job.Role, name string) *access.Client, *Hub) {
	t.Helper()
	hubs := make(chan *Hub, 1)
	admin, invite := newHub(t, func(o *Options) {
		o.Handler = func(_ context.Context, h *Hub, _ []string, _ []byte) (http.Handler, error) {
			hubs <- h
			return http.NotFoundHandler(), nil
		}
	})
	return admin, invite, <-hubs
}

// testLog writes to a test's log.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func join(t *testing.T, address, token string) *access.Client {
	t.Helper()
	id, err := access.Join(t.Context(), address, token)
	if err != nil {
		t.Fatal(err)
	}
	c, err := id.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ask[Out any](t *testing.T, c *access.Client, verb string, in any) Out {
	t.Helper()
	out, err := access.Ask[Out](t.Context(), c, verb, in)
	if err != nil {
		t.Fatalf("%s asks %s: %v", c.Name, verb, err)
	}
	return out
}

// refused fails the test unless a request is refused with this text.
func refused(t *testing.T, c *access.Client, verb string, in any, want string) {
	t.Helper()
	_, err := access.Ask[nothing](t.Context(), c, verb, in)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s asks %s: %v; want %q", c.Name, verb, err, want)
	}
}

// announce makes a client a station with one board.
func announce(t *testing.T, c *access.Client, instance string) job.Lease {
	t.Helper()
	lease := ask[job.Lease](t, c, job.VerbHello, job.Hello{Station: job.Station{V: 1, Name: c.Name, Instance: instance, Machine: "m1"}})
	b := job.Board{V: 1, Name: "lab-1", Board: "virt", Does: []job.Do{job.Flash, job.Smoke}}
	ask[nothing](t, c, job.VerbBoards, job.Boards{Instance: instance, Boards: []job.Board{b}})
	return lease
}

var wish = job.Job{
	V: 1, ID: job.NewID(), Station: "bench-1", Name: "lab-1", Board: "virt", Steps: []job.Step{{Do: job.Smoke}},
	LimitMS: 1000, StartWithinMS: 1000,
}

// A job goes from queued to ended, once.
func TestJob(t *testing.T) {
	admin, invite := newHub(t)
	station := invite(job.AStation, "bench-1")
	announce(t, station, "i1")
	added := ask[job.Change](t, admin, job.VerbJobAdd, wish)
	if again := ask[job.Change](t, admin, job.VerbJobAdd, wish); again.Revision != added.Revision {
		t.Errorf("the same job again has revision %d; want %d", again.Revision, added.Revision)
	}
	mine := ask[job.Changes](t, station, job.VerbMine, job.Wait{})
	if len(mine.Jobs) != 1 || mine.Jobs[0].Job.By != "ada" {
		t.Fatalf("the station has %+v", mine.Jobs)
	}
	c := mine.Jobs[0]
	c.Instance, c.Job.Claim = "i1", &job.Claim{Instance: "i1", Epoch: 1, Attempt: 1}
	stale := c
	c = ask[job.Change](t, station, job.VerbClaim, c)
	refused(t, station, job.VerbClaim, stale, bus.ErrConflict.Error())
	done := make(chan job.Job)
	go func() {
		j, _ := access.Wait(t.Context(), admin, wish.ID)
		done <- j
	}()
	c.Instance = "i1"
	c.Job.Result = &job.Result{Result: fleet.Result{Host: "lab-1", Kind: fleet.Passed}, Attempts: 1}
	stolen := c
	stolen.Job.Claim = &job.Claim{Instance: "i1", Epoch: 1, Attempt: 2}
	refused(t, station, job.VerbEnd, stolen, "its own claim")
	ended := ask[job.Change](t, station, job.VerbEnd, c)
	if again := ask[job.Change](t, station, job.VerbEnd, c); again.Revision != ended.Revision {
		t.Errorf("the same result again has revision %d; want %d", again.Revision, ended.Revision)
	}
	if j := <-done; j.State != job.Ended || j.Result.Kind != fleet.Passed {
		t.Errorf("the waiting person got %+v", j)
	}
	refused(t, admin, job.VerbJobStop, job.StopWish{ID: wish.ID, How: job.Gently}, "has ended")
}

// A station that knows that the hub has no jobs waits for the first one. It is not told again and again
// that there are none.
func TestFirstJobIsWaitedFor(t *testing.T) {
	admin, invite := newHub(t)
	station := invite(job.AStation, "bench-1")
	announce(t, station, "i1")
	none := ask[job.Changes](t, station, job.VerbMine, job.Wait{})
	if len(none.Jobs) != 0 {
		t.Fatalf("a new hub has the jobs %+v", none.Jobs)
	}
	answers, err := station.SubscribeSync("_INBOX_bench-1.x")
	if err != nil {
		t.Fatal(err)
	}
	known, _ := json.Marshal(job.Wait{Since: none.Until, Known: true})
	if err := errors.Join(station.PublishRequest(job.Subject("bench-1", job.VerbMine), "_INBOX_bench-1.x", known), station.Flush()); err != nil {
		t.Fatal(err)
	}
	added := ask[job.Change](t, admin, job.VerbJobAdd, wish)
	m, err := answers.NextMsgWithContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all job.Changes
	if err := json.Unmarshal(m.Data, &all); err != nil || len(all.Jobs) != 1 || all.Jobs[0].Job.ID != added.Job.ID {
		t.Errorf("the answer is %s, %v; want the job %s", m.Data, err, added.Job.ID)
	}
}

// Each request is refused to those whose role may not ask for it, and is in the audit if it changes
// something.
func TestRolesOfVerbs(t *testing.T) {
	admin, invite := newHub(t)
	all := map[job.Role]*access.Client{job.Admin: admin, job.Viewer: invite(job.Viewer, "vera"), job.Operator: invite(job.Operator, "otto"), job.AStation: invite(job.AStation, "bench-1")}
	for verb := range verbs {
		for role, c := range all {
			if role.May(verb) {
				continue
			}
			refused(t, c, verb, nothing{}, "needs the role "+string(job.RoleOf(verb)))
			if err := errors.Join(c.PublishRequest(job.Subject(c.Name, verb), "_INBOX_"+c.Name+".x", []byte("{}")), c.Flush()); err != nil {
				t.Fatal(err)
			}
			if err := c.LastError(); err == nil || !strings.Contains(err.Error(), "Permissions Violation for Publish to \""+job.Subject(c.Name, verb)) {
				t.Errorf("%s as %s: %v; want a violation", verb, role, err)
			}
		}
	}
	_, err := access.Ask[nothing](t.Context(), all[job.Operator], job.VerbJobAdd, nothing{})
	if err == nil {
		t.Error("an empty job was added")
	}
	records := ask[Audit](t, admin, job.VerbAudit, nothing{}).Records
	if !slices.ContainsFunc(records, func(r Record) bool { return r.Who == "otto" && r.Verb == job.VerbJobAdd && r.Refused != "" }) {
		t.Errorf("the audit lacks the refused job of otto: %+v", records)
	}
}

// A hub answers nothing whose answer would go anywhere but to the sender's own inbox: NATS lets a
// client name any subject for it, and the hub may publish to all.
func TestAnswersGoToTheOwnInbox(t *testing.T) {
	admin, invite := newHub(t)
	vera := invite(job.Viewer, "vera")
	answers, err := admin.SubscribeSync("prog.>")
	if err != nil {
		t.Fatal(err)
	}
	inbox, err := vera.SubscribeSync("_INBOX_vera.>")
	if err != nil {
		t.Fatal(err)
	}
	for _, reply := range []string{"prog.evil", "_INBOX_ada.x", "_INBOX_vera", "$KV.jobs.a.b.c", "_INBOX_vera.x"} {
		if err := vera.PublishRequest(job.Subject("vera", job.VerbStationList), reply, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := inbox.NextMsg(10 * time.Second); err != nil || m.Subject != "_INBOX_vera.x" {
		t.Errorf("the own inbox has %v, %v", m, err)
	}
	if m, err := answers.NextMsg(300 * time.Millisecond); err == nil {
		t.Errorf("an answer went to %s", m.Subject)
	}
}

// A machine whose clock is a year behind, as one without a battery, accepts the hub's certificate.
func TestCertificateOfSlowClocks(t *testing.T) {
	a, err := OpenAuthority(t.TempDir(), []string{"h1"})
	if err != nil {
		t.Fatal(err)
	}
	own, err := a.current()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.PEM)
	for _, now := range []time.Time{time.Unix(1, 0), time.Now().AddDate(-1, 0, 0), time.Now()} {
		if _, err := own.Leaf.Verify(x509.VerifyOptions{DNSName: "h1", Roots: roots, CurrentTime: now}); err != nil {
			t.Errorf("Verify at %v = %v", now, err)
		}
	}
}
