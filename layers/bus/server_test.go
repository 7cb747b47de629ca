package bus

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"

	"slipway/layers/run"
)

// refused connects, and checks that the error has these words.
func refused(t *testing.T, a Access, words ...string) {
	t.Helper()
	nc, err := dialAs(withLimit(t), a)
	if err == nil {
		nc.Close()
		t.Fatalf("Connect = nil; want an error with %q", words)
	}
	for _, w := range append(words, "connect to", "\nnext: ") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("Connect = %q; want %q in it", err, w)
		}
	}
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for ctx := withLimit(t); !holds(); {
		if run.Sleep(ctx, 5*time.Millisecond) != nil {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

func TestRevoked(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	a, public := h.user(t, "station", "bench-1")
	b, _ := h.user(t, "station", "bench-2")
	gone, stays := connect(t, a), connect(t, b)
	closed := make(chan error, 1)
	gone.SetClosedHandler(func(nc *nats.Conn) { closed <- nc.LastError() })
	if err := h.SetRevocations([]string{public}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-closed:
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("the connection closed with %v; want %v", err, nats.ErrAuthorization)
		}
	case <-withLimit(t).Done():
		t.Fatal("the connection of a revoked user stays open")
	}
	refused(t, a, h.Address(), "refuses bench-1, whose key an admin removed")
	flush(t, stays)
	if n := stays.Stats().Reconnects; n != 0 {
		t.Errorf("another user was disconnected %d times", n)
	}
	if err := h.SetRevocations([]string{"*"}); err == nil || !strings.Contains(err.Error(), "no public key of a user") {
		t.Errorf("Revoke of all = %v; want it refused", err)
	}
	if err := h.SetRevocations(nil); err != nil {
		t.Fatal(err)
	}
	flush(t, connect(t, a))
}

// A clock of a hub may be years behind that of another one, which signs the user.
func TestRevokedFromTheFuture(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	_, public := h.user(t, "viewer", "alice")
	c := jwt.NewUserClaims(public)
	c.IssuedAt = time.Now().AddDate(100, 0, 0).Unix()
	if !h.keys.claims(testRoles, []string{public}).IsClaimRevoked(c) {
		t.Error("a revoked user is accepted with a JWT of the future")
	}
}

// resign changes a viewer's JWT.
func resign(t *testing.T, k *Keys, token string, change func(*jwt.UserClaims)) string {
	t.Helper()
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		t.Fatal(err)
	}
	change(c)
	signer, _ := k.role("viewer")
	if token, err = c.Encode(signer); err != nil {
		t.Fatal(err)
	}
	return token
}

func TestRefused(t *testing.T) {
	t.Parallel()
	h, other := startHub(t), startHub(t)
	good, _ := h.user(t, "viewer", "alice")
	at := h.Address()
	for name, c := range map[string]struct {
		change func(*Access)
		words  []string
	}{
		"expired": {func(a *Access) {
			a.JWT = resign(t, h.keys, a.JWT, func(c *jwt.UserClaims) { c.Expires = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC).Unix() })
		}, []string{at, "refuses alice, whose access expired on 2024-05-06 07:08:09", "slipway join"}},
		"of another hub": {
			func(a *Access) { b, _ := other.user(t, "viewer", "alice"); a.JWT, a.Seed = b.JWT, b.Seed },
			[]string{at, "which the hub never knew"},
		},
		"a stolen JWT":      {func(a *Access) { b, _ := h.user(t, "viewer", "alice"); a.Seed = b.Seed }, []string{at, "refuses alice"}},
		"more than a scope": {func(a *Access) { a.JWT = resign(t, h.keys, a.JWT, func(c *jwt.UserClaims) { c.Pub.Allow.Add(">") }) }, []string{at, "refuses alice"}},
		"wrong CA":          {func(a *Access) { a.Authority = other.ca.pem }, []string{at, "not the hub that was joined", "unknown authority"}},
		"wrong name": {
			func(a *Access) { a.Addresses = []string{strings.Replace(at, "127.0.0.1", "localhost", 1)} },
			[]string{"connect to localhost:", "not the hub that was joined, or its certificate is not for this name"},
		},
		"no CA":      {func(a *Access) { a.Authority = "" }, []string{"CA is not known"}},
		"no address": {func(a *Access) { a.Addresses = nil }, []string{"its address"}},
		"two addresses": {
			func(a *Access) { a.Authority, a.Addresses = other.ca.pem, []string{at, "127.0.0.1:1"} },
			[]string{at, "unknown authority", "connect to 127.0.0.1:1: ", "connection refused", "ping -c 3 127.0.0.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := good
			c.change(&a)
			refused(t, a, c.words...)
		})
	}
	good.Addresses = []string{"127.0.0.1:1", at}
	flush(t, connect(t, good))
}

func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tired := errors.New("tired")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		if c, err := l.Accept(); err == nil {
			defer c.Close()
			cancel(tired)
			_, _ = c.Read(make([]byte, 1)) // until the client closes
		}
	}()
	a := Access{"alice", []string{l.Addr().String()}, "", "", newAuthority(t).pem}
	if _, err := dialAs(ctx, a); !errors.Is(err, tired) {
		t.Errorf("Connect, ended = %v; want %v", err, tired)
	}
}

