package cache

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func contextWithLocal(r *http.Request, address string) context.Context {
	local, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		panic(err)
	}
	return context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(local))
}

// replay is a server that gives recorded answers to the lines that it knows, and
// hangs up on others, as bitbake's do.
func replay(t *testing.T, answers map[string]string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					answer, known := answers[lines.Text()]
					if !known {
						return
					}
					if _, err := io.WriteString(conn, answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

const (
	askPR        = `{"test-pr": {"version": "0", "pkgarch": "slipway-probe", "checksum": "0"}}`
	askPRHistory = `{"test-pr": {"version": "0", "pkgarch": "slipway-probe", "checksum": "0", "history": false}}`
	askExists    = `{"exists-stream": null}`
)

// What the servers of bitbake 2.0, 2.8 and 2.18 were recorded to answer.
func TestProbes(t *testing.T) {
	hash := func(more ...string) map[string]string { return said(greetHashserv, more...) }
	pr := func(more ...string) map[string]string { return said(greetPRServ, more...) }
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
			err := tt.check(t.Context(), replay(t, tt.answers), tt.version)
			if (tt.wantErr == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%v; want %q", err, tt.wantErr)
			}
		})
	}
}

// said is a dialogue after a greeting, which is not answered.
func said(greeting string, pairs ...string) map[string]string {
	m := map[string]string{greeting: "", "": ""}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1] + "\n"
	}
	return m
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
	if err := checkHashserv(ctx, address, Version{2, 8}); err == nil {
		t.Error("a probe went on after its context had ended")
	}
	l.Close()
	err = Cache{From: "board.yml:3:8", Sstate: "http://" + address, Hashserv: address}.check(t.Context(), Version{2, 8})
	for _, want := range []string{"board.yml:3:8: ", address, "nothing answers", "SLIPWAY_CACHE=off"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("check = %v; want %q", err, want)
		}
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
