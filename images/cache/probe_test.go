package cache

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/layers/progress"
)

// listening returns an address that takes connections.
func listening(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func contextWithLocal(r *http.Request, address string) context.Context {
	local, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		panic(err)
	}
	return context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(local))
}

// Servers of a bitbake that is too old, or of another generation, are refused before the build.
func TestServersOfAnotherBitbake(t *testing.T) {
	tests := []struct {
		name           string
		servers, build Version
		wantErr        string
	}{
		{"the same", Version{2, 8}, Version{2, 8}, ""},
		{"newer", Version{2, 8}, Version{2, 0}, ""},
		{"older than its question", Version{2, 0}, Version{2, 8}, "hashserv of the cache, h:1: is of bitbake 2.0, and cannot answer what bitbake 2.8 asks; serve the cache with bitbake 2.7 or later"},
		{"PR server of before", Version{2, 8}, Version{2, 18}, "prserv of the cache, p:1: is of bitbake 2.8, which bitbake 2.18 cannot use; serve the cache with a bitbake 2.9 or later"},
		{"PR server of after", Version{2, 18}, Version{2, 8}, "serve the cache with a bitbake before 2.9"},
	}
	for _, tt := range tests {
		c := Cache{From: "board.yml:3:8", Bitbake: tt.servers, Hashserv: "h:1", PRServ: "p:1"}
		err := c.checkServers(tt.build)
		if (tt.wantErr == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.wantErr)
		}
	}
}

// bitbake before kirkstone's builds without the cache, which nobody asks.
func TestPrepareForOldBitbake(t *testing.T) {
	bitbake := t.TempDir()
	write(t, filepath.Join(bitbake, "lib/bb/__init__.py"), "__version__ = \"1.46.0\"\n")
	r := Request{Setting: Setting{Server: "http://127.0.0.1:1", From: "board.yml:3:8"}, Bitbake: bitbake}
	p, err := r.makePlan(t.Context(), progress.Start(t.Context(), "cache", 0, ""))
	if err != nil || len(p.Assign) > 0 || len(p.Warnings) != 1 || !strings.HasPrefix(p.Warnings[0], "board.yml:3:8: bitbake 1.46 cannot share its work (2.0 and later can)") {
		t.Errorf("makePlan = %+v, %v; want a warning alone", p, err)
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
	if err := probePort(ctx, address); !errors.Is(err, io.ErrClosedPipe) {
		t.Error("a probe went on after its context had ended")
	}
	l.Close()
	err = Cache{From: "board.yml:3:8", Bitbake: Version{2, 8}, Hashserv: address}.checkParts(t.Context(), Version{2, 8})
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

// Whoever may write into the served folder fills it; whoever may not is told.
func TestPrepareOnTheServingMachine(t *testing.T) {
	dir := t.TempDir()
	bitbake, served := filepath.Join(dir, "bitbake"), filepath.Join(dir, "served")
	write(t, filepath.Join(bitbake, "lib/bb/__init__.py"), "__version__ = \"2.8.0\"\n")
	write(t, filepath.Join(served, stateDir, "key"), "secret")
	write(t, filepath.Join(served, "sstate-cache/x"), "")
	self := descriptor{Slipway: descriptorKind, Bitbake: "2.8", Hashserv: portOf(t, listening(t)), PRServ: portOf(t, listening(t)), Folder: served, Key: "secret"}
	web := httptest.NewServer(newFilesHandler(&servedFolder{}, &servedFolder{}, self))
	defer web.Close()
	r := Request{Setting: Setting{Server: web.URL, From: "board.yml:3:8"}, Bitbake: bitbake}
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
	write(t, filepath.Join(served, stateDir, writerSocket), "")
	p, err = r.makePlan(t.Context(), progress.Start(t.Context(), "cache", 0, ""))
	if err != nil || p.Summary != "fills "+served || strings.Contains(strings.Join(p.Warnings, "\n"), "may not write") {
		t.Errorf("where it may write: %q, %q, %v; want the folder filled", p.Summary, p.Warnings, err)
	}
}
