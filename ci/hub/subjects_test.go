package hub

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/bus"
)

// cells are subjects, and the roles that may publish and subscribe to each. ME is the user's token.
var cells = []struct{ subject, publish, subscribe string }{
	{"api.viewer.ME.job.list", "viewer operator admin", ""},
	{"api.operator.ME.job.add", "operator admin", ""},
	{"api.admin.ME.remove", "admin", ""},
	{"api.station.ME.claim", "station", ""},
	{"api.viewer.other.job.list", "", ""},
	{"api.operator.other.job.add", "", ""},
	{"api.admin.other.remove", "", ""},
	{"api.station.other.claim", "", ""},
	{"api.viewer.ME", "", ""},
	{"api.hub.ME.x", "", ""},
	{"prog.ME.board.1", "station", "viewer operator admin"},
	{"prog.other.board.1", "", "viewer operator admin"},
	{"_INBOX_ME.1", "", "viewer operator admin station"},
	{"_INBOX_ME", "", ""},
	{"_INBOX_other.1", "", ""},
	{"_INBOX.1", "", ""},
	{"_R_.1", "", ""},
	{"audit.ME", "", ""},
	{"audit.other", "", ""},
	{"log.ME.1", "", ""},
	{"report.ME.board", "", ""},
	{"$KV.jobs.ME.board.1", "", ""},
	{"$KV.jobs.other.board.1", "", ""},
	{"$KV.alive.ME", "", ""},
	{"$KV.people.ME", "", ""},
	{"$O.artifacts.C.1", "", ""},
	{"$JS.API.INFO", "", ""},
	{"$JS.API.STREAM.MSG.GET.KV_jobs", "", ""},
	{"$JS.API.DIRECT.GET.KV_jobs", "", ""},
	{"$JS.API.DIRECT.GET.KV_jobs.$KV.jobs.ME.board.1", "", ""},
	{"$JS.API.CONSUMER.CREATE.KV_jobs.c.$KV.jobs.ME.>", "", ""},
	{"$JS.API.STREAM.DELETE.KV_jobs", "", ""},
	{"$JS.ACK.KV_jobs.c.1.1.1.1.0", "", ""},
	{"$SYS.REQ.USER.INFO", "", ""},
	{"$SYS.REQ.ACCOUNT.PING.CONNZ", "", ""},
}

// wildcards are what a user could subscribe to in order to hear others.
var wildcards = []struct{ subject, subscribe string }{
	{"prog.>", "viewer operator admin"},
	{"prog.ME.>", "viewer operator admin"},
	{"_INBOX_ME.>", "viewer operator admin station"},
	{">", ""},
	{"*.>", ""},
	{"api.>", ""},
	{"api.*.ME.>", ""},
	{"api.viewer.>", ""},
	{"_INBOX_other.>", ""},
	{"$JS.API.>", ""},
	{"$JS.>", ""},
	{"$KV.>", ""},
	{"$SYS.>", ""},
	{"audit.>", ""},
	{"log.>", ""},
}

// rawClient is a client of a role without Slipway's rules, and the hub that hears it.
type rawClient struct {
	role, me string
	nc, hub  *nats.Conn
	errs     chan error
}

// Each role may publish and read what the table says, and nothing else.
func TestPermissions(t *testing.T) {
	admin, invite, h := newHubAnd(t)
	all := map[job.Role]*access.Client{job.Admin: admin}
	for _, role := range []job.Role{job.Viewer, job.Operator, job.AStation} {
		all[role] = invite(role, "bench.1:"+string(role)) // a name of several tokens, were it not for Token
	}
	for role, client := range all {
		c := rawClient{string(role), bus.Token(client.Name), client.Conn, h.nc, make(chan error, 16)}
		c.nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.errs <- err })
		for _, cell := range cells {
			c.tryPublish(t, cell.subject, mayRole(cell.publish, c.role))
			c.trySubscribe(t, cell.subject, "", mayRole(cell.subscribe, c.role))
		}
		for _, w := range wildcards {
			c.trySubscribe(t, w.subject, "", mayRole(w.subscribe, c.role))
			c.trySubscribe(t, w.subject, "hub", mayRole(w.subscribe, c.role))
		}
	}
}

func mayRole(roles, role string) bool { return strings.Contains(" "+roles+" ", " "+role+" ") }

func (c rawClient) tryPublish(t *testing.T, subject string, may bool) {
	t.Helper()
	subject = strings.ReplaceAll(subject, "ME", c.me)
	heard, err := c.hub.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Unsubscribe()
	flush(t, c.hub)
	if err := c.nc.Publish(subject, nil); err != nil {
		t.Fatal(err)
	}
	c.check(t, "publish to "+subject, may, heard)
}

func (c rawClient) trySubscribe(t *testing.T, pattern, queue string, may bool) {
	t.Helper()
	pattern = strings.ReplaceAll(pattern, "ME", c.me)
	heard, err := c.nc.QueueSubscribeSync(pattern, queue)
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Unsubscribe()
	flush(t, c.nc)
	subject := strings.NewReplacer("*", "x", ">", "x").Replace(pattern)
	if !strings.HasPrefix(subject, "$JS.") { // the engine would do it
		if err := c.hub.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	flush(t, c.hub)
	c.check(t, "subscribe to "+pattern+" as a member of "+queue, may, heard)
}

// check waits for the server's refusal, or for the message, and sees that the other does not come.
func (c rawClient) check(t *testing.T, what string, may bool, heard *nats.Subscription) {
	t.Helper()
	flush(t, c.nc)
	if may {
		if _, err := heard.NextMsgWithContext(withLimit(t)); err != nil || len(c.errs) > 0 {
			t.Fatalf("%s: %s = %v; want it allowed", c.role, what, err)
		}
		return
	}
	flush(t, c.hub)
	if n, _, _ := heard.Pending(); n != 0 {
		t.Errorf("%s: %s brought %d messages; want it refused", c.role, what, n)
		return
	}
	select {
	case err := <-c.errs:
		if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
			t.Errorf("%s: %s = %v; want a violation of permissions", c.role, what, err)
		}
	case <-withLimit(t).Done():
		t.Fatalf("%s: %s is not refused", c.role, what)
	}
}

func flush(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if err := nc.FlushWithContext(withLimit(t)); err != nil {
		t.Fatal(err)
	}
}

// withLimit is a time in which what must happen has happened, also on a loaded machine.
func withLimit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