// A connection outlives the context that it was made with, and the server.
func TestReconnect(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	a, revoked := h.user(t, "viewer", "mallory")
	b, _ := h.user(t, "viewer", "alice")
	ctx, cancel := context.WithCancel(t.Context())
	nc, err := dialAs(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	cancel()
	flush(t, nc)
	revision, err := bucket(t, h.Server, "jobs", 1, 0).Update(t.Context(), "a", []byte("1"), 0, 0)
	if err := errors.Join(err, h.SetRevocations([]string{revoked})); err != nil {
		t.Fatal(err)
	}

	o := h.opts
	o.Listen = h.Address()
	h.Close()
	if o.Keys, err = LoadKeys(keysDir(t, o.Keys)); err != nil {
		t.Fatal(err)
	}
	h.Server = startServer(t, o)
	waitFor(t, "the connection to come back", nc.IsConnected)
	flush(t, nc)
	refused(t, a, "removed")
	if e, err := bucket(t, h.Server, "jobs", 1, 0).Get(t.Context(), "a"); err != nil || string(e.Value()) != "1" || e.Revision() != revision {
		t.Errorf("Get after a restart = %v, %v; want the value at revision %d", e, err, revision)
	}
}

// keysDir writes keys as LoadKeys would have.
func keysDir(t *testing.T, k *Keys) string {
	t.Helper()
	dir := t.TempDir()
	data := `{"v":1,"secret":"` + encode(k.Secret) + `","later":true}`
	if err := os.WriteFile(filepath.Join(dir, "keys.json"), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCertificateChanges(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	a, _ := h.user(t, "viewer", "alice")
	open := connect(t, a)
	other := newAuthority(t)
	h.leaf.Store(other.leaf)
	refused(t, a, "unknown authority")
	a.Authority += other.pem
	flush(t, connect(t, a))
	flush(t, open)
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*ServerOptions){
		"never listens without TLS":        func(o *ServerOptions) { o.TLS = nil },
		"address already in use\"\nnext: ": func(o *ServerOptions) { o.Listen = h.Address() },
		"missing port":                     func(o *ServerOptions) { o.Listen = "127.0.0.1" },
		"out of range":                     func(o *ServerOptions) { o.Listen = "127.0.0.1:70000" },
		"not a directory":                  func(o *ServerOptions) { o.StoreDir = filepath.Join(file, "store") },
		"too many colons":                  func(o *ServerOptions) { o.Cluster = &Cluster{"three", "1:2:3", nil} },
		"invalid character":                func(o *ServerOptions) { os.WriteFile(filepath.Join(o.StoreDir, "revoked.json"), []byte("x"), 0o600) },
	} {
		t.Run(want, func(t *testing.T) {
			o := h.opts
			o.Log = t.Output()
			o.StoreDir = t.TempDir()
			change(&o)
			s, err := Start(o)
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "start a NATS server at") {
				t.Errorf("Start = %v; want %q", err, want)
			}
		})
	}
}

// A server for this process alone needs no certificate.
func TestInProcess(t *testing.T) {
	t.Parallel()
	keys, err := LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, ServerOptions{Name: "one", StoreDir: t.TempDir(), Keys: keys})
	if _, err := bucket(t, s, "jobs", 1, 0).Update(t.Context(), "a", nil, 0, 0); err != nil {
		t.Error(err)
	}
	s.Close()
	if !s.conns[0].IsClosed() || s.nats.Running() {
		t.Error("Close left the server or its connection")
	}
}

// A restart with a store that takes most of the disk must not make it too small for itself.
func TestStoreLimitCountsTheStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	if _, err := storeLimit(dir); err != nil {
		t.Fatal(err)
	}
	const size = 1 << 43 // a hole
	f, err := os.Create(filepath.Join(dir, "block"))
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if most, err := storeLimit(dir); err != nil || most < size/5*4 {
		t.Errorf("storeLimit = %d, %v; want 80 %% of the file and the rest", most, err)
	}
}

// A hub works with servers whose keys have a time to live of their own.
func TestCheckVersion(t *testing.T) {
	for version, good := range map[string]bool{
		"2.11.0": true, "2.15.3": true, "2.11.0-preview.1": true, "3.0.0": true, "10.1": true,
		"2.10.29": false, "2.9.25": false, "1.99.9": false, "": false, "beta": false, "2": false,
	} {
		err := checkVersion(version)
		if (err == nil) != good || err != nil && !strings.Contains(err.Error(), "want 2.11 or later") {
			t.Errorf("checkVersion(%q) = %v; want accepted %v", version, err, good)
		}
	}
}

// A role without subjects may nothing, and one that the hub does not have is no role. What the hub's own
// roles may is tested there.
func TestRoles(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	a, _ := h.user(t, "nothing", "eve")
	nc, errs := connect(t, a), make(chan error, 4)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs <- err })
	if err := nc.Publish("api.viewer.eve.x", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.SubscribeSync("_INBOX_eve.>"); err != nil {
		t.Fatal(err)
	}
	flush(t, nc)
	for range 2 {
		select {
		case err := <-errs:
			if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
				t.Errorf("a role without subjects: %v; want a violation of permissions", err)
			}
		case <-withLimit(t).Done():
			t.Fatal("a role without subjects is not refused")
		}
	}
	a, _ = h.user(t, "unknown", "eve")
	if nc, err := dialAs(t.Context(), a); err == nil {
		nc.Close()
		t.Error("Connect as a role that the hub does not have = nil; want an error")
	}
}
