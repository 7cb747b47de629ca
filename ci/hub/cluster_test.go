package hub_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/hub/hubtest"
	"slipway/ci/job"
	"slipway/images/statetest"
	"slipway/layers/bus"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

func TestMain(m *testing.M) {
	hubtest.Main()
	statetest.Main(m)
}

func join(t *testing.T, address, token string) access.Identity {
	t.Helper()
	id, err := access.Join(t.Context(), address, token)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// at connects to one of the hubs only.
func at(t *testing.T, id access.Identity, h *hubtest.Hub) *access.Client {
	t.Helper()
	id.Addresses = []string{h.Listen}
	c, err := id.Dial(t.Context())
	if err == nil {
		err = bus.SetAddresses(c.Conn, id.Addresses)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask asks a hub, again while it is away.
func ask[Out any](t *testing.T, c *access.Client, verb string, in any) Out {
	t.Helper()
	for {
		out, err := access.Ask[Out](t.Context(), c, verb, in)
		if err == nil {
			return out
		}
		if !errors.Is(err, bus.ErrAway) || run.Sleep(t.Context(), 50*time.Millisecond) != nil {
			t.Fatalf("%s asks %s: %v", c.Name, verb, err)
		}
	}
}

func invite(t *testing.T, admin *access.Client, role job.Role, name, addresses string) access.Identity {
	t.Helper()
	i := ask[job.Invitation](t, admin, job.VerbInvite, job.Person{Name: name, Role: role})
	return join(t, addresses, access.Token(i.Secret, []byte(admin.Authority)))
}

func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !holds() {
		if run.Sleep(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("waited for %s", what)
		}
	}
}

var wish = job.Job{V: 1, Station: "bench-1", Name: "lab-1", Board: "virt", Steps: []job.Step{{Do: job.Smoke}}, LimitMS: 1000, StartWithinMS: 3_600_000}

// Three hubs answer as one. One may be lost; with two lost, nothing is changed. To start hubs takes
// seconds, so one cluster goes through all of it.
func TestThreeHubs(t *testing.T) {
	hubs, address, token := hubtest.Start(t, 0)
	ada := join(t, address, token)
	if len(ada.Addresses) != 3 || len(ada.Pages) != 3 {
		t.Errorf("the identity has %v and %v; want three of each", ada.Addresses, ada.Pages)
	}
	var admins, stations [3]*access.Client
	admins[0] = at(t, ada, hubs[0])
	bench := invite(t, admins[0], job.AStation, "bench-1", hubs[1].Page)
	for i, h := range hubs {
		admins[i], stations[i] = at(t, ada, h), at(t, bench, h)
	}
	checkJob(t, admins, stations)
	checkRemoved(t, hubs, admins)
	checkLossOfOne(t, hubs, ada, admins)
	checkLossOfTwo(t, hubs, admins)
	if os.Getenv("SLIPWAY_LONG") != "" {
		checkOrder(t, hubs, admins)
	}
}

// A job is added, claimed and ended through one hub each. Polls at all hubs hear of it.
func checkJob(t *testing.T, admins, stations [3]*access.Client) {
	ask[job.Lease](t, stations[2], job.VerbHello, job.Hello{Station: job.Station{V: 1, Name: "bench-1", Instance: "i-1"}})
	ask[struct{}](t, stations[1], job.VerbBoards, job.Boards{Instance: "i-1", Boards: []job.Board{{V: 1, Name: "lab-1", Board: "virt", Does: []job.Do{job.Smoke}}}})
	type heard struct {
		job.Change
		err  error
		took time.Duration
	}
	for round := range 6 {
		adds, claims, ends := round%3, (round+1)%3, (round+2)%3
		j := wish
		j.ID = job.NewID()
		added := ask[job.Change](t, admins[adds], job.VerbJobAdd, j)
		polls := make(chan heard, 3)
		for _, admin := range admins {
			go func() {
				began := time.Now()
				c, err := access.Ask[job.Change](t.Context(), admin, job.VerbJobWait, job.Wait{ID: j.ID, Since: added.Revision})
				polls <- heard{c, err, time.Since(began)}
			}()
		}
		c := added
		c.Instance, c.Job.Claim = "i-1", &job.Claim{Instance: "i-1", Epoch: 1, Attempt: 1}
		c = ask[job.Change](t, stations[claims], job.VerbClaim, c)
		for range admins {
			if p := <-polls; p.err != nil || p.Job.State == job.Queued || p.took > 20*time.Second {
				t.Errorf("a poll heard of %s after %v, %v; want the claim", p.Job.State, p.took, p.err)
			}
		}
		if _, err := access.Ask[job.Change](t.Context(), stations[adds], job.VerbClaim, added); !errors.Is(err, bus.ErrConflict) {
			t.Errorf("a second claim through another hub: %v; want %v", err, bus.ErrConflict)
		}
		c.Instance, c.Job.Result = "i-1", &job.Result{Result: fleet.Result{Host: "lab-1", Kind: fleet.Passed}, Attempts: 1}
		c = ask[job.Change](t, stations[ends], job.VerbEnd, c)
		for i, admin := range admins {
			if ended, err := access.Wait(t.Context(), admin, j.ID); err != nil || ended.Result.Kind != fleet.Passed {
				t.Errorf("hub %d says %+v, %v", i, ended, err)
			}
		}
		mine := ask[job.Changes](t, stations[claims], job.VerbMine, job.Wait{Since: c.Revision - 1})
		if len(mine.Jobs) != 0 || mine.Until < c.Revision {
			t.Errorf("the station is told of %+v; want nothing, up to %d", mine, c.Revision)
		}
	}
}

// The connections of a removed person end on all hubs.
func checkRemoved(t *testing.T, hubs [3]*hubtest.Hub, admins [3]*access.Client) {
	vera := invite(t, admins[1], job.Viewer, "vera", hubs[0].Page)
	var all []*access.Client
	for _, h := range hubs {
		all = append(all, at(t, vera, h))
	}
	ask[struct{}](t, admins[2], job.VerbRemove, job.Person{Name: "vera"})
	for i, c := range all {
		waitFor(t, "the connection to hub "+hubs[i].Name+" to end", func() bool { return !c.IsConnected() })
	}
	for _, h := range hubs {
		vera.Addresses = []string{h.Listen}
		if c, err := vera.Dial(t.Context()); err == nil || !strings.Contains(err.Error(), "refuses vera") {
			t.Errorf("vera connects to %s: %v, %v", h.Name, c, err)
		}
	}
}

// One hub is killed. Clients reach the others, by NATS and by HTTPS, and it comes back.
func checkLossOfOne(t *testing.T, hubs [3]*hubtest.Hub, ada access.Identity, admins [3]*access.Client) {
	c, err := ada.Dial(t.Context()) // the first address is that of hub 0
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.ConnectedAddr() != hubs[0].Listen {
		t.Errorf("ada is connected to %s; want %s", c.ConnectedAddr(), hubs[0].Listen)
	}
	hubs[0].Kill()
	waitFor(t, "ada's connection to another hub", func() bool { return c.IsConnected() && c.ConnectedAddr() != hubs[0].Listen })
	if i := slices.IndexFunc(hubs[:], func(h *hubtest.Hub) bool { return h.Listen == c.ConnectedAddr() }); c.Page() != hubs[i].Page {
		t.Errorf("the page of the connection to %s is %s; want %s", c.ConnectedAddr(), c.Page(), hubs[i].Page)
	}
	i := ask[job.Invitation](t, c, job.VerbInvite, job.Person{Name: "otto", Role: job.Operator})
	otto := join(t, strings.Join(ada.Pages, ","), access.Token(i.Secret, []byte(ada.Authority)))
	if otto.Hub == hubs[0].Page || otto.Addresses[0] == hubs[0].Listen {
		t.Errorf("otto joined %s with %v", otto.Hub, otto.Addresses)
	}
	checkPages(t, hubs, ada)
	hubs[0].Start()
	hubs[0].Ready()
	ask[job.People](t, admins[0], job.VerbPeople, struct{}{})
}

// checkPages connects to the registry of a hub that does not run.
func checkPages(t *testing.T, hubs [3]*hubtest.Hub, id access.Identity) {
	t.Setenv(access.Variable, id.Hub)
	registry, err := access.Registry()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := registry.DialTLS(t.Context(), "tcp", registry.Address)
	if err != nil {
		t.Fatalf("connect to the registry of %v: %v", id.Pages, err)
	}
	defer conn.Close()
	if at := conn.RemoteAddr().String(); registry.Address != hubs[0].Page || at == hubs[0].Page {
		t.Errorf("the registry of %s answers at %s", registry.Address, at)
	}
}

// Two hubs are killed. The third one changes nothing, and says why, until one is back.
func checkLossOfTwo(t *testing.T, hubs [3]*hubtest.Hub, admins [3]*access.Client) {
	before := ask[hub.Audit](t, admins[2], job.VerbAudit, struct{}{})
	hubs[0].Kill()
	hubs[1].Kill()
	lost := wish
	lost.ID = job.NewID()
	waitFor(t, "hub 2 to miss the others", func() bool { // a request before that may be done later
		_, err := access.Ask[job.StationList](t.Context(), admins[2], job.VerbStationList, struct{}{})
		return err != nil && strings.Contains(err.Error(), "majority")
	})
	_, err := access.Ask[job.Change](t.Context(), admins[2], job.VerbJobAdd, lost)
	if want := "this hub does not reach a majority of the hubs, and answers once it does"; err == nil || err.Error() != want || !errors.Is(err, bus.ErrAway) {
		t.Errorf("a job for one hub of three: %v; want %s", err, want)
	}
	if _, err := access.Join(t.Context(), hubs[2].Page, access.Token("secret", []byte(admins[2].Authority))); err == nil || !strings.Contains(err.Error(), "majority") {
		t.Errorf("join one hub of three: %v", err)
	}
	hubs[1].Start()
	hubs[1].Ready()
	kept := wish
	kept.ID = job.NewID()
	ask[job.Change](t, admins[2], job.VerbJobAdd, kept)
	if all := ask[job.Changes](t, admins[1], job.VerbJobList, struct{}{}); slices.ContainsFunc(all.Jobs, func(c job.Change) bool { return c.Job.ID == lost.ID }) {
		t.Errorf("the job of one hub of three was added: %+v", all)
	}
	after := ask[hub.Audit](t, admins[1], job.VerbAudit, struct{}{})
	if i := len(before.Records); len(after.Records) < i || slices.ContainsFunc(after.Records[i:], func(r hub.Record) bool { return strings.Contains(r.What, lost.ID) }) {
		t.Errorf("the audit has %+v; want nothing of %s", after.Records, lost.ID)
	}
}

// All hubs end, and come back in another order with all records.
func checkOrder(t *testing.T, hubs [3]*hubtest.Hub, admins [3]*access.Client) {
	before := ask[job.People](t, admins[1], job.VerbPeople, struct{}{})
	for _, h := range hubs {
		h.Kill()
	}
	hubs[2].Start()
	waitForText(t, hubs[2], "waiting for "+hubs[0].Name+" or "+hubs[1].Name+": 1 of 3 hubs")
	hubs[0].Start()
	hubs[2].Ready()
	hubs[0].Ready()
	if after := ask[job.People](t, admins[2], job.VerbPeople, struct{}{}); len(after.People) != len(before.People) {
		t.Errorf("after the restart there are %+v; want %+v", after, before)
	}
}

// waitForText waits until a hub has shown a text.
func waitForText(t *testing.T, h *hubtest.Hub, text string) {
	t.Helper()
	waitFor(t, text, func() bool {
		log, err := os.ReadFile(h.Log())
		return err == nil && strings.Contains(string(log), text)
	})
}

// A hub waits for the others, and shares its keys with those that have an invitation. It begins
// nothing else.
func TestHubsJoin(t *testing.T) {
	hubs := hubtest.New(t, 0)
	hubs[0].Start()
	hubs[0].WaitForPage()
	waitForText(t, hubs[0], "waiting for "+hubs[1].Name+" and "+hubs[2].Name+": 1 of 3 hubs")
	invite := func(valid time.Duration) (token string) {
		t.Helper()
		address, token, err := hub.InviteHub(hubs[0].Dir, hubs[1].Name, valid)
		if err != nil || address != hubs[0].Page {
			t.Fatalf("InviteHub = %s, %v", address, err)
		}
		return token
	}
	token, over := invite(time.Minute), invite(1)
	secret, digest, _ := strings.Cut(token, ".")
	for name, c := range map[string]struct{ token, want string }{
		"wrong CA":   {secret + "." + digest[1:] + "A", "its authority is not the invitation's"},
		"unknown":    {access.HubToken + "ABC." + digest, "unknown, used or over"},
		"over":       {over, "unknown, used or over"},
		"a path":     {access.HubToken + "a/b." + digest, "unknown, used or over"},
		"a person's": {"ABC." + digest, "does not reach a majority"},
	} {
		if j, err := access.JoinHub(t.Context(), hubs[0].Page, c.token); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want %q", name, j, err, c.want)
		}
	}
	joined, err := access.JoinHub(t.Context(), hubs[0].Page, token)
	if err != nil || joined.Name != hubs[1].Name || len(joined.Hub.Secret) != 32 {
		t.Fatalf("JoinHub = %+v, %v", joined, err)
	}
	if again, err := access.JoinHub(t.Context(), hubs[0].Page, token); err == nil {
		t.Errorf("a token holds twice: %+v", again)
	}
	if err := errors.Join(hub.CanJoin(hubs[1].Dir), hub.KeepShare(hubs[1].Dir, joined)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(hubs[1].Dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the state folder is %v, %v; want 0700", info.Mode(), err)
	}
	for _, name := range []string{"keys.json", "ca.pem"} {
		one, err := os.ReadFile(filepath.Join(hubs[0].Dir, name))
		other, otherErr := os.ReadFile(filepath.Join(hubs[1].Dir, name))
		if err := errors.Join(err, otherErr); err != nil || string(one) != string(other) {
			t.Errorf("%s differs, %v", name, err)
		}
	}
	if err := hub.CanJoin(hubs[1].Dir); err == nil || !strings.Contains(err.Error(), "in use by a hub\nnext: ") {
		t.Errorf("CanJoin of a hub's folder = %v", err)
	}
	if err := hub.KeepShare(hubs[1].Dir, joined); err == nil {
		t.Error("KeepShare replaced a hub's folder")
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(hubs[1].Dir), ".new-*"))
	if len(left) > 0 || err != nil {
		t.Errorf("%v are left, %v", left, err)
	}
	if _, _, err := hub.InviteHub(hubs[0].Dir, hubs[0].Name, time.Minute); err == nil || !strings.Contains(err.Error(), "no other hub of this cluster") {
		t.Errorf("a hub invites itself: %v", err)
	}
}

// A folder is of one hub: alone, or of one cluster under one name.
func TestFolderOfAnotherHub(t *testing.T) {
	alone, three := t.TempDir(), t.TempDir()
	cluster := []string{"127.0.0.1:1", "h2", "h3"}
	for dir, text := range map[string]string{alone: `{"v": 1, "name": "127.0.0.1"}`, three: `{"v": 1, "name": "127.0.0.1", "hubs": ["127.0.0.1:1", "h2:6222", "h3:6222"]}`} {
		if err := os.WriteFile(filepath.Join(dir, "hub.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := t.TempDir()
	if err := os.Mkdir(filepath.Join(old, "engine"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dir     string
		names   string
		cluster []string
		want    string
	}{
		"alone to cluster":    {alone, "127.0.0.1", cluster, "is of a hub alone, and a cluster would not see its records\nnext: slipway hub --name=127.0.0.1 --state=NEW"},
		"of a release before": {old, "127.0.0.1", cluster, "is of a hub alone"},
		"cluster to alone":    {three, "127.0.0.1", nil, "is of a cluster, and a hub alone would not see its records\nnext: slipway hub --name=127.0.0.1 --cluster=127.0.0.1:1,h2:6222,h3:6222"},
		"another name":        {three, "h2", cluster, "is of the hub 127.0.0.1"},
		"another cluster":     {three, "127.0.0.1", []string{"127.0.0.1:1", "h2", "h4"}, "is of the hub 127.0.0.1"},
		"two":                 {t.TempDir(), "h1", []string{"h1", "h2"}, "--cluster names 2 hubs"},
		"four":                {t.TempDir(), "h1", []string{"h1", "h2", "h3", "h4"}, "--cluster names 4 hubs"},
		"five":                {t.TempDir(), "h1", []string{"h1", "h2", "h3", "h4", "h5"}, "--cluster names 5 hubs, want 3"},
		"twice":               {t.TempDir(), "h1", []string{"h1", "h2", "h2"}, "names h2 twice"},
		"not this one":        {t.TempDir(), "h4", []string{"h1", "h2", "h3"}, "names 0 hubs with a --name of this machine"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := hub.Run(ctx, hub.Options{Dir: c.dir, Names: []string{c.names}, Cluster: c.cluster, Listen: "127.0.0.1:0", Page: "127.0.0.1:0"})
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		if localfile.Exists(filepath.Join(c.dir, "keys.json")) {
			t.Errorf("%s: the folder has keys now", name)
		}
	}
}
