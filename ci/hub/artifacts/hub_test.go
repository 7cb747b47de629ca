package artifacts_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/flash/fetch"
	"slipway/flash/store"
	"slipway/images"
)

// people are the admin of a hub that runs, and others that it invites.
type people struct {
	t       *testing.T
	address string
	admin   *access.Client
}

func startHub(t *testing.T) people {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan [2]string, 1), make(chan error, 1)
	o := hub.Options{
		Dir: t.TempDir(), Names: []string{"127.0.0.1"}, Listen: "127.0.0.1:0", Page: "127.0.0.1:0", Admin: "ada", Log: io.Discard,
		Ready: func(address, token string) { ready <- [2]string{address, token} },
	}
	go func() { done <- hub.Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
	})
	select {
	case r := <-ready:
		p := people{t: t, address: r[0]}
		id := p.join(r[1])
		var err error
		if p.admin, err = id.Dial(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.admin.Close() })
		return p
	case err := <-done:
		t.Fatalf("Run = %v", err)
		return people{}
	}
}

func (p people) join(token string) access.Identity {
	p.t.Helper()
	id, err := access.Join(p.t.Context(), p.address, token)
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

func (p people) invite(role job.Role, name string) access.Identity {
	p.t.Helper()
	i, err := access.Ask[job.Invitation](p.t.Context(), p.admin, job.VerbInvite, job.Person{Name: name, Role: role})
	if err != nil {
		p.t.Fatal(err)
	}
	return p.join(access.Token(i.Secret, []byte(p.admin.Authority)))
}

// as makes hub: the hub of this identity, at another address if there is one.
func (p people) as(id access.Identity, address string) {
	was := fetch.Hub
	p.t.Cleanup(func() { fetch.Hub = was })
	fetch.Hub = func() (fetch.HubAccess, error) {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(id.Authority))
		login := func() (string, string, error) {
			password, err := id.Password(time.Now())
			return id.Name, password, err
		}
		if address == "" {
			address = id.Hub
		}
		return fetch.HubAccess{Address: address, Roots: roots, Login: login}, nil
	}
}

