package hub

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

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
func newHubAnd(t *testing.T, edit ...func(*Options)) (*access.Client, func(role job.Role, name string) *access.Client, *Hub) {
	t.Helper()
	hubs := make(chan *Hub, 1)
	admin, invite := newHub(t, append(edit, func(o *Options) {
		o.Handler = func(_ context.Context, h *Hub, _ []string, _ []byte) (http.Handler, error) {
			hubs <- h
			return http.NotFoundHandler(), nil
		}
	})...)
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
	sent := wish
	sent.Rollout, sent.Wave = "06FQ3C8T9KX2M4Z7", 3 // only the hub makes jobs of rollouts
	added := ask[job.Change](t, admin, job.VerbJobAdd, sent)
	if added.Job.Rollout != "" || added.Job.Wave != 0 {
		t.Errorf("a person's job is of the rollout %q, wave %d", added.Job.Rollout, added.Job.Wave)
	}
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
	claims := slices.DeleteFunc(ask[Audit](t, admin, job.VerbAudit, nothing{}).Records, func(r Record) bool { return r.Verb != job.VerbClaim })
	if len(claims) != 1 || claims[0].Refused != "" {
		t.Errorf("the audit has the claims %+v; want only the one that held", claims)
	}
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

// An admin abandons a running job whose station lost its state folder, and no other one that is heard.
func TestAbandonedFolder(t *testing.T) {
	admin, invite := newHub(t)
	station := invite(job.AStation, "bench-1")
	announce(t, station, "A-1")
	c := ask[job.Change](t, admin, job.VerbJobAdd, wish)
	c.Instance, c.Job.Claim = "A-1", &job.Claim{Instance: "A-1", Attempt: 1}
	ask[job.Change](t, station, job.VerbClaim, c)
	abandon := job.StopWish{ID: c.Job.ID, Station: "bench-1"}
	hello := func(now string, epoch int64) {
		t.Helper()
		ask[job.Lease](t, station, job.VerbHello, job.Hello{Station: job.Station{V: 1, Name: "bench-1", Instance: now, Epoch: epoch}})
	}
	hello("A-2", 2)
	refused(t, admin, job.VerbAbandon, abandon, "is heard, and ends the job itself")
	ask[nothing](t, station, job.VerbAway, job.Alive{Instance: "A-2"})
	hello("B-1", 1)
	ended := ask[job.Change](t, admin, job.VerbAbandon, abandon).Job
	if ended.State != job.Ended || ended.Result.Kind != fleet.Unsure || ended.Result.Saw != "abandoned by ada, while its station had another state folder" {
		t.Errorf("the job is %+v", ended.Result)
	}
}

// An invitation is listed until it is taken or withdrawn. The same key may take it again, as the first
// answer may be lost, until its owner is removed.
func TestInvitations(t *testing.T) {
	admin, _, h := newHubAnd(t)
	invite := func(name string) string {
		t.Helper()
		return ask[job.Invitation](t, admin, job.VerbInvite, job.Person{V: 1, Name: name, Role: job.Viewer}).Secret
	}
	open := func() (names string) {
		for _, p := range ask[job.People](t, admin, job.VerbPeople, nothing{}).Invited {
			names += fmt.Sprintf("%s %s %v; ", p.Name, p.By, time.Until(p.Until) > 50*time.Minute)
		}
		return names
	}
	vera, otto := invite("vera"), invite("otto")
	if got, want := open(), "otto ada true; vera ada true; "; got != want {
		t.Errorf("the open invitations are %q; want %q", got, want)
	}
	ask[nothing](t, admin, job.VerbRemove, job.Person{Name: "otto"})
	refused(t, admin, job.VerbRemove, job.Person{Name: "otto"}, "nobody is called")
	var keys []string
	for range 2 {
		key, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, _ := key.PublicKey()
		keys = append(keys, public)
	}
	join := func(secret, key, want string) {
		t.Helper()
		joined, err := h.Join(t.Context(), job.Join{Secret: secret, Key: key})
		if want == "" && (err != nil || joined.Name != "vera" || joined.JWT == "") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Join = %+v, %v; want %q", joined, err, want)
		}
	}
	const refusal = "unknown, used or over"
	join(otto, keys[0], refusal)
	join(vera, "no key", "key")
	join(vera, keys[0], "")
	join(vera, keys[0], "")
	join(vera, keys[1], refusal)
	if p, _ := h.person("vera"); p.Key != keys[0] || len(p.Revoked) > 0 || open() != "" {
		t.Errorf("after two joins with one key, vera is %+v, and open are %q", p, open())
	}
	ask[nothing](t, admin, job.VerbRemove, job.Person{Name: "vera"})
	join(vera, keys[0], refusal)
}

