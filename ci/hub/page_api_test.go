package hub

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/job"
)

// The engine has only hashes of a person's secret and cookie, and forgets them by itself.
func TestSessions(t *testing.T) {
	_, _, h := newHubAnd(t)
	i, err := h.open(t.Context(), "ada", nothing{})
	if err != nil {
		t.Fatal(err)
	}
	checkSession(t, h, "in."+hashOf(i.Secret), "1m0s")
	cookie, err := h.SignIn(t.Context(), i.Secret)
	if err != nil {
		t.Fatal(err)
	}
	checkSession(t, h, "on."+hashOf(cookie), "12h0m0s")
	if p, err := h.SignedIn(t.Context(), cookie); err != nil || p.Name != "ada" || p.Role != job.Admin {
		t.Errorf("SignedIn = %+v, %v; want ada, an admin", p, err)
	}
	for _, wrong := range []string{"", i.Secret, "x", strings.Repeat("x", 1<<16)} {
		if _, err := h.SignedIn(t.Context(), wrong); !errors.Is(err, ErrSignedOut) {
			t.Errorf("SignedIn(%.20q) = %v; want %v", wrong, err, ErrSignedOut)
		}
	}
	if h.IsStill(job.Person{Name: "ada", Key: "another", Role: job.Admin}) || h.IsStill(job.Person{Name: "eve"}) {
		t.Error("IsStill is true of a person with another key")
	}
}

// checkSession fails the test unless the engine has this one session, for as long as that.
func checkSession(t *testing.T, h *Hub, key, valid string) {
	t.Helper()
	keys, err := h.sessions.Keys(t.Context())
	if err != nil || len(keys) != 1 || keys[0] != key {
		t.Fatalf("the sessions are %v (%v); want %s", keys, err, key)
	}
	stream, err := h.js.Stream(t.Context(), "KV_sessions")
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetLastMsgForSubject(t.Context(), "$KV.sessions."+key)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Header.Get(jetstream.MsgTTLHeader); got != valid {
		t.Errorf("%s lives %q; want %s", key, got, valid)
	}
}