// newArtifact makes an artifact of one disk image.
func newArtifact(t *testing.T, key string, size int) string {
	t.Helper()
	dir := t.TempDir()
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{key[0]}).Read(data) //nolint:errcheck // never fails
	if err := os.WriteFile(filepath.Join(dir, "disk.img"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	a := images.Artifact{
		Board: "orin-lab", Arch: "arm64", Key: strings.Repeat(key, 64), Built: time.Date(2026, 11, int(key[0]-'0'), 0, 0, 0, 0, time.UTC),
		Files: []images.File{{Kind: images.DiskImage, Name: "disk.img", SizeBytes: int64(size), SHA256: digest.FromBytes(data).Encoded()}},
	}
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func push(t *testing.T, dir, to string) store.Pushed {
	t.Helper()
	p, err := store.Push(t.Context(), dir, "", to, nil)
	if err != nil {
		t.Fatalf("Push to %s = %v", to, err)
	}
	return p
}

func sameDisk(t *testing.T, got, want string) {
	t.Helper()
	one, err1 := os.ReadFile(filepath.Join(got, "disk.img"))
	two, err2 := os.ReadFile(filepath.Join(want, "disk.img"))
	if err1 != nil || err2 != nil || string(one) != string(two) {
		t.Errorf("disks of %d and %d bytes differ: %v, %v", len(one), len(two), err1, err2)
	}
}

func TestPlaceOfHub(t *testing.T) {
	p := startHub(t)
	p.as(p.admin.Identity, "")
	one, two := newArtifact(t, "1", 600<<10), newArtifact(t, "2", 1000)
	pushed := push(t, one, "hub:")
	if pushed.Store != "hub:artifacts" || !slices.Equal(pushed.Tags, []string{"orin-lab-111111111111"}) {
		t.Errorf("Push = %+v", pushed)
	}
	if again := push(t, one, "hub:"); again.SentBytes != 0 {
		t.Errorf("the second Push sent %v", again.Sent)
	}
	push(t, two, "hub:")
	for _, ref := range []string{"hub:artifacts:orin-lab-111111111111", "hub::orin-lab-111111111111", "hub:@" + pushed.Digest, "hub:orin-lab@" + pushed.Digest} {
		into := t.TempDir()
		if _, err := store.Pull(t.Context(), ref, store.PullOptions{Into: into}); err != nil {
			t.Fatalf("Pull(%s) = %v", ref, err)
		}
		sameDisk(t, into, one)
	}
	if all, err := store.List(t.Context(), "hub:"); err != nil || len(all) != 2 || all[0].Board != "orin-lab" {
		t.Errorf("List = %+v, %v; want two artifacts", all, err)
	}
	c, err := store.Clean(t.Context(), "hub:", store.CleanOptions{Keep: 1, Yes: true})
	if err != nil || len(c.Gone) != 1 || c.Gone[0].Digest != pushed.Digest {
		t.Errorf("Clean = %+v, %v; want %s gone", c, err, pushed.Digest)
	}
	if _, err := store.Pull(t.Context(), "hub:@"+pushed.Digest, store.PullOptions{Into: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("Pull of what is gone = %v; want 404", err)
	}
}

// A pull that was cut goes on in the middle.
func TestResume(t *testing.T) {
	p := startHub(t)
	line := startLine(t, p.address)
	p.as(p.admin.Identity, line.Addr().String())
	const size = 4 << 20
	dir, into := newArtifact(t, "1", size), t.TempDir()
	line.left.Store(size / 2)
	push(t, dir, "hub::v1")
	line.left.Store(size / 2)
	line.down.Store(0)
	if _, err := store.Pull(t.Context(), "hub::v1", store.PullOptions{Into: into}); err != nil {
		t.Fatal(err)
	}
	if n := line.down.Load(); line.left.Load() > 0 || n > size+size/4 {
		t.Errorf("a pull of %d bytes over a line that was cut carried %d", size, n)
	}
	sameDisk(t, into, dir)
}

// line passes connections on, and cuts all of them once after so many bytes.
type line struct {
	net.Listener
	left, down atomic.Int64
}

func startLine(t *testing.T, to string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{Listener: listener}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			go l.copy(server, client, nil)
			go l.copy(client, server, &l.down)
		}
	}()
	return l
}

func (l *line) copy(to, from net.Conn, count *atomic.Int64) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if count != nil {
			count.Add(int64(n))
		}
		if left := l.left.Add(-int64(n)); left <= 0 && left > -int64(n) && n > 0 {
			return
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

func TestRolesOfPeople(t *testing.T) {
	p := startHub(t)
	dir := newArtifact(t, "1", 1000)
	p.as(p.admin.Identity, "")
	push(t, dir, "hub::v1")
	push(t, newArtifact(t, "2", 1000), "hub:")
	push(t, newArtifact(t, "3", 1000), "hub:")
	for _, tt := range []struct {
		role               job.Role
		pull, push, remove string // the error's words; "" is none
	}{
		{job.Viewer, "", "403", "403"},
		{job.AStation, "", "403", "403"},
		{job.Operator, "", "", "403"},
		{job.Admin, "", "", ""},
	} {
		p.as(p.invite(tt.role, "a-"+string(tt.role)), "")
		_, pull := store.Pull(t.Context(), "hub::v1", store.PullOptions{Into: t.TempDir()})
		_, push := store.Push(t.Context(), newArtifact(t, "4", 1000), "", "hub:", nil)
		_, remove := store.Clean(t.Context(), "hub:", store.CleanOptions{Keep: 1, Yes: true})
		for what, c := range map[string]struct {
			err  error
			want string
		}{"pull": {pull, tt.pull}, "push": {push, tt.push}, "remove": {remove, tt.remove}} {
			if (c.err == nil) != (c.want == "") || c.err != nil && !(strings.Contains(c.err.Error(), c.want) && strings.Contains(c.err.Error(), "\nnext: slipway hub people")) {
				t.Errorf("%s by a %s: %v; want %q", what, tt.role, c.err, c.want)
			}
		}
	}
}

// status returns the answer to a request with a name and a password.
func (p people) status(name, password string) (int, string) {
	p.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(p.admin.Authority))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(p.t.Context(), "GET", "https://"+p.address+"/v2/", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	request.SetBasicAuth(name, password)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestPasswordsOfHub(t *testing.T) {
	p := startHub(t)
	alice := p.invite(job.Viewer, "alice")
	other := alice
	other.Seed = p.admin.Seed
	for _, tt := range []struct {
		what, name string
		by         access.Identity
		age        time.Duration
		status     int
		words      string
	}{
		{"a new one", "alice", alice, 0, 200, ""},
		{"one that was stolen 4 minutes ago", "alice", alice, 4 * time.Minute, 200, ""},
		{"one that was stolen 6 minutes ago", "alice", alice, 6 * time.Minute, 401, "the password is over"},
		{"one of a clock that is 6 minutes ahead", "alice", alice, -6 * time.Minute, 401, "the password is over"},
		{"one of another name", "ada", alice, 0, 401, "another name"},
		{"one that another key signed", "alice", other, 0, 401, "another key"},
	} {
		password, err := tt.by.Password(time.Now().Add(-tt.age))
		if err != nil {
			t.Fatal(err)
		}
		if status, text := p.status(tt.name, password); status != tt.status || !strings.Contains(text, tt.words) {
			t.Errorf("%s: %d %s; want %d %s", tt.what, status, text, tt.status, tt.words)
		}
	}
	for _, password := range []string{"", "1.2.3", alice.JWT, strings.Repeat("1", 20<<10)} {
		if status, _ := p.status("alice", password); status != 401 {
			t.Errorf("the password %.20q: %d; want 401", password, status)
		}
	}
}

func TestRevokedPerson(t *testing.T) {
	p := startHub(t)
	alice := p.invite(job.Viewer, "alice")
	password, err := alice.Password(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if status, text := p.status("alice", password); status != 200 {
		t.Fatalf("before: %d %s", status, text)
	}
	if _, err := access.Ask[struct{}](t.Context(), p.admin, job.VerbRemove, job.Person{Name: "alice"}); err != nil {
		t.Fatal(err)
	}
	status, text := 200, ""
	for status == 200 { // the hub revokes the key once it has read the change
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		status, text = p.status("alice", password)
	}
	if status != 401 || !strings.Contains(text, "removed") {
		t.Errorf("after: %d %s; want 401", status, text)
	}
	p.as(alice, "")
	if _, err := store.List(t.Context(), "hub:"); err == nil || !strings.Contains(err.Error(), "\nnext: slipway join "+p.address) {
		t.Errorf("List = %v; want 401 and how to join", err)
	}
}
