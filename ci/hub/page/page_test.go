package page

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"slipway/ci/fleet"
	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/hub/hubtest"
	"slipway/ci/job"
	"slipway/ci/report"
	"slipway/images/statetest"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

func TestMain(m *testing.M) {
	hubtest.Handler = New
	hubtest.Main()
	statetest.Main(m)
}

type none struct{}

// site is a running hub with its page.
type site struct {
	t       *testing.T
	options hub.Options
	address string
	admin   *access.Client
	end     func()
}

// newSite runs a hub, with an admin who joined.
func newSite(t *testing.T) *site {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	s := &site{t: t, options: hub.Options{Dir: t.TempDir(), Names: []string{"127.0.0.1"}, Listen: "127.0.0.1:0", Page: "127.0.0.1:0", Admin: "ada", Lease: time.Hour, Log: io.Discard, Handler: New}}
	token := s.start()
	s.admin = s.join(token)
	s.options.Listen = s.admin.Addresses[0] // clients come back to it
	return s
}

// start runs the hub, at the same address as before.
func (s *site) start() (token string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	s.options.Ready = func(address, token string) {
		s.address, s.options.Page = address, address
		ready <- token
	}
	go func() { done <- hub.Run(ctx, s.options) }()
	select {
	case token = <-ready:
	case err := <-done:
		cancel()
		s.t.Fatalf("Run = %v", err)
	}
	s.end = func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			s.t.Errorf("Run = %v", err)
		}
		s.end = func() {}
	}
	s.t.Cleanup(func() { s.end() })
	return token
}

