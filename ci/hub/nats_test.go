package hub

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/run"
)

const theirPassword = "pass-of-nats"

// startTheirs starts another NATS, and returns it and its URL. Port -1 is one that the kernel chooses.
func startTheirs(t *testing.T, dir string, port int, edit ...func(*server.Options)) (*server.Server, string) {
	t.Helper()
	o := &server.Options{
		Host: "127.0.0.1", Port: port, Username: "hub", Password: theirPassword, NoLog: true, NoSigs: true, MaxPayload: bus.MaxPayload,
		JetStream: true, StoreDir: dir, SyncAlways: true, JetStreamMaxStore: 256 << 20,
	}
	for _, change := range edit {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	for !s.ReadyForConnections(100*time.Millisecond) && t.Context().Err() == nil {
	}
	return s, "nats://hub:" + theirPassword + "@" + s.Addr().String()
}

// theirStreams returns the streams of another NATS.
func theirStreams(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// lockedBuffer is a log that a test reads while a hub writes.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// A hub keeps its records in another NATS. It refuses all while that is away, and goes on once it is
// back. No other hub works there meanwhile. Its password is nowhere.
func TestOtherNATS(t *testing.T) {
	store, dir, log := t.TempDir(), t.TempDir(), new(lockedBuffer)
	theirs, url := startTheirs(t, store, -1)
	admin, invite := newHub(t, func(o *Options) { o.NATS, o.Dir, o.Log = url, dir, log })
	station := invite(job.AStation, "bench-1")
	announce(t, station, "i1")
	j := wish
	j.ID, j.StartWithinMS = job.NewID(), 3_600_000
	added := ask[job.Change](t, admin, job.VerbJobAdd, j)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := Run(ctx, Options{Dir: t.TempDir(), Names: []string{"h2"}, Listen: "127.0.0.1:0", Page: "127.0.0.1:0", NATS: url, Log: log, Admin: "ada", Ready: func(string, string) { cancel() }})
	if want := "the hub 127.0.0.1 works there, and one does at a time\nnext: slipway hub --nats"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a second hub: %v; want %q", err, want)
	}

	port := theirs.Addr().(*net.TCPAddr).Port
	theirs.Shutdown()
	theirs.WaitForShutdown()
	for err = nil; err == nil || !strings.Contains(err.Error(), "does not reach the NATS that keeps its records, and answers once it does"); {
		if _, err = access.Ask[nothing](t.Context(), admin, job.VerbJobStop, job.StopWish{ID: j.ID, How: job.Gently}); err == nil || !errors.Is(err, bus.ErrAway) {
			t.Fatalf("a change without the NATS: %v; want %v", err, bus.ErrAway)
		}
	}
	startTheirs(t, store, port)
	for err = bus.ErrAway; errors.Is(err, bus.ErrAway); _ = run.Sleep(t.Context(), 10*time.Millisecond) {
		_, err = access.Ask[nothing](t.Context(), admin, job.VerbJobStop, job.StopWish{ID: j.ID, How: job.Gently})
	}
	if now, waitErr := access.Ask[job.Change](t.Context(), admin, job.VerbJobWait, job.Wait{ID: j.ID}); errors.Join(err, waitErr) != nil || now.Revision <= added.Revision {
		t.Errorf("after the NATS came back: %v, %v, revision %d; want more than %d", err, waitErr, now.Revision, added.Revision)
	}
	checkReserved(t, theirStreams(t, url), 256<<20)
	checkSecret(t, dir, log.String())
}

// checkReserved checks that streams with a limit leave a tenth of the space to keys.
func checkReserved(t *testing.T, js jetstream.JetStream, space int64) {
	t.Helper()
	var sum int64
	all := js.ListStreams(t.Context())
	for s := range all.Info() {
		sum += max(s.Config.MaxBytes, 0)
	}
	if all.Err() != nil || sum > space/10*9 || sum < space/4 {
		t.Errorf("all streams reserve %d of %d bytes, %v; want at most nine tenths", sum, space, all.Err())
	}
}

func checkSecret(t *testing.T, dir, log string) {
	t.Helper()
	if strings.Contains(log, theirPassword) {
		t.Error("the log has the password")
	}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if bytes.Contains(data, []byte(theirPassword)) {
			t.Errorf("%s has the password", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A hub says why it does not work with another NATS, and what to do.
func TestOtherNATSIsRefused(t *testing.T) {
	_, good := startTheirs(t, t.TempDir(), -1)
	_, bare := startTheirs(t, t.TempDir(), -1, func(o *server.Options) { o.JetStream = false })
	_, taken := startTheirs(t, t.TempDir(), -1)
	if _, err := theirStreams(t, taken).CreateStream(t.Context(), jetstream.StreamConfig{Name: "LOGS", Subjects: []string{"log.>"}, MaxMsgs: 7, Retention: jetstream.WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	authority, err := OpenAuthority(t.TempDir(), []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	_, secure := startTheirs(t, t.TempDir(), -1, func(o *server.Options) { o.TLS, o.TLSConfig, o.TLSTimeout = true, authority.TLS(), 5 })
	alone := t.TempDir()
	if err := os.WriteFile(filepath.Join(alone, "hub.json"), []byte(`{"v": 1, "name": "h1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, small := startTheirs(t, t.TempDir(), -1, func(o *server.Options) { o.MaxPayload = 0 })
	creds := filepath.Join(t.TempDir(), "wrong.creds")
	if err := os.WriteFile(creds, []byte("a secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ url, creds, dir, want string }{
		"another password":  {strings.Replace(good, theirPassword, "x", 1), "", "", "Authorization Violation\nnext: "},
		"no creds file":     {good, creds + "x", "", creds + "x: no such file"},
		"no creds":          {good, creds, "", creds + ": nkeys: no nkey seed found"},
		"no JetStream":      {bare, "", "", "no JetStream for the hub's account\nnext: nats account info"},
		"another LOGS":      {taken, "", "", "the stream LOGS: it is there with other settings, duplicate_window: 1.2e+11 instead of 3.6e+12\nnext: nats stream info LOGS"},
		"unknown authority": {secure, "", "", "certificate signed by unknown authority"},
		"1 MiB":             {small, "", "", "takes messages of 1.0 MiB, and a report has up to 8.0 MiB\nnext: "},
		"no URL":            {"nats://hub:" + theirPassword + "@h ost", "", "", "URL 1 is none of NATS\nnext: "},
		"of a hub alone":    {good, "", alone, "has records of its own, which another NATS would not have\nnext: slipway hub --name=h1 --state=NEW --nats=URL  # a new hub"},
	} {
		dir := c.dir
		if dir == "" {
			dir = t.TempDir()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := Run(ctx, Options{Dir: dir, Names: []string{"h1"}, Listen: "127.0.0.1:0", Page: "127.0.0.1:0", NATS: c.url, Creds: c.creds, Log: testLog{t}, Admin: "ada", Ready: func(string, string) { cancel() }})
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), theirPassword) {
			t.Errorf("%s: %v; want %q, and no password", name, err, c.want)
		}
	}
}

// Artifacts, logs and the rest take their own share of the disk. Then jobs can still be added.
func TestFullDiskTakesJobs(t *testing.T) {
	const space = 32 << 20
	admin, invite, h := newHubAnd(t, func(o *Options) { o.Space = space })
	station := invite(job.AStation, "bench-1")
	announce(t, station, "i1")
	for _, subject := range []string{"blob.x.0", "log.x", "report.x", "card.x", "audit.x"} {
		for n := 0; n < space+space/8; n += 512 << 10 {
			_, _ = h.js.Publish(t.Context(), subject, make([]byte, 512<<10)) // artifacts refuse it
		}
	}
	if _, err := h.js.Publish(t.Context(), "blob.x.1", make([]byte, 1<<20)); err == nil {
		t.Error("artifacts take more than their share")
	}
	ask[job.Change](t, admin, job.VerbJobAdd, wish)
	checkReserved(t, h.js, space)
}

// A hub finds its streams again. Another one can follow it, and has an invitation for its admin: the
// people of the first one have other keys.
func TestOtherNATSAgain(t *testing.T) {
	_, url := startTheirs(t, t.TempDir(), -1)
	first, second := t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for i, c := range []struct {
		dir   string
		token bool
	}{{first, true}, {first, false}, {second, true}} {
		ctx, cancel := context.WithCancel(t.Context())
		err := Run(ctx, Options{Dir: c.dir, Names: []string{"127.0.0.1"}, Listen: "127.0.0.1:0", Page: "127.0.0.1:0", NATS: url, Log: testLog{t}, Admin: "ada", Ready: func(address, token string) {
			if (token != "") != c.token {
				t.Errorf("start %d has the token %q; want one %v", i+1, token, c.token)
			}
			if token != "" {
				join(t, address, token).Close()
			}
			cancel()
		}})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("start %d: %v", i+1, err)
		}
	}
}
