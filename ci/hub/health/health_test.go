package health

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/ci/doctor"
	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/job"
)

// look returns what is found, as lines of state and subject, and the whole text.
func look(t *testing.T, config string) (short, text string, err error) {
	t.Helper()
	var out bytes.Buffer
	err = Look(t.Context(), &out, "", config, true)
	var findings []doctor.Finding
	if e := json.Unmarshal(out.Bytes(), &findings); e != nil {
		t.Fatalf("Look: %v, %v", err, e)
	}
	for _, f := range findings {
		short += f.State + " " + f.What + "\n"
		if f.State != doctor.OK && (f.Why == "" || f.Fix == "") {
			t.Errorf("%+v has no reason or no fix", f)
		}
	}
	return short, out.String(), err
}

func TestLook(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv(access.Variable, "")
	short, text, err := look(t, "")
	if short != "stops identity\n" || !strings.Contains(text, "slipway join HOST:PORT TOKEN") || err == nil {
		t.Errorf("without a hub: %s\n%s, %v", short, text, err)
	}

	ctx, stop := context.WithCancel(t.Context())
	ended, ready := make(chan error, 1), make(chan [2]string, 1)
	dir := filepath.Join(os.Getenv("XDG_STATE_HOME"), "slipway", "hub")
	go func() {
		ended <- hub.Run(ctx, hub.Options{
			Dir: dir, Names: []string{"127.0.0.1"}, Listen: "127.0.0.1:0", Page: "127.0.0.1:0", Log: io.Discard, Admin: "alice",
			Ready: func(address, token string) { ready <- [2]string{address, token} },
		})
	}()
	var at [2]string
	select {
	case at = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	admin, err := access.Join(ctx, at[0], at[1])
	if err != nil {
		t.Fatal(err)
	}
	if short, text, err := look(t, ""); err != nil || short != "ok hub here\nok hub's disk\nok person\nok hub\nwarning stations\n" {
		t.Errorf("of a hub without stations: %s\n%s, %v", short, text, err)
	}
	client, err := admin.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	i, err := access.Ask[job.Invitation](ctx, client, job.VerbInvite, job.Person{V: job.Version, Name: "bench-1", Role: job.AStation})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := access.Join(ctx, at[0], i.Secret+at[1][strings.Index(at[1], "."):]); err != nil {
		t.Fatal(err)
	}
	if short, text, err := look(t, ""); err != nil || !strings.HasSuffix(short, "ok station\nok hub\nwarning station here\nok station's disk\nok station.yml\n") {
		t.Errorf("of a station that does not run: %s\n%s, %v", short, text, err)
	}
	config := filepath.Join(t.TempDir(), "station.yml")
	if err := os.WriteFile(config, []byte("parallel: 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if short, text, err := look(t, config); err == nil || !strings.Contains(short, "stops station.yml\n") || !strings.Contains(text, "station.yml:1") {
		t.Errorf("of a wrong station.yml: %s\n%s, %v", short, text, err)
	}

	stop()
	if err := <-ended; err != nil && ctx.Err() == nil {
		t.Error(err)
	}
	if short, text, err := look(t, ""); err == nil || !strings.HasPrefix(short, "warning hub here\nok hub's disk\nok person\nstops hub\n") {
		t.Errorf("of a hub that ended: %s\n%s, %v", short, text, err)
	}
}

// A hub whose records are in another NATS needs that.
func TestLookAtOtherNATS(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(state, "slipway", "hub")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	form := `{"v": 1, "name": "h1", "nats": ["` + l.Addr().String() + `"]}`
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "keys.json"), nil, 0o600), os.WriteFile(filepath.Join(dir, "hub.json"), []byte(form), 0o600)); err != nil {
		t.Fatal(err)
	}
	if short, text, _ := look(t, ""); !strings.Contains(short, "ok hub's NATS\n") {
		t.Errorf("of a NATS that listens: %s\n%s", short, text)
	}
	l.Close()
	if short, text, _ := look(t, ""); !strings.Contains(short, "warning hub's NATS\n") || !strings.Contains(text, "refuses all requests") {
		t.Errorf("of a NATS that does not: %s\n%s", short, text)
	}
}