func (s *site) join(token string) *access.Client {
	s.t.Helper()
	id, err := access.Join(s.t.Context(), s.address, token)
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := id.Dial(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func (s *site) invite(role job.Role, name string) *access.Client {
	s.t.Helper()
	i := request[job.Invitation](s.t, s.admin, job.VerbInvite, job.Person{Name: name, Role: role})
	return s.join(access.Token(i.Secret, []byte(s.admin.Authority)))
}

func request[Out any](t *testing.T, c *access.Client, verb string, in any) Out {
	t.Helper()
	out, err := access.Ask[Out](t.Context(), c, verb, in)
	if err != nil {
		t.Fatalf("%s asks %s: %v", c.Name, verb, err)
	}
	return out
}

// station is a simulated station.
type station struct {
	*access.Client
	t    *testing.T
	sent map[string]uint64 // bytes of each job's log
}

// station joins a station with these boards.
func (s *site) station(name string, boards ...job.Board) station {
	s.t.Helper()
	st := station{s.invite(job.AStation, name), s.t, map[string]uint64{}}
	request[job.Lease](s.t, st.Client, job.VerbHello, job.Hello{Station: job.Station{V: 1, Name: name, Instance: "i", Machine: "rack 3", Program: "v0.9.0", Arch: "amd64", Parallel: 4, FreeBytes: 800 << 30}})
	st.announce(boards...)
	return st
}

func (st station) announce(boards ...job.Board) {
	st.t.Helper()
	request[none](st.t, st.Client, job.VerbBoards, job.Boards{Instance: "i", Boards: boards})
}

// claim begins the oldest job that waits.
func (st station) claim() job.Change {
	st.t.Helper()
	return st.claimNext(func(job.Job) bool { return true })
}

// claimNext waits for a job that fits, and begins it.
func (st station) claimNext(fits func(job.Job) bool) job.Change {
	st.t.Helper()
	for all := (job.Changes{}); ; {
		all = request[job.Changes](st.t, st.Client, job.VerbMine, job.Wait{Since: all.Until})
		if i := slices.IndexFunc(all.Jobs, func(c job.Change) bool { return c.Job.State == job.Queued && fits(c.Job) }); i >= 0 {
			c := all.Jobs[i]
			c.Instance, c.Job.Claim = "i", &job.Claim{Instance: "i", Epoch: 1, Attempt: 1}
			return request[job.Change](st.t, st.Client, job.VerbClaim, c)
		}
	}
}

func ofRollout(j job.Job) bool { return j.Rollout != "" }

// rolloutOf is a rollout on three boards, in three waves.
func rolloutOf(do job.Do) job.Rollout {
	return job.Rollout{
		Board: "orin-lab", Artifact: "hub:orin-lab@sha256:" + strings.Repeat("b", 64), Steps: []job.Step{{Do: do}}, LimitMS: 1000000, PatienceMS: 60000,
		Gate: fleet.Gate{Canary: 1, StopAfter: 2}, Waves: []int{34},
	}
}

func (st station) note(j job.Job, e progress.Event) {
	st.t.Helper()
	data, err := json.Marshal(e)
	if err == nil {
		err = st.Publish("prog."+bus.Key(j.Station, j.Name, j.ID), data)
	}
	if err = errors.Join(err, st.Flush()); err != nil {
		st.t.Fatal(err)
	}
}

func (st station) log(j job.Job, text string) {
	st.t.Helper()
	n := st.sent[j.ID]
	st.sent[j.ID] = n + uint64(len(text))
	if kept := request[job.Log](st.t, st.Client, job.VerbLog, job.Log{ID: j.ID, N: n, To: st.sent[j.ID], Text: text}); kept.N != st.sent[j.ID] {
		st.t.Fatalf("the hub has %d bytes of the log; want %d", kept.N, st.sent[j.ID])
	}
}

func (st station) report(j job.Job, r report.Report) {
	st.t.Helper()
	f, err := report.FormOf("json", true)
	if err != nil {
		st.t.Fatal(err)
	}
	var b strings.Builder
	if err := report.WriteAs(&b, f, r); err != nil {
		st.t.Fatal(err)
	}
	pack, err := zstd.NewWriter(nil)
	if err != nil {
		st.t.Fatal(err)
	}
	request[none](st.t, st.Client, job.VerbReport, job.Report{ID: j.ID, Name: j.Name, Zstd: pack.EncodeAll([]byte(b.String()), nil)})
}

func (st station) endAs(c job.Change, r job.Result) {
	st.t.Helper()
	c.Instance, c.Job.Result = "i", &r
	request[job.Change](st.t, st.Client, job.VerbEnd, c)
}

// lab is a board that does all.
func lab(name string) job.Board {
	return job.Board{V: 1, Name: name, Board: "orin-lab", Labels: []string{"racks"}, Does: job.OfBoards, Device: "usb:1-2", Shows: "Kingston DataTraveler, 57.8 GiB, 2 partitions", Token: "T-1421", Serial: "1421", Runs: "1.4.2"}
}

func smokeJob(station, name string) job.Job {
	return job.Job{V: 1, ID: job.NewID(), Station: station, Name: name, Board: "orin-lab", Steps: []job.Step{{Do: job.Smoke}}, LimitMS: 1000, StartWithinMS: 1000000}
}

// reader is a browser without a script.
type reader struct {
	*http.Client
	t    *testing.T
	base string
}

func (s *site) stranger() reader {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(s.admin.Authority))
	c := &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.t.Cleanup(c.CloseIdleConnections)
	return reader{c, s.t, "https://" + s.address}
}

// signIn opens the page as a person does.
func (s *site) signIn(c *access.Client) reader {
	s.t.Helper()
	r := s.stranger()
	secret := request[job.Invitation](s.t, c, job.VerbOpen, none{}).Secret
	if status, text := r.post("/in", "secret", secret); status != http.StatusSeeOther {
		s.t.Fatalf("sign-in of %s: %d %s", c.Name, status, text)
	}
	return r
}

func (r reader) do(req *http.Request) (int, string) {
	r.t.Helper()
	answer, err := r.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer.StatusCode, answer.Header.Get("Location") + string(text)
}

func (r reader) get(path string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.base+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.do(req)
}

func (r reader) newPost(path string, fields ...string) *http.Request {
	r.t.Helper()
	form := url.Values{}
	for pair := range slices.Chunk(fields, 2) {
		form.Add(pair[0], pair[1])
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return req
}

func (r reader) post(path string, fields ...string) (int, string) {
	r.t.Helper()
	return r.do(r.newPost(path, fields...))
}

// wait reads a page until it has a text.
func (r reader) wait(path, want string) string {
	r.t.Helper()
	for {
		status, text := r.get(path)
		if strings.Contains(text, want) {
			return text
		}
		select {
		case <-r.t.Context().Done():
			r.t.Fatalf("GET %s = %d %s; want %q", path, status, text, want)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

var posts = [][]string{
	{"/boards/bench-1/lab-1", "do", "smoke", "board", "orin-lab"},
	{"/stations/bench-1"},
	{"/jobs/0000000000000000", "how", "gently"},
	{"/jobs/0000000000000000", "station", "bench-1"},
	{"/rollouts/0000000000000000", "wish", "pause"},
	{"/people", "name", "eve", "role", "admin"},
	{"/boards/bench-1/lab-1/name", "name", "card-1", "board", "pi"},
	{"/people/remove", "name", "ada"},
}

// Who is not signed in reads nothing and changes nothing. A secret signs in once.
func TestSignIn(t *testing.T) {
	s := newSite(t)
	s.station("bench-1", lab("lab-1"))
	r := s.stranger()
	for _, path := range []string{"/", "/boards", "/boards/bench-1/lab-1", "/boards/bench-1/lab-1/report", "/stations", "/stations/bench-1", "/jobs/1", "/rollouts", "/rollouts/1", "/rollouts/1/outcome", "/boards/bench-1/lab-1/trends", "/people", "/log", "/events?page=/", "/nothing"} {
		if status, text := r.get(path); status != http.StatusUnauthorized || !strings.Contains(text, "you are not signed in") || !strings.Contains(text, "slipway hub open") {
			t.Errorf("GET %s = %d %s; want 401 with the next step", path, status, text)
		}
	}
	for _, f := range append(posts, []string{"/out"}, []string{"/in", "secret", "wrong"}, []string{"/in"}) {
		if status, _ := r.post(f[0], f[1:]...); status != http.StatusUnauthorized {
			t.Errorf("POST %s = %d; want 401", f[0], status)
		}
	}
	viewer := s.invite(job.Viewer, "vera")
	secret := request[job.Invitation](t, viewer, job.VerbOpen, none{}).Secret
	answer, err := r.Do(r.newPost("/in", "secret", secret))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	cookie := answer.Header.Get("Set-Cookie")
	for _, want := range []string{"__Host-slipway=", "; Path=/; Max-Age=43200; HttpOnly; Secure; SameSite=Strict"} {
		if !strings.Contains(cookie, want) {
			t.Errorf("the cookie is %q; want %q", cookie, want)
		}
	}
	if status, text := r.get("/"); status != http.StatusOK || !strings.Contains(text, "vera, viewer") {
		t.Errorf("GET / = %d %s", status, text)
	}
	if status, _ := s.stranger().post("/in", "secret", secret); status != http.StatusUnauthorized {
		t.Errorf("the same secret again = %d; want 401", status)
	}
	value, _, _ := strings.Cut(strings.TrimPrefix(cookie, "__Host-slipway="), ";")
	if status, _ := s.stranger().post("/in", "secret", value); status != http.StatusUnauthorized {
		t.Errorf("a cookie as secret = %d; want 401", status)
	}
	stolen := s.stranger()
	stolen.Jar.SetCookies(&url.URL{Scheme: "https", Host: s.address}, []*http.Cookie{{Name: cookieName, Value: value, Secure: true, Path: "/"}})
	if status, to := r.post("/out"); status != http.StatusSeeOther || !strings.HasPrefix(to, "/in") {
		t.Errorf("sign-out = %d %s", status, to)
	}
	for name, r := range map[string]reader{"the reader": r, "a copy of the cookie": stolen} {
		if status, _ := r.get("/"); status != http.StatusUnauthorized {
			t.Errorf("%s after sign-out reads %d; want 401", name, status)
		}
	}
}

// A person who was removed is signed out, and an open stream ends.
func TestRemovedPerson(t *testing.T) {
	s := newSite(t)
	r := s.signIn(s.invite(job.Operator, "olga"))
	stream := r.follow("/", "")
	stream.next("part")
	request[none](t, s.admin, job.VerbRemove, job.Person{Name: "olga"})
	stream.wait()
	if status, _ := r.get("/"); status != http.StatusUnauthorized {
		t.Errorf("a removed person reads %d; want 401", status)
	}
	s.invite(job.Operator, "olga")
	if status, _ := r.get("/"); status != http.StatusUnauthorized {
		t.Errorf("an old cookie of who joined again reads %d; want 401", status)
	}
}

// Each role sees the forms that it may use, and the hub refuses the others, and writes that down.
func TestRoles(t *testing.T) {
	s := newSite(t)
	st := s.station("bench-1", lab("lab-1"), job.Board{V: 1, Name: "sdy", Board: "block", Device: "usb:9-9", Open: true, Does: []job.Do{}})
	readers := map[job.Role]reader{job.Viewer: s.signIn(s.invite(job.Viewer, "vera")), job.Operator: s.signIn(s.invite(job.Operator, "olga")), job.Admin: s.signIn(s.admin)}
	request[job.Change](t, s.admin, job.VerbJobAdd, smokeJob("bench-1", "lab-1"))
	job1 := "/jobs/" + st.claim().Job.ID
	for _, tt := range []struct {
		page, button string
		form         []string
		least        job.Role
		status       int // of who may
	}{
		{"/boards/bench-1/lab-1", "Begin: smoke", posts[0], job.Operator, http.StatusSeeOther},
		{"/stations/bench-1", "Take no more jobs", posts[1], job.Admin, http.StatusSeeOther},
		{job1, ">Stop<", []string{job1, "how", "gently"}, job.Operator, http.StatusSeeOther},
		{"", "", posts[3], job.Admin, http.StatusUnprocessableEntity},
		{"", "", posts[4], job.Operator, http.StatusUnprocessableEntity},
		{"", "", []string{"/rollouts/0000000000000000", "back", "yes"}, job.Operator, http.StatusUnprocessableEntity},
		{"/boards/bench-1/sdy", "Name the device", []string{"/boards/bench-1/sdy/name", "name", "card-1", "board", "pi"}, job.Admin, http.StatusSeeOther},
		{"", "", posts[6], job.Admin, http.StatusUnprocessableEntity}, // station.yml names it
		{"/people", "Invite", []string{"/people", "name", "eve", "role", "viewer"}, job.Admin, http.StatusOK},
		{"/people", "Remove", []string{"/people/remove", "name", "vera"}, job.Admin, http.StatusSeeOther},
		{"/log", "Audit", nil, job.Admin, 0},
	} {
		for _, role := range []job.Role{job.Viewer, job.Operator, job.Admin} {
			may := slices.Index(job.Roles, role) >= slices.Index(job.Roles, tt.least)
			if tt.page != "" {
				if status, text := readers[role].get(tt.page); strings.Contains(text, tt.button) != may || (status == http.StatusOK) != (may || tt.least == job.Operator || tt.page == "/stations/bench-1" || tt.page == "/boards/bench-1/sdy") {
					t.Errorf("%s sees %q on %s = %d, %v; want %v", role, tt.button, tt.page, status, strings.Contains(text, tt.button), may)
				}
			}
			if tt.form == nil {
				continue
			}
			want := tt.status
			if !may {
				want = http.StatusForbidden
			}
			if status, text := readers[role].post(tt.form[0], tt.form[1:]...); status != want {
				t.Errorf("POST %v of %s = %d %s; want %d", tt.form, role, status, text, want)
			}
		}
	}
	if _, text := readers[job.Admin].get("/log"); strings.Count(text, "cannot ask for") < 8 {
		t.Errorf("the log lacks refused requests: %s", text)
	}
	if n := len(request[job.Changes](t, s.admin, job.VerbJobList, none{}).Jobs); n != 3 {
		t.Errorf("there are %d jobs; want the first, the operator's and the admin's", n)
	}
}

// A page of elsewhere, and a name that is not the hub's, reach nothing.
func TestOrigins(t *testing.T) {
	s := newSite(t)
	s.station("bench-1", lab("lab-1"))
	r := s.signIn(s.admin)
	for _, tt := range []struct {
		name, header, value string
		status              int
	}{
		{"its own page", "Sec-Fetch-Site", "same-origin", http.StatusSeeOther},
		{"another site", "Sec-Fetch-Site", "cross-site", http.StatusForbidden},
		{"another port", "Sec-Fetch-Site", "same-site", http.StatusForbidden},
		{"an old browser's other page", "Origin", "https://example.com", http.StatusForbidden},
		{"another name", "Host", "hub.example.com", http.StatusMisdirectedRequest},
		{"another name with a port", "Host", "example.com:443", http.StatusMisdirectedRequest},
	} {
		req := r.newPost(posts[0][0], posts[0][1:]...)
		req.Header.Set(tt.header, tt.value)
		if tt.header == "Host" {
			req.Host = tt.value
		}
		status, text := r.do(req)
		if status != tt.status {
			t.Errorf("%s: POST = %d %s; want %d", tt.name, status, text, tt.status)
		}
		if tt.header == "Host" && !strings.Contains(text, r.base) {
			t.Errorf("%s: %s; want it to name %s", tt.name, text, r.base)
		}
	}
	if n := len(request[job.Changes](t, s.admin, job.VerbJobList, none{}).Jobs); n != 1 {
		t.Errorf("there are %d jobs; want the one of its own page", n)
	}
	for _, f := range posts { // only POST changes
		query := url.Values{}
		for pair := range slices.Chunk(f[1:], 2) {
			query.Add(pair[0], pair[1])
		}
		r.get(f[0] + "?" + query.Encode())
	}
	if n := len(request[job.Changes](t, s.admin, job.VerbJobList, none{}).Jobs); n != 1 {
		t.Errorf("a GET made a job")
	}
	answer, err := r.Client.Get(r.base + "/")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
		if got := answer.Header.Get("Content-Security-Policy"); !strings.Contains(got, want) {
			t.Errorf("the policy is %q; want %q", got, want)
		}
	}
}

var href = plaintext.Regexp(`(?:href|src|action)="([^"#]*)`)

// Each link of each page leads to a page of the hub.
func TestLinks(t *testing.T) {
	s := newSite(t)
	st := s.station("bench-1", lab("lab-1"), lab("lab-2"))
	s.station("bench.2", job.Board{V: 1, Name: "a:b.c", Board: "virt", Does: []job.Do{job.Boot}})
	request[job.Change](t, s.admin, job.VerbJobAdd, smokeJob("bench-1", "lab-1"))
	st.report(st.claim().Job, report.Report{Board: "orin-lab", Started: time.Now()})
	r := s.signIn(s.admin)
	seen, todo := map[string]bool{}, []string{"/"}
	for len(todo) > 0 {
		path := strings.ReplaceAll(todo[0], "&amp;", "&")
		todo = todo[1:]
		if seen[path] || strings.HasPrefix(path, "data:") {
			continue
		}
		seen[path] = true
		status, text := r.get(path)
		known := status == http.StatusOK || path == "/out" || path == "/people/remove" || path == "/boards/bench-1/lab-2/report" || strings.HasPrefix(path, "/boards/bench.2") && strings.HasSuffix(path, "/report")
		if !known || !strings.HasPrefix(path, "/") {
			t.Errorf("GET %s = %d %s", path, status, text)
		}
		for _, m := range href().FindAllStringSubmatch(text, -1) {
			todo = append(todo, m[1])
		}
	}
	for _, want := range []string{"/boards/bench-1/lab-1", "/boards/bench.2/a:b.c", "/stations/bench.2", "/log", "/people", "/page.js", "/page.css", "/boards/bench-1/lab-1/report"} {
		if !seen[want] {
			t.Errorf("no link leads to %s; seen %v", want, seen)
		}
	}
	for _, path := range []string{"/nothing", "/boards/bench-1", "/boards/bench-1/none", "/boards/none/lab-1", "/stations/none", "/jobs/none", "/jobs", "/rollouts/none", "/events?page=/rollouts/none", "/boards/bench-1/lab-2/report", "/boards/bench-1/lab-2/trends", "/boards/bench-1/lab-1/report?n=99", "/people/ada", "/events?page=/people", "/events?page=/x", "/events?page=", "/events"} {
		if status, _ := r.get(path); status != http.StatusNotFound {
			t.Errorf("GET %s = %d; want 404", path, status)
		}
	}
}

// The first page says what needs somebody: lost stations, full disks, failed boards.
func TestNeeds(t *testing.T) {
	s := newSite(t)
	st := s.station("bench-1", lab("lab-1"))
	r := s.signIn(s.admin)
	if _, text := r.get("/"); !strings.Contains(text, "nothing needs you") || !strings.Contains(text, "1 free") {
		t.Errorf("the first page is %s", text)
	}
	request[job.Change](t, s.admin, job.VerbJobAdd, smokeJob("bench-1", "lab-1"))
	c := st.claim()
	if text := r.wait("/", "1 at work"); !strings.Contains(text, "lab-1: smoke") {
		t.Errorf("the first page is %s", text)
	}
	st.endAs(c, job.Result{Result: fleet.Result{Host: "lab-1", Kind: fleet.Full, Saw: "no space left"}, Attempts: 1, Line: "slipway smoke orin-lab lab-1"})
	text := r.wait("/", "1 thing needs you")
	for _, want := range []string{"lab-1: disk full", "no space left", "Next: make room on the board", "1 failed"} {
		if !strings.Contains(text, want) {
			t.Errorf("the first page lacks %q: %s", want, text)
		}
	}
	if _, text := r.get("/jobs/" + c.Job.ID); !strings.Contains(text, "slipway smoke orin-lab lab-1") || !strings.Contains(text, "no space left") {
		t.Errorf("the job's page lacks its result: %s", text)
	}
	full := job.Hello{Station: job.Station{V: 1, Name: "bench-2", Instance: "i", Machine: "rack 4", FreeBytes: 1 << 30}}
	other := s.invite(job.AStation, "bench-2")
	lease := request[job.Lease](t, other, job.VerbHello, full)
	r.wait("/", "bench-2 has little disk space")
	request[none](t, other, job.VerbAway, job.Alive{Instance: "i", Revision: lease.Revision})
	r.wait("/", "bench-2 is not heard")
}

// Boards are filtered by words and state, 200 on a page.
func TestBoards(t *testing.T) {
	s := newSite(t)
	var boards []job.Board
	for i := range 205 {
		b := lab(fmt.Sprintf("lab-%03d", i))
		if i < 3 {
			b.Runs, b.Labels = "1.4.1", []string{"old"}
		}
		boards = append(boards, b)
	}
	s.station("bench-1", boards...)
	r := s.signIn(s.admin)
	for _, tt := range []struct {
		query string
		want  []string
		not   string
	}{
		{"", []string{"202 with 1.4.2, 3 with 1.4.1", "1 to 200 of 205", "lab-199", `href="?from=200"`}, ">lab-200<"},
		{"?from=200", []string{"201 to 205 of 205", ">lab-204<", `href="?from=0"`}, ">lab-199<"},
		{"?from=9999", []string{"201 to 205 of 205"}, ">lab-000<"},
		{"?from=-5", []string{"1 to 200 of 205"}, ">lab-204<"},
		{"?q=OLD+bench-1", []string{"1 to 3 of 3", ">lab-002<"}, ">lab-003<"},
		{"?q=1.4.1&state=free", []string{"1 to 3 of 3"}, "later"},
		{"?state=failed", []string{"No board is like that", "0 to 0 of 0"}, ">lab-000<"},
	} {
		_, text := r.get("/boards" + tt.query)
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("/boards%s lacks %q", tt.query, want)
			}
		}
		if strings.Contains(text, tt.not) {
			t.Errorf("/boards%s has %q", tt.query, tt.not)
		}
	}
}

// A form makes the job that it says, once.
func TestAddJob(t *testing.T) {
	s := newSite(t)
	s.station("bench-1", lab("lab-1"))
	r := s.signIn(s.admin)
	_, text := r.get("/boards/bench-1/lab-1")
	if !strings.Contains(text, "Erase Kingston DataTraveler, 57.8 GiB") {
		t.Errorf("the form does not say what is erased: %s", text)
	}
	artifact := "registry.example.com/lab@sha256:" + strings.Repeat("a", 64)
	id := job.NewID()
	fields := []string{"id", id, "board", "orin-lab", "do", "flash", "artifact", artifact, "token", "T-1421", "then", "boot", "then", "smoke"}
	for range 2 { // a double click
		if status, to := r.post("/boards/bench-1/lab-1", fields...); status != http.StatusSeeOther || to != "/jobs/"+id {
			t.Fatalf("POST = %d %s", status, to)
		}
	}
	jobs := request[job.Changes](t, s.admin, job.VerbJobList, none{}).Jobs
	want := []job.Step{{Do: job.Flash, Token: "T-1421"}, {Do: job.Boot}, {Do: job.Smoke}}
	if len(jobs) != 1 || !slices.Equal(jobs[0].Job.Steps, want) || jobs[0].Job.Artifact != artifact || jobs[0].Job.By != "ada" {
		t.Errorf("the jobs are %+v; want one with %+v", jobs, want)
	}
	for _, bad := range [][]string{{"do", "flash", "board", "orin-lab", "artifact", "lab:latest"}, {"do", "dance", "board", "orin-lab"}, {"do", "smoke", "board", "other"}, {"do", "update", "board", "orin-lab", "artifact", artifact, "bundle", "x"}, {}} {
		if status, text := r.post("/boards/bench-1/lab-1", bad...); status != http.StatusUnprocessableEntity {
			t.Errorf("POST %v = %d %s; want 422", bad, status, text)
		}
	}
	if status, _ := r.post("/boards/bench-1/lab-1", "do", strings.Repeat("x", 1<<17)); status < 400 {
		t.Errorf("a form of 128 KiB = %d; want a refusal", status)
	}
}

// What boards and stations say is text on all pages.
func TestHostileText(t *testing.T) {
	s := newSite(t)
	evil := `<img src=x onerror=alert(1)>` + "\x1b[31mred\u202e"
	b := lab("lab-1")
	b.Labels, b.Runs, b.Shows, b.Note, b.Serial, b.Token = []string{evil}, evil, evil, evil, evil, `"><script>alert(1)</script>`
	st := s.station("bench-1", b)
	request[job.Change](t, s.admin, job.VerbJobAdd, smokeJob("bench-1", "lab-1"))
	c := st.claim()
	st.log(c.Job, evil+"\n")
	st.note(c.Job, progress.Event{Step: evil, State: progress.Running, Detail: evil, Count: 1, Total: 2})
	r := s.signIn(s.admin)
	r.wait("/jobs/"+c.Job.ID, "1 of 2")
	check := func(path string) {
		t.Helper()
		_, text := r.get(path)
		if strings.Contains(text, "<img") || strings.Contains(text, "<script>") || strings.ContainsAny(text, "\x1b\u202e") {
			t.Errorf("%s has text as it came: %q", path, text)
		}
		if !strings.Contains(text, "&lt;img src=x") {
			t.Errorf("%s does not show the text: %s", path, text)
		}
	}
	for _, path := range []string{"/", "/boards", "/boards/bench-1/lab-1", "/stations/bench-1", "/jobs/" + c.Job.ID} {
		check(path)
	}
	st.report(c.Job, report.Report{Board: evil})
	answer, err := r.Client.Get(r.base + "/boards/bench-1/lab-1/report")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	policy := answer.Header.Get("Content-Security-Policy")
	if strings.Contains(string(text), "<img") || !strings.Contains(policy, "sandbox") || !strings.Contains(policy, "script-src 'none'") || !strings.Contains(policy, "frame-ancestors 'self'") {
		t.Errorf("the report has the policy %q, and the text %s", policy, text)
	}
	st.endAs(c, job.Result{Result: fleet.Result{Host: "lab-1", Kind: fleet.Other, Saw: evil, Version: evil}, Attempts: 1, Line: evil})
	r.wait("/jobs/"+c.Job.ID, "see the log below")
	check("/jobs/" + c.Job.ID)
}

// event is one event of a stream.
type event struct{ name, id, data string }

// events is an open stream.
type events struct {
	t    *testing.T
	in   *bufio.Scanner
	body io.Closer
}

func (r reader) follow(page, lastID string) *events {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.base+"/events?page="+url.QueryEscape(page), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	answer, err := r.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" || answer.Header.Get("X-Accel-Buffering") != "no" {
		r.t.Fatalf("GET /events?page=%s = %d %v", page, answer.StatusCode, answer.Header)
	}
	in := bufio.NewScanner(answer.Body)
	in.Buffer(nil, 8<<20)
	return &events{r.t, in, answer.Body}
}

// read returns the next event, false at the end of the stream.
func (s *events) read() (e event, ok bool) {
	for s.in.Scan() {
		key, value, _ := strings.Cut(s.in.Text(), ": ")
		switch {
		case key == "event":
			e.name = value
		case key == "id":
			e.id = value
		case key == "data":
			e.data = value
		case key == "" && e.name != "":
			return e, true
		}
	}
	return e, false
}

func (s *events) next(name string) event {
	s.t.Helper()
	for {
		e, ok := s.read()
		if !ok {
			s.t.Fatalf("the stream ended (%v); want an event %q", s.in.Err(), name)
		}
		if e.name == name {
			return e
		}
	}
}

// part waits for a part with a text.
func (s *events) part(id, want string) part {
	s.t.Helper()
	for {
		var p part
		if err := json.Unmarshal([]byte(s.next("part").data), &p); err != nil {
			s.t.Fatal(err)
		}
		if p.ID == id && strings.Contains(string(p.HTML), want) {
			return p
		}
	}
}

// wait reads until the stream ends.
func (s *events) wait() {
	for s.in.Scan() {
	}
}

// A stream has all parts first, then those that changed, and a log without a hole.
func TestEvents(t *testing.T) {
	s := newSite(t)
	st := s.station("bench-1", lab("lab-1"), lab("lab-2"))
	r := s.signIn(s.invite(job.Viewer, "vera"))
	first := r.follow("/", "")
	for _, id := range []string{"band", "needs", "jobs", "stations"} {
		var p part
		if _ = json.Unmarshal([]byte(first.next("part").data), &p); p.ID != id || !strings.Contains(string(p.HTML), `id="`+id+`"`) {
			t.Fatalf("a stream begins with %+v; want %s", p, id)
		}
	}
	waits := request[job.Change](t, s.admin, job.VerbJobAdd, smokeJob("bench-1", "lab-1")).Job
	first.part("jobs", "lab-1: smoke")
	c := st.claim()
	first.part("jobs", "running")
	st.note(c.Job, progress.Event{Step: "write", State: progress.Running, Count: 5, Total: 10})
	first.part("jobs", `<progress max="10" value="5"`)
	page := "/jobs/" + waits.ID
	st.log(c.Job, "one\n")
	of := r.follow(page, "")
	of.part("steps", `<progress max="10" value="5"`)
	one := of.next("log")
	if one.data != `"one\n"` || one.id == "" {
		t.Errorf("the log begins with %+v", one)
	}
	of.body.Close()
	st.log(c.Job, "two\n")
	st.log(c.Job, "three\n")
	on := r.follow(page, one.id)
	if two, three := on.next("log"), on.next("log"); two.data != `"two\n"` || three.data != `"three\n"` {
		t.Errorf("the log goes on with %+v, %+v", two, three)
	}
	if _, text := r.get(page + "?log=" + one.id); strings.Contains(text, "one") || !strings.Contains(text, ">two\nthree\n</pre>") {
		t.Errorf("the page from %s on is %s", one.id, text)
	}
	st.endAs(c, job.Result{Result: fleet.Result{Host: "lab-1", Kind: fleet.Passed}, Attempts: 1, Steps: []job.StepResult{{Do: job.Smoke, ElapsedMS: 1200}}})
	on.part("steps", "1.2s")
	if p := first.part("jobs", "No job runs"); strings.Contains(string(p.HTML), "progress") {
		t.Errorf("the part after the end is %s", p.HTML)
	}
	s.end() // the hub ends, and no stream keeps it
	first.wait()
}

// A browser that does not read keeps no other from the newest state, and no state waits for it.
func TestSlowBrowser(t *testing.T) {
	s := newSite(t)
	st := s.station("bench-1", lab("lab-1"))
	r := s.signIn(s.admin)
	slow, quick := r.follow("/boards", ""), s.signIn(s.admin).follow("/boards", "")
	for i := range 5 {
		b := lab("lab-1")
		b.Runs = fmt.Sprintf("2.0.%d", i)
		st.announce(b)
		quick.part("boards", b.Runs)
	}
	slow.part("boards", "2.0.4")
}

// No address, whatever is in it, stops the page.
func FuzzAddress(f *testing.F) {
	for _, seed := range []string{"/", "/boards?q=a&from=1", "/boards?from=-9223372036854775808&state=x", "/boards/s/b", "/boards/s/b/c/d", "/jobs/1?log=18446744073709551616", "//", "/stations/%2F", "/stations//", "/jobs/", "?", "/%00"} {
		f.Add(seed)
	}
	s := newState([]job.HubBoard{{Board: lab("b"), Station: "s"}}, []job.HubStation{{Station: job.Station{Name: "s"}}}, []job.Change{{Job: smokeJob("s", "b")}})
	f.Fuzz(func(t *testing.T, address string) {
		uri, err := url.ParseRequestURI(address)
		if err != nil {
			return
		}
		v, err := (&Page{}).newView(t.Context(), s, job.Person{Role: job.Admin}, uri, true)
		if err == nil {
			_, err = v.draw()
		}
		if err != nil && !errors.Is(err, errUnknown) {
			t.Errorf("%q: %v", address, err)
		}
	})
}

// A rollout's page has its waves, its failures by cause, and fleet's page of it. The first page says
// that it waits.
func TestRolloutPage(t *testing.T) {
	s := newSite(t)
	st := s.station("bench-1", lab("lab-1"), lab("lab-2"), lab("lab-3"))
	r := s.signIn(s.invite(job.Operator, "olga"))
	path := "/rollouts/" + request[job.RolloutState](t, s.admin, job.VerbRolloutAdd, rolloutOf(job.Deploy)).ID
	r.wait("/", "orin-lab: deploy")
	c := st.claimNext(ofRollout)
	st.report(c.Job, report.Report{Board: "orin-lab", Suites: []report.SuiteResult{{Name: "base", Checks: []report.CheckResult{{Name: "gpu", Status: report.Failed, Saw: "<b>none</b>"}}}}})
	st.endAs(c, job.Result{Result: fleet.Result{Kind: fleet.Checks, Saw: "<b>1 of 1 failed", Checks: 1}, Attempts: 1})
	text := r.wait(path, "1 of 1 canaries failed")
	for _, want := range []string{"paused", "<progress max=\"1\" value=\"1\"", "1 to come", "checks failed", "&lt;b&gt;1 of 1 failed", ">Resume<", ">Stop<"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
	r.wait("/", "look at the rollout, then resume it or stop it")
	if _, text := r.get(path + "/outcome"); !strings.Contains(text, "gpu") || strings.Contains(text, "<b>none") || !strings.Contains(text, "on 1 of 3 boards") {
		t.Errorf("fleet's page is %s", text)
	}
	if status, text := r.post(path, "wish", "cancel"); status != http.StatusSeeOther || text != path {
		t.Errorf("POST stop = %d %s", status, text)
	}
	r.wait(path, "Bring onto the boards what they had before")
	if _, text := r.get("/boards/bench-1/lab-1"); strings.Count(text, "<option>hub:orin-lab@sha256:bbb") != 1 {
		t.Errorf("a board's page does not offer the rollout's artifact: %s", text)
	}
	live := r.follow(path, "")
	for range 5 { // a form with an ID is no part that is drawn anew
		if p := live.next("part"); strings.Contains(p.data, "Bring onto") {
			t.Errorf("a live part is %s", p.data)
		}
	}
	if status, text := r.post(path, "back", "yes"); status != http.StatusUnprocessableEntity || !strings.Contains(text, "what they had before is not known of lab-1") {
		t.Errorf("POST back = %d %s", status, text)
	}
	if _, text := s.signIn(s.invite(job.Viewer, "vera")).get(path); strings.Contains(text, "Bring onto") {
		t.Errorf("a viewer sees %s", text)
	}
	if _, text := r.get("/rollouts"); !strings.Contains(text, "orin-lab: deploy") || !strings.Contains(text, "stopped") {
		t.Errorf("the list is %s", text)
	}
}

// A board's page has its reports, each by its number, and the charts of trends over them.
func TestBoardReports(t *testing.T) {
	s := newSite(t)
	st := s.station("bench-1", lab("lab-1"), lab("lab-2"))
	most := 10.0
	for i := range 10 {
		m := report.Metric{Name: "boot", Value: 5 + float64(i/5), Unit: "s", Max: &most}
		st.report(job.Job{ID: job.NewID(), Name: "lab-1"}, report.Report{
			Board: "orin-lab", Started: time.Date(2026, 3, 1+i, 0, 0, 0, 0, time.UTC), Suites: []report.SuiteResult{{Name: "base", Checks: []report.CheckResult{{Name: fmt.Sprintf("run-%d", i), Status: report.Passed, Metrics: []report.Metric{m}}, {Name: "boot", Status: report.Passed, Metrics: []report.Metric{m}}}}},
		})
	}
	r := s.signIn(s.invite(job.Viewer, "vera"))
	if _, text := r.get("/boards/bench-1/lab-2"); !strings.Contains(text, "It has no report yet") || strings.Contains(text, "iframe") {
		t.Errorf("the page of a board without reports is %s", text)
	}
	_, text := r.get("/boards/bench-1/lab-1")
	links := plaintext.Regexp(`report\?n=(\d+)`)().FindAllString(text, -1)
	if len(links) != 10 {
		t.Fatalf("the page links to %v: %s", links, text)
	}
	if _, text := r.get("/boards/bench-1/lab-1/" + links[9]); !strings.Contains(text, "run-0") {
		t.Errorf("the oldest report is %s", text)
	}
	if _, text := r.get("/boards/bench-1/lab-1/report"); !strings.Contains(text, "run-9") {
		t.Errorf("the newest report is %s", text)
	}
	if status, text := r.get("/boards/bench-1/lab-2/report"); status != http.StatusNotFound || !strings.Contains(text, "station or job: lab-2 of bench-1 has no such report</h2>") || !strings.Contains(text, "<dd>slipway hub report lab-2 --list</dd>") {
		t.Errorf("no report is %d %s", status, text)
	}
	answer, err := r.Client.Get(r.base + "/boards/bench-1/lab-2/report")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if got := answer.Header.Get("Content-Security-Policy"); got != reportPolicy {
		t.Errorf("an error in a frame has the policy %q", got)
	}
	if _, text := r.get("/boards/bench-1/lab-1/trends"); !strings.Contains(text, "1 regression") || !strings.Contains(text, "<svg") || !strings.Contains(text, "5 s → 6 s") {
		t.Errorf("the charts are %s", text)
	}
}

// The last result is that of the last end: the IDs of a rollout's jobs are in no order. A build's page
// asks for the station of its job, as a builder is no board.
func TestStateOrder(t *testing.T) {
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	ended := func(id string, hours int, kind fleet.Kind) job.Change {
		j := smokeJob("s", "b")
		j.ID, j.State, j.Result = id, job.Ended, &job.Result{Result: fleet.Result{Kind: kind}}
		return job.Change{Job: j, At: at.Add(time.Duration(hours) * time.Hour)}
	}
	build := smokeJob("s", job.Builder)
	build.ID, build.State, build.Steps = "5", job.Running, []job.Step{{Do: job.Build}}
	b := lab("b")
	b.Last = &job.Last{Job: "9", Kind: fleet.Checks, At: at}
	stations := []job.HubStation{{Station: job.Station{Name: "s"}, Heard: true}}
	s := newState([]job.HubBoard{{Board: b, Station: "s", Heard: true}}, stations, []job.Change{ended("8", 1, fleet.Checks), ended("2", 3, fleet.Passed), ended("7", 2, fleet.Checks), {Job: build}})
	if got := s.boards[0]; got.state != "free" || got.Last.Job != "2" || got.ended.ID != "2" || got.jobs[1].ID != "7" {
		t.Errorf("the board is %s after %+v; want free after the job 2", got.state, got.Last)
	}
	for _, heard := range []bool{true, false} {
		s.byStation["s"].Heard = heard
		v, err := (&Page{}).newView(t.Context(), s, job.Person{Role: job.Admin}, &url.URL{Path: "/jobs/5"}, true)
		if err != nil {
			t.Fatal(err)
		}
		parts, err := v.draw()
		if text := fmt.Sprint(parts); err != nil || strings.Contains(text, ">Stop<") != heard || strings.Contains(text, "Abandon") == heard {
			t.Errorf("heard %v: the build's page is %s, %v", heard, text, err)
		}
	}
}

// deadlines notes the deadline of reading a request.
type deadlines struct {
	*httptest.ResponseRecorder
	read time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.read = at
	return nil
}

// A body that does not come keeps no connection for ever.
func TestReadDeadline(t *testing.T) {
	p := &Page{names: []string{"hub"}}
	for method, want := range map[string]bool{http.MethodPost: true, http.MethodGet: false} {
		w, done := &deadlines{ResponseRecorder: httptest.NewRecorder()}, false
		next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { done = true })
		p.secure(next).ServeHTTP(w, httptest.NewRequest(method, "https://hub/in", nil))
		if !done || w.read.IsZero() == want {
			t.Errorf("%s: it reads until %v; want a limit: %v", method, w.read, want)
		}
	}
}

// The page of a hub that cannot do it now says so, and what stations send while nobody looks is
// limited.
func TestOwnHub(t *testing.T) {
	s := newSite(t)
	st := s.station("bench-1", lab("lab-1"))
	s.end()
	var p *Page
	s.options.Handler = func(ctx context.Context, h *hub.Hub, names []string, authority []byte) (http.Handler, error) {
		p = &Page{follower: follower{ctx: ctx, h: h, changed: h.Changed(ctx), events: map[string][]progress.Event{}}}
		return New(ctx, h, names, authority)
	}
	s.start()
	for err, want := range map[error]int{context.DeadlineExceeded: 503, errUnknown: 404, errRole: 403, errors.New("other"): 422} {
		if got := p.statusOf(err); got != want {
			t.Errorf("statusOf(%v) = %d; want %d", err, got, want)
		}
	}
	if _, err := access.AskOn[job.Change](t.Context(), s.admin, job.VerbJobAdd, smokeJob("bench-1", "lab-1")); err != nil {
		t.Fatal(err)
	}
	runs := st.claim().Job.Key()
	p.note(runs, progress.Event{Step: "write"})
	for i := range maxNoted {
		p.note(fmt.Sprint("ended-", i), progress.Event{Step: "write"})
	}
	if len(p.events) != 2 || p.events[runs] == nil {
		t.Errorf("%d jobs are noted; want the one that runs, and the last", len(p.events))
	}
}
