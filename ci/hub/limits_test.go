package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"golang.org/x/sys/unix"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/images"
	"slipway/layers/bus"
	"slipway/layers/localfile"
)

// newBook returns a hub with an index and no engine, and a function that writes a key there.
func newBook(t testing.TB) (*Hub, func(bucket, key string, form any, revision uint64)) {
	t.Helper()
	x, err := newIndex(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &Hub{index: x}, func(bucket, key string, form any, revision uint64) {
		data, err := json.Marshal(form)
		if err != nil {
			t.Fatal(err)
		}
		x.put(bucket, data, entry{key: key, revision: revision, at: time.Now()})
	}
}

// A poll is answered up to where the engine has told all. This hub's own write may be newer than
// another hub's that it does not know yet.
func TestPollsFollowTheEngine(t *testing.T) {
	h, put := newBook(t)
	x := h.index
	write := func(id string, revision uint64) {
		j := wish
		j.ID, j.State = id, job.Queued
		put("jobs", j.Key(), j, revision)
	}
	ask := func(since uint64) (ids []string, until uint64) {
		all, _ := h.jobsOf(t.Context(), "bench-1", job.Wait{Since: since})
		for _, c := range all.Jobs {
			ids = append(ids, c.Job.ID)
		}
		return ids, all.Until
	}
	x.reach("jobs", 8)
	write("OWN", 10)
	if ids, until := ask(0); until != 8 || !slices.Equal(ids, []string{"OWN"}) {
		t.Errorf("the list has %v up to %d; want OWN up to 8", ids, until)
	}
	type answer struct {
		ids   []string
		until uint64
	}
	answers := make(chan answer)
	poll := func(since uint64) {
		ids, until := ask(since)
		answers <- answer{ids, until}
	}
	go poll(8)
	write("OTHER", 9)
	x.reach("jobs", 9)
	if a := <-answers; a.until != 9 || !slices.Equal(a.ids, []string{"OTHER", "OWN"}) {
		t.Errorf("after another hub's write, the poll has %v up to %d; want both up to 9", a.ids, a.until)
	}
	go poll(9)
	x.reach("jobs", 10)
	if a := <-answers; a.until != 10 {
		t.Errorf("after the hub's own write, the poll is up to %d; want 10", a.until)
	}
}

// The engine's time of this hub's own write is known once the engine tells, and one that came first is kept.
func TestTimeOfOwnWrite(t *testing.T) {
	h, put := newBook(t)
	j := wish
	data, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	h.index.put("jobs", data, entry{key: j.Key(), revision: 5})
	if _, e, known := get[job.Job](h.index, "jobs", j.Key()); !known || !e.at.IsZero() {
		t.Errorf("before the engine tells, the key is %+v", e)
	}
	put("jobs", j.Key(), j, 5)
	put("jobs", j.Key(), job.Job{}, 4)
	if got, e, _ := get[job.Job](h.index, "jobs", j.Key()); e.at.IsZero() || e.revision != 5 || got.Name != j.Name {
		t.Errorf("after it, the key is %+v with %+v", e, got)
	}
}

// A station is not told of queued jobs of a rollout that is paused. Its poll is answered once the
// rollout goes on, also if that was between two polls.
func TestPausedRolloutIsNotTold(t *testing.T) {
	h, write := newBook(t)
	put := func(bucket, key string, form any, revision uint64) {
		write(bucket, key, form, revision)
		h.index.reach(bucket, revision)
	}
	set := func(w job.Wish, revision uint64) {
		put("rollouts", "R1", job.Rollout{ID: "R1", Wish: w}, revision)
	}
	mine := func(in job.Wait) int {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		all, _ := h.jobsOf(ctx, "bench-1", in)
		if ctx.Err() != nil {
			t.Error("a poll was not answered")
		}
		return len(all.Jobs)
	}
	j := wish
	j.State, j.Rollout = job.Queued, "R1"
	put("jobs", j.Key(), j, 5)
	set(job.Pause, 1)
	if n := mine(job.Wait{}); n != 0 {
		t.Errorf("while the rollout is paused, the station is told of %d jobs", n)
	}
	set(job.Go, 2)
	if n := mine(job.Wait{Since: 5, Known: true}); n != 1 {
		t.Errorf("after a resume between polls, the station is told of %d jobs; want 1", n)
	}
	set(job.Pause, 3)
	told := make(chan int)
	go func() { told <- mine(job.Wait{Since: 5, Known: true}) }()
	for waits := 0; waits == 0; time.Sleep(10 * time.Millisecond) { // also until it has looked once
		h.index.mu.Lock()
		waits = len(h.index.hearers)
		h.index.mu.Unlock()
	}
	set(job.Go, 4)
	if n := <-told; n != 1 {
		t.Errorf("after a resume, the poll has %d jobs; want 1", n)
	}
}

// A list that does not fit into one answer comes in parts, each key once, also of a board's jobs alone.
func TestListsComeInParts(t *testing.T) {
	admin, invite, h := newHubAnd(t)
	h.index.partBytes = 3000
	station := invite(job.AStation, "bench-1")
	names := namesOf("board", 40)
	(&simulated{}).serve(t, station, names...)
	for _, name := range append(names, names[:20]...) {
		j := wish
		j.ID, j.Name = job.NewID(), name
		ask[job.Change](t, admin, job.VerbJobAdd, j)
	}
	if first := ask[job.BoardList](t, admin, job.VerbBoardList, job.ListWish{}); first.Next == "" || len(first.Boards) < 2 || len(first.Boards) > 20 {
		t.Errorf("the first part has %d boards, and the next one begins after %q", len(first.Boards), first.Next)
	}
	boards, err := access.List[job.BoardList](t.Context(), admin, job.VerbBoardList, job.ListWish{})
	var got []string
	for _, b := range boards.Boards {
		got = append(got, b.Name)
	}
	if err != nil || !slices.Equal(got, names) {
		t.Errorf("the boards are %v, %v", got, err)
	}
	for want, wish := range map[int]job.ListWish{60: {}, 2: {Board: names[3]}, 1: {Board: names[30]}, 0: {Failed: true}} {
		jobs, err := access.List[job.Changes](t.Context(), admin, job.VerbJobList, wish)
		ids := map[string]bool{}
		for _, c := range jobs.Jobs {
			ids[c.Job.ID] = true
		}
		if err != nil || len(ids) != want || len(jobs.Jobs) != want {
			t.Errorf("%+v has %d jobs, %d of them once, %v; want %d", wish, len(jobs.Jobs), len(ids), err, want)
		}
	}
	if b, err := access.FindBoard(t.Context(), admin, "bench-1/"+names[39]); err != nil || b.Name != names[39] {
		t.Errorf("FindBoard = %+v, %v", b, err)
	}
	if _, err := access.FindBoard(t.Context(), admin, "bord-12"); err == nil || !strings.Contains(err.Error(), "did you mean") {
		t.Errorf("FindBoard of no board: %v; want a name that is much like it", err)
	}
}

// A hub works at a limited number of requests, and answers the others later. Polls do not count.
func TestRequestsAtOnce(t *testing.T) {
	const blocks, polls = "test.blocks", "test.polls"
	var now, most atomic.Int64
	open := make(chan struct{})
	block := func(_ *Hub, ctx context.Context, _ string, _ nothing) (nothing, error) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		select {
		case <-open:
		case <-ctx.Done():
		}
		return nothing{}, ctx.Err()
	}
	verbs[blocks], verbs[polls] = handle(false, block), poll(func(*Hub, context.Context, string, nothing) (nothing, error) { return nothing{}, nil })
	t.Cleanup(func() { delete(verbs, blocks); delete(verbs, polls) }) // after the hub's end
	_, invite := newHub(t)
	station := invite(job.AStation, "bench-1")
	answers := make(chan *nats.Msg, atOnce+100)
	if _, err := station.ChanSubscribe("_INBOX_bench-1.x", answers); err != nil {
		t.Fatal(err)
	}
	request := func(verb string) {
		t.Helper()
		if err := station.PublishRequest(job.Subject("bench-1", verb), "_INBOX_bench-1.x", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	for range atOnce - 1 {
		request(blocks)
	}
	request(polls)
	if m := <-answers; string(m.Data) != "{}" {
		t.Errorf("the poll beside %d requests is answered with %s", atOnce-1, m.Data)
	}
	for range 50 {
		request(blocks)
	}
	for now.Load() < atOnce {
		time.Sleep(time.Millisecond)
	}
	close(open)
	for range atOnce + 49 {
		if m := <-answers; string(m.Data) != "{}" {
			t.Errorf("a request is answered with %s", m.Data)
		}
	}
	if most.Load() != atOnce {
		t.Errorf("the hub worked at %d requests at once; want %d", most.Load(), atOnce)
	}
}

// One name cannot take the place of all others that wait for changes. A refusal, too, goes to nobody
// but the sender.
func TestPollsOfOneName(t *testing.T) {
	const waits = "test.waits"
	verbs[waits] = poll(func(_ *Hub, ctx context.Context, _ string, _ nothing) (nothing, error) {
		<-ctx.Done()
		return nothing{}, ctx.Err()
	})
	t.Cleanup(func() { delete(verbs, waits) }) // after the hub's end
	_, invite, h := newHubAnd(t)
	greedy, other := invite(job.AStation, "bench-1"), invite(job.AStation, "bench-2")
	answers := make(chan *nats.Msg, maxPollsOf+10)
	if _, err := greedy.ChanSubscribe("_INBOX_bench-1.x", answers); err != nil {
		t.Fatal(err)
	}
	for range maxPollsOf + 1 {
		if err := greedy.PublishRequest(job.Subject("bench-1", waits), "_INBOX_bench-1.x", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	var r bus.Refusal
	if m := <-answers; json.Unmarshal(m.Data, &r) != nil || !r.Away || !strings.Contains(r.Text, "too many wait here") {
		t.Errorf("poll %d of one name is answered with %s; want a refusal", maxPollsOf+1, m.Data)
	}
	if err := greedy.PublishRequest(job.Subject("bench-1", waits), "audit.forged", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	refused(t, greedy, job.VerbAway, job.Alive{}, "")
	if m, err := h.records.GetLastMsgForSubject(t.Context(), "audit.forged"); !errors.Is(err, jetstream.ErrMsgNotFound) {
		t.Errorf("the audit has %v, %v of the hub's answer", m, err)
	}
	ask[job.Changes](t, other, job.VerbMine, job.Wait{})
}

// A hub without a majority takes no artifacts, and closes the connection, so that the next try reaches
// another hub.
func TestUploadWithoutMajority(t *testing.T) {
	var lost atomic.Bool
	admin, _ := newHub(t, func(o *Options) {
		o.Handler = func(_ context.Context, h *Hub, _ []string, _ []byte) (http.Handler, error) {
			h.Majority = func() bool { return !lost.Load() }
			return http.NotFoundHandler(), nil
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(admin.Authority))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	for away, want := range map[bool]int{false: http.StatusUnauthorized, true: http.StatusServiceUnavailable} {
		lost.Store(away)
		r, err := client.Get("https://" + admin.Hub + "/v2/")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want || r.Close != away {
			t.Errorf("without a majority %v: %s, closed %v; want %d", away, r.Status, r.Close, want)
		}
	}
	lost.Store(false)
}

// An answer that NATS would drop becomes a refusal with a next step.
func TestLongAnswerIsRefused(t *testing.T) {
	fits := []byte(`"` + strings.Repeat("x", bus.MaxPayload-2) + `"`)
	if got := fitAnswer(fits); len(got) != len(fits) {
		t.Errorf("an answer of %d bytes became one of %d", len(fits), len(got))
	}
	var r bus.Refusal
	if err := json.Unmarshal(fitAnswer(append(fits, ' ')), &r); err != nil || !strings.Contains(r.Text, "at most 8") || r.Next == "" {
		t.Errorf("a longer one became %+v, %v; want a refusal", r, err)
	}
}

// The audit has changes that were refused, but not looks.
func TestRefusedLooksAreNoChanges(t *testing.T) {
	admin, _, h := newHubAnd(t)
	for _, verb := range []string{job.VerbPeople, job.VerbAudit, "nonsense", job.VerbInvite} {
		if _, err := h.Call(t.Context(), job.Viewer, "vera", verb, []byte("{}")); err == nil || !strings.Contains(err.Error(), "a viewer cannot ask for") {
			t.Errorf("a viewer asks for %s: %v", verb, err)
		}
	}
	var of []string
	for _, r := range ask[Audit](t, admin, job.VerbAudit, nothing{}).Records {
		if r.Who == "vera" {
			of = append(of, r.Verb)
		}
	}
	if !slices.Equal(of, []string{job.VerbInvite}) {
		t.Errorf("the audit has %v of vera; want the refused change", of)
	}
}

// An identity that ends soon is renewed by the next connection, unless the machine has joined again.
func TestRenewal(t *testing.T) {
	dir := t.TempDir()
	_, invite := newHub(t, func(o *Options) { o.Dir = dir })
	for role, name := range map[job.Role]string{job.Viewer: "vera", job.AStation: "bench-1"} {
		fresh := invite(role, name)
		same, err := access.Load("", role == job.AStation)
		if err != nil || same.JWT != fresh.JWT {
			t.Fatalf("a new identity was renewed, or not kept: %+v, %v", same, err)
		}
		keys, err := bus.LoadKeys(dir)
		if err != nil {
			t.Fatal(err)
		}
		old := fresh.Identity
		key, _ := nkeys.FromSeed([]byte(old.Seed))
		public, _ := key.PublicKey()
		if old.JWT, err = keys.User(string(role), name, public, time.Hour); err != nil {
			t.Fatal(err)
		}
		dialAndClose(t, old)
		now, err := access.Load("", role == job.AStation)
		if err != nil || now.JWT == old.JWT || bus.ValidFor(now.JWT) < 364*24*time.Hour {
			t.Errorf("%s: the JWT is valid for %v, %v; want a year", name, bus.ValidFor(now.JWT), err)
		}
		file := identityFile(t, old, role)
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v, %v; want 0600", file, info.Mode(), err)
		}
		again := old
		again.Seed = "of another join"
		if err := localfile.WriteJSON(file, again, 0o600); err != nil {
			t.Fatal(err)
		}
		dialAndClose(t, old)
		if kept, err := access.Load("", role == job.AStation); err != nil || kept.Seed != again.Seed || kept.JWT != old.JWT {
			t.Errorf("%s: a renewal replaced a newer identity: %+v, %v", name, kept, err)
		}
	}
}

func dialAndClose(t *testing.T, id access.Identity) {
	t.Helper()
	c, err := id.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func identityFile(t *testing.T, id access.Identity, role job.Role) string {
	t.Helper()
	home, err := images.StateHome()
	if err != nil {
		t.Fatal(err)
	}
	if role == job.AStation {
		return filepath.Join(home, "hubs", bus.Token(id.Hub)+".station.json")
	}
	return filepath.Join(home, "hubs", bus.Token(id.Hub)+".json")
}

// A hub starts on a small disk.
func TestSmallDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("a tmpfs cannot be mounted: %v: run the tests as root", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := Run(ctx, Options{
		Dir: dir, Names: []string{"127.0.0.1"}, Listen: "127.0.0.1:0", Page: "127.0.0.1:0", Log: io.Discard, Admin: "ada", Ready: func(string, string) { cancel() },
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
