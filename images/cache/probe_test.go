package cache

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/images/cache/cachetest"
	"slipway/layers/progress"
)

func contextWithLocal(r *http.Request, address string) context.Context {
	local, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		panic(err)
	}
	return context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(local))
}

const (
	askPR        = `{"test-pr": {"version": "0", "pkgarch": "slipway-probe", "checksum": "0"}}`
	askPRHistory = `{"test-pr": {"version": "0", "pkgarch": "slipway-probe", "checksum": "0", "history": false}}`
	askExists    = `{"exists-stream": null}`
)

// What the servers of bitbake 2.0, 2.8 and 2.18 were recorded to answer.
func TestProbes(t *testing.T) {
	hash := func(more ...string) map[string]string { return cachetest.Dialogue(greetHashserv, more...) }
	pr := func(more ...string) map[string]string { return cachetest.Dialogue(greetPRServ, more...) }
	tests := []struct {
		name    string
		answers map[string]string
		check   func(context.Context, string, Version) error
		version Version
		wantErr string
	}{
		{"hashes 2.0 for 2.0", hash(ping, `{"alive": true}`), checkHashserv, Version{2, 0}, ""},
		{"hashes 2.0 for 2.8", hash(ping, `{"alive": true}`), checkHashserv, Version{2, 8}, "before 2.7"},
		{"hashes 2.8 for 2.8", hash(ping, `{"alive": true}`, askExists, `"ok"`), checkHashserv, Version{2, 8}, ""},
		{"hashes 2.8 for 2.0", hash(ping, `{"alive": true}`, askExists, `"ok"`), checkHashserv, Version{2, 0}, ""},
		{"hashes 1.46", hash(), checkHashserv, Version{2, 0}, "hangs up on a ping"},
		{"hashes need a login", hash(ping, `{"invoke-error": {"message": "Access denied"}}`), checkHashserv, Version{2, 8}, `refuses: "Access denied"`},
		{"a PR server in the place of hashes", pr(ping, `{"alive": true}`), checkHashserv, Version{2, 8}, "hangs up"},
		{"a chatty server", hash(ping, strings.Repeat("x", 2*maxLineBytes)), checkHashserv, Version{2, 8}, "longer than"},
		{"not JSON", hash(ping, "HTTP/1.1 400 Bad Request"), checkHashserv, Version{2, 8}, "is not its protocol"},
		{"PR 2.0 for 2.8", pr(ping, `{"alive": true}`), checkPRServ, Version{2, 8}, ""},
		{"PR 2.8 for 2.0", pr(ping, `{"alive": true}`, askPR, `{"value": null}`), checkPRServ, Version{2, 0}, ""},
		{"PR 2.8 for 2.18", pr(ping, `{"alive": true}`, askPR, `{"value": null}`, askPRHistory, `{"value": null}`), checkPRServ, Version{2, 18}, "1.52 to 2.8"},
		{"PR 2.18 for 2.18", pr(ping, `{"alive": true}`, askPRHistory, `{"value": null}`), checkPRServ, Version{2, 18}, ""},
		{"PR 2.18 for 2.8", pr(ping, `{"alive": true}`, askPRHistory, `{"value": null}`), checkPRServ, Version{2, 8}, "2.9 and later"},
		{"no PR server", map[string]string{}, checkPRServ, Version{2, 8}, "is no PR server"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := tt.check(t.Context(), cachetest.Replay(t, tt.answers), tt.version)
			if (tt.wantErr == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%v; want %q", err, tt.wantErr)
			}
		})
	}
}

// A server that takes a connection and says nothing must not hold a build for long.
func TestProbeOfNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrClosedPipe)
	if err := checkHashserv(ctx, address, Version{2, 8}); !errors.Is(err, io.ErrClosedPipe) {
		t.Error("a probe went on after its context had ended")
	}
	l.Close()
	err = Cache{From: "board.yml:3:8", Sstate: "http://" + address, Hashserv: address}.checkParts(t.Context(), Version{2, 8})
	for _, want := range []string{"board.yml:3:8: ", address, "nothing answers", "SLIPWAY_CACHE=off"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("check = %v; want %q", err, want)
		}
	}
}

// The probe does not blame the cache when a user stops the build. A silent server and a
// server that is gone give different errors.
func TestProbeOfTheSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	setting := Setting{Server: "http://" + l.Addr().String(), From: "board.yml:3:8"}
	stopped := errors.New("interrupt")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(stopped) })
	bitbake := t.TempDir()
	write(t, filepath.Join(bitbake, "lib/bb/__init__.py"), "__version__ = \"2.8.1\"\n")
	if _, err := Prepare(ctx, Request{Setting: setting, Bitbake: bitbake}); !errors.Is(err, stopped) || strings.Contains(err.Error(), "SLIPWAY_CACHE") {
		t.Errorf("Prepare, stopped = %v; want %v alone", err, stopped)
	}
	late, cancelLate := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelLate()
	if _, err := resolveCache(late, setting); err == nil || !strings.Contains(err.Error(), "does not answer within") {
		t.Errorf("a server that says nothing: %v", err)
	}
}