// The audit comes in parts, the newest first. No record is in two.
func TestOlderAudit(t *testing.T) {
	admin, _, h := newHubAnd(t)
	for i := range 2 * auditShown {
		if _, err := h.js.PublishAsync("audit.x", fmt.Appendf(nil, `{"who": "x", "what": "%d"}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	<-h.js.PublishAsyncComplete()
	var sizes []int
	records := map[time.Time]bool{}
	for before := uint64(0); before != 1; {
		a := ask[Audit](t, admin, job.VerbAudit, job.ListWish{Before: before})
		for _, r := range a.Records {
			records[r.At] = true
		}
		sizes, before = append(sizes, len(a.Records)), a.First
	}
	if len(sizes) != 3 || sizes[0] != auditShown || sizes[1] != auditShown || len(records) != sizes[2]+2*auditShown {
		t.Errorf("the parts have %v records, %d of them once", sizes, len(records))
	}
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

// A station keeps logs and reports of its own jobs and boards alone, and takes no ID that another job has.
// A job that was abandoned stays for longer than a machine is away.
func TestOnlyOwn(t *testing.T) {
	admin, invite := newHub(t)
	station, other := invite(job.AStation, "bench-1"), invite(job.AStation, "bench-2")
	announce(t, station, "i1")
	announce(t, other, "i2")
	added := ask[job.Change](t, admin, job.VerbJobAdd, wish)
	refused(t, other, job.VerbLog, job.Log{ID: wish.ID, To: 1, Text: "x"}, "is not one of bench-2")
	if got := ask[job.Log](t, other, job.VerbLog, job.Log{ID: job.NewID(), N: 3, To: 4, Text: "x"}); got.N != 4 {
		t.Errorf("the log of no job goes on at %d; want 4, so that it ends", got.N)
	}
	if got := ask[job.Log](t, station, job.VerbLog, job.Log{ID: wish.ID, To: 1, Text: "x"}); got.N != 1 {
		t.Errorf("the own log goes on at %d; want 1", got.N)
	}
	refused(t, other, job.VerbReport, job.Report{ID: wish.ID, Name: "lab-9"}, "bench-2 has no board lab-9")
	copied := added.Job
	copied.Station = "bench-2"
	refused(t, admin, job.VerbJobAdd, copied, "is another job's")
	copied.State, copied.Claim = job.Running, &job.Claim{Instance: "i2", Attempt: 1}
	refused(t, other, job.VerbRestore, job.Change{Job: copied, Instance: "i2"}, "is another job's")
	refused(t, admin, job.VerbJobStop, job.StopWish{ID: "lab-1." + wish.ID}, "no job")
	endUnbegun(&copied, fleet.Unsure, "abandoned")
	if ttl := ttlOf(copied); ttl != auditFor {
		t.Errorf("an abandoned job is kept for %v; want %v", ttl, auditFor)
	}
}

// A hub can read an invitation that root made in its state folder.
func TestInvitationIsTheHubs(t *testing.T) {
	dir := t.TempDir()
	const text = `{"v": 1, "name": "h1", "hubs": ["h1:6222", "h2:6222", "h3:6222"]}`
	if err := os.WriteFile(folderName(dir), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	owner := os.Getuid()
	if owner == 0 { // else this user's own folder is all that can be tried
		owner = 65534
		if err := os.Chown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := InviteHub(dir, "h2", time.Minute); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "invited", "*"))
	for _, name := range append(files, filepath.Join(dir, "invited")) {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t).Uid; int(got) != owner || len(files) != 1 {
			t.Errorf("%s of %d is user %d's; want %d's", name, len(files), got, owner)
		}
	}
}

// builders makes n stations that take builds.
func builders(t *testing.T, invite func(job.Role, string) *access.Client, n int) (all []*access.Client) {
	t.Helper()
	for i := range n {
		c := invite(job.AStation, fmt.Sprintf("big-%d", i))
		ask[job.Lease](t, c, job.VerbHello, job.Hello{Station: job.Station{V: 1, Name: c.Name, Instance: c.Name, Arch: "arm64", Builds: true}})
		all = append(all, c)
	}
	return all
}

var buildWish = job.Job{
	V: 1, Name: job.Builder, Arch: "arm64", Board: "orin-lab", Steps: []job.Step{{Do: job.Build}}, LimitMS: 1000, StartWithinMS: 1000_000,
}

func claimOf(c *access.Client, build job.Change, attempt int) job.Change {
	build.Instance, build.Job.Claim = c.Name, &job.Claim{Instance: c.Name, Attempt: attempt}
	return build
}

// Eight builders claim one build at once, and one has it.
func TestClaimBuild(t *testing.T) {
	admin, invite := newHub(t)
	all := builders(t, invite, 8)
	other := invite(job.AStation, "bench-1")
	announce(t, other, other.Name)
	build := ask[job.Change](t, admin, job.VerbJobAdd, buildWish)
	refused(t, other, job.VerbClaim, claimOf(other, build, 1), "takes no builds for arm64")
	if mine := ask[job.Changes](t, other, job.VerbMine, job.Wait{}); len(mine.Jobs) != 0 {
		t.Errorf("a station that builds nothing is told of %+v", mine.Jobs)
	}
	won := make(chan job.Change, len(all))
	var group sync.WaitGroup
	for _, c := range all {
		group.Go(func() {
			mine, err := access.Ask[job.Changes](t.Context(), c, job.VerbMine, job.Wait{})
			if err != nil || len(mine.Jobs) > 1 {
				t.Errorf("%s is told of %d builds, %v", c.Name, len(mine.Jobs), err)
				return
			}
			got, err := access.Ask[job.Change](t.Context(), c, job.VerbClaim, claimOf(c, build, 1))
			if err == nil {
				won <- got
			} else if !errors.Is(err, bus.ErrConflict) {
				t.Errorf("%s claims: %v; want a conflict", c.Name, err)
			}
		})
	}
	group.Wait()
	close(won)
	got := <-won
	if _, second := <-won; second || got.Job.Station == "" || got.Job.Station != got.Job.Claim.Instance {
		t.Fatalf("claimed by %+v, or by two", got.Job)
	}
	next := ask[job.Change](t, admin, job.VerbJobAdd, buildWish)
	for _, c := range all {
		end := got
		end.Instance, end.Job.Result = c.Name, &job.Result{Result: fleet.Result{Kind: fleet.Passed}}
		if c.Name != got.Job.Station {
			refused(t, c, job.VerbEnd, end, "changed meanwhile")
			refused(t, c, job.VerbClaim, claimOf(c, got, 2), "changed meanwhile")
			continue
		}
		refused(t, c, job.VerbClaim, claimOf(c, next, 1), c.Name+" builds for the job "+got.Job.ID)
		ask[job.Change](t, c, job.VerbEnd, end)
		ask[job.Change](t, c, job.VerbClaim, claimOf(c, next, 1))
	}
}

func TestRefusedBuilds(t *testing.T) {
	admin, invite := newHub(t)
	builders(t, invite, 1)
	for want, edit := range map[string]func(*job.Job){
		"no station of amd64 takes builds":       func(j *job.Job) { j.Arch = "amd64" },
		"no machine is a \"riscv64\"":            func(j *job.Job) { j.Arch = "riscv64" },
		"a build, and nothing else":              func(j *job.Job) { j.Steps[0].Do = job.Smoke },
		"the targets \"--task=x\" does not":      func(j *job.Job) { j.Steps[0].Targets = "--task=x" },
		"the board's name \"@other\" is no name": func(j *job.Job) { j.Name = "@other" },
	} {
		j := buildWish
		j.Steps = slices.Clone(j.Steps)
		edit(&j)
		refused(t, admin, job.VerbJobAdd, j, want)
	}
	refused(t, admin, job.VerbJobAdd, job.Job{V: 1, Station: "big-0", Name: "b", Board: "b", Steps: []job.Step{{Do: job.Build}}, LimitMS: 1, StartWithinMS: 1}, "a build, and nothing else")
}

// A station is told of all that runs, and of the oldest of what waits.
func TestManyOpenJobs(t *testing.T) {
	h, put := newBook(t)
	put("stations", bus.Key("big-0"), job.Station{V: 1, Name: "big-0", Arch: "arm64", Builds: true}, 1)
	const size, jobs = 10_000, maxOpenBytes / 10_000
	for i := range jobs + 50 {
		j := buildWish
		j.ID, j.State, j.By = fmt.Sprintf("%016d", i), job.Queued, strings.Repeat("x", size)
		if i > jobs+40 {
			j.State, j.Station = job.Running, fmt.Sprintf("big-%d", i%2)
		}
		put("jobs", j.Key(), j, uint64(i+1))
	}
	mine, err := h.jobsOf(t.Context(), "big-0", job.Wait{})
	n := len(mine.Jobs)
	if err != nil || n > jobs || n < jobs*9/10 || mine.Jobs[0].Job.ID != fmt.Sprintf("%016d", 0) {
		t.Fatalf("told of %d jobs, %v; want the oldest, below %d", n, err, jobs)
	}
	running := 0
	for _, c := range mine.Jobs {
		if c.Job.State == job.Running {
			running++
		}
		if c.Job.Station != "" && c.Job.Station != "big-0" {
			t.Errorf("told of the job %s of %s", c.Job.ID, c.Job.Station)
		}
	}
	if running != 5 || mine.Jobs[n-1].Job.State != job.Running {
		t.Errorf("told of %d jobs that run; want 5", running)
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
