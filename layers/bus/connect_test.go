package bus

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func TestRequest(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	all, err := h.Connect()
	if err != nil {
		t.Fatal(err)
	}
	a, _ := h.user(t, "operator", "alice b")
	nc := connect(t, a)
	var answer string
	_, err = all.QueueSubscribe("api.*.*.job.add", "hub", func(m *nats.Msg) {
		if !strings.HasPrefix(m.Reply, "_INBOX_alice=20b.") {
			t.Errorf("the answer goes to %s; want alice's own inbox", m.Reply)
		}
		_ = m.Respond([]byte(strings.ReplaceAll(answer, "IN", string(m.Data))))
	})
	if err != nil {
		t.Fatal(err)
	}
	flush(t, all)
	type form struct{ N int }
	for _, c := range []struct {
		answer, want string
		conflict     bool
	}{
		{answer: `IN`},
		{answer: `{"N":7,"error":"","later":1}`},
		{answer: `{"error":"board \u001b[31mx","next":"slipway\njob list"}`, want: "board [31mx\nnext: slipway job list"},
		{answer: `{"error":"the job changed","conflict":true}`, want: "the job changed", conflict: true},
		{answer: `{"N":"x"}`, want: "read the hub's answer: "},
		{answer: ``, want: "read the hub's answer: "},
	} {
		answer = c.answer
		var out form
		err := Request(withLimit(t), nc, "api.operator.alice=20b.job.add", form{7}, &out)
		if c.want == "" && (err != nil || out.N != 7) || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) || errors.Is(err, ErrConflict) != c.conflict {
			t.Errorf("Request answered by %s = %+v, %v; want %q, conflict %v", c.answer, out, err, c.want, c.conflict)
		}
	}
	if err := Request(withLimit(t), nc, "api.operator.alice=20b.job.stop", nil, nil); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("Request that no hub answers = %v; want %v", err, nats.ErrNoResponders)
	}
	answer = `{}`
	if err := Request(withLimit(t), nc, "api.operator.alice=20b.job.add", nil, nil); err != nil {
		t.Errorf("Request without a form of the answer = %v", err)
	}
}

func TestReconnectDelay(t *testing.T) {
	t.Parallel()
	for attempts, most := range map[int]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 3: 8 * time.Second, 6: 30 * time.Second, 1 << 40: 30 * time.Second} {
		seen := map[time.Duration]bool{}
		for range 100 {
			d := reconnectDelay(attempts)
			if seen[d] = true; d < most/2 || d >= most {
				t.Errorf("reconnectDelay(%d) = %v; want %v to %v", attempts, d, most/2, most)
			}
		}
		if len(seen) < 50 {
			t.Errorf("reconnectDelay(%d) gave %d times in 100 attempts; want them to differ", attempts, len(seen))
		}
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte(`{"error":"x","conflict":true,"next":"y"}`))
	f.Add([]byte(`{"error":"\u001b[31m\nnext: rm"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out struct{ Jobs []json.RawMessage }
		err := parseAnswer(data, &out)
		if err == nil && !json.Valid(data) {
			t.Errorf("parseAnswer(%q) = nil; want an error", data)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\x00\x1b\x07\r\x7f") {
			t.Errorf("parseAnswer(%q) = %q; want no controls of a terminal", data, err)
		}
	})
}

// A connection shows the newest JWT, not the first.
func TestRenewedJWT(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	a, _ := h.user(t, "viewer", "alice")
	good := a.JWT
	a.JWT = "of last year"
	refused(t, a, "whose JWT cannot be read")
	nc, err := Connect(t.Context(), a, func() string { return good })
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	flush(t, nc)
	if left := ValidFor(good); left <= 59*time.Minute || left > time.Hour || ValidFor(a.JWT) != 0 {
		t.Errorf("the JWTs are valid for %v and %v; want an hour and 0", left, ValidFor(a.JWT))
	}
}