// What a mirror answers to a question for no file.
func TestProbeFiles(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	status := 0
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	web, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer web.Close()
	defer secure.Close()
	tests := []struct {
		status         int
		netrc, address string
		wantErr        string
	}{
		{200, "", web.URL, ""},
		{404, "", web.URL, ""},
		{403, "", web.URL, ""},
		{500, "", web.URL, "answers 500 Internal Server Error"},
		{401, "", web.URL, "wants a login; write one into ~/.netrc: machine 127.0.0.1 "},
		{401, "machine 192.0.2.1 login a password b\n", web.URL, "wants a login"},
		{401, "machine\n 127.0.0.1\n login a password b\n", web.URL, ""},
		{401, "default login a password b\n", web.URL, ""},
		{200, "", secure.URL, "does not answer as it should: tls: "},
		{200, "", "file://" + home, ""},
		{200, "", "file://" + home + "/none", "no such file"},
	}
	for _, tt := range tests {
		status = tt.status
		write(t, filepath.Join(home, ".netrc"), tt.netrc)
		err := probeFiles(t.Context(), tt.address)
		if (tt.wantErr == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s, which answers %d, with .netrc %q = %v; want %q", tt.address, tt.status, tt.netrc, err, tt.wantErr)
		}
	}
}

// A websocket is read with limits from its first byte on.
func TestProbeOfEndlessHeaders(t *testing.T) {
	sent := make(chan int, 1)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n")
		total := 0
		for line := "X: " + strings.Repeat("x", 60<<10) + "\r\n"; err == nil && total < 64*maxTalkBytes; {
			var n int
			n, err = io.WriteString(conn, line)
			total += n
		}
		sent <- total
	}))
	defer web.Close()
	_, err := queryInOrder(t.Context(), strings.Replace(web.URL, "http", "ws", 1), greetHashserv, ping)
	if err == nil || !strings.Contains(err.Error(), "answers more than") {
		t.Errorf("converse = %v; want it to stop reading", err)
	}
	if total := <-sent; total == 64*maxTalkBytes {
		t.Errorf("%d bytes of headers were taken", total)
	}
}

// Whoever may write into the served folder fills it; whoever may not is told.
func TestPrepareOnTheServingMachine(t *testing.T) {
	dir := t.TempDir()
	bitbake, served := filepath.Join(dir, "bitbake"), filepath.Join(dir, "served")
	write(t, filepath.Join(bitbake, "lib/bb/__init__.py"), "__version__ = \"1.46.0\"\n")
	write(t, filepath.Join(served, stateDir, "key"), "secret")
	write(t, filepath.Join(served, "sstate-cache/x"), "")
	self := descriptor{Slipway: descriptorKind, Bitbake: "1.46", Folder: served, Key: "secret"}
	web := httptest.NewServer(newFilesHandler(&servedFolder{}, &servedFolder{}, self))
	defer web.Close()
	r := Request{Setting: Setting{Server: web.URL, PRServ: none, From: "board.yml:3:8"}, Bitbake: bitbake, Build: filepath.Join(dir, "build")}
	p, err := r.makePlan(t.Context(), progress.Start(t.Context(), "cache", 0, ""))
	if err != nil || !strings.HasPrefix(p.Summary, "builds from ") || !strings.Contains(strings.Join(p.Warnings, "\n"), "board.yml:3:8: this machine serves "+served+", where this build may not write") {
		t.Errorf("without a folder for downloads: %q, %q, %v; want a warning", p.Summary, p.Warnings, err)
	}
	self.Folder = "/not-here\x1b[31m" // another machine says so
	far := httptest.NewServer(newFilesHandler(&servedFolder{}, &servedFolder{}, self))
	defer far.Close()
	if c, err := resolveCache(t.Context(), Setting{Server: far.URL}); err != nil || c.Closed+c.Fill != "" {
		t.Errorf("a server that names a folder which is not here: %+v, %v; want it ignored", c, err)
	}
	write(t, filepath.Join(served, "downloads/x"), "")
	p, err = r.makePlan(t.Context(), progress.Start(t.Context(), "cache", 0, ""))
	if err != nil || p.Summary != "fills "+served || strings.Contains(strings.Join(p.Warnings, "\n"), "may not write") {
		t.Errorf("where it may write: %q, %q, %v; want the folder filled", p.Summary, p.Warnings, err)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(`{"alive": true}`)
	f.Add(`{"invoke-error": {"message": "no"}}`)
	f.Add(`{"value": "0"}`)
	f.Add(`"ok"`)
	f.Fuzz(func(t *testing.T, line string) {
		a, err := parseAnswer(line)
		if err == nil && a.InvokeError != nil {
			t.Error("took a refusal for an answer")
		}
		if err != nil && strings.ContainsAny(err.Error(), "\x1b\r\n") {
			t.Errorf("error carries control characters: %q", err)
		}
	})
}
