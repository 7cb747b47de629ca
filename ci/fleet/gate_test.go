package fleet

import "testing"

func TestGateStops(t *testing.T) {
	for _, tt := range []struct {
		name                    string
		gate                    Gate
		boards, failing, canary int
		want                    string
	}{
		{"no limit", Gate{}, 9, 9, 0, ""},
		{"below the limit", Gate{StopAfter: 3}, 9, 2, 0, ""},
		{"at the limit", Gate{StopAfter: 3}, 9, 3, 0, "3 boards failed (--stop-after=3)"},
		{"canaries passed", Gate{Canary: 2}, 9, 0, 0, ""},
		{"a canary failed", Gate{Canary: 2, StopAfter: 1}, 9, 1, 1, "1 of 2 canaries failed"},
		{"fewer boards than canaries", Gate{Canary: 20}, 9, 1, 1, "1 of 9 canaries failed"},
	} {
		if got := tt.gate.ForBoards(tt.boards).Stop(tt.failing, tt.canary); got != tt.want {
			t.Errorf("%s: Stop = %q; want %q", tt.name, got, tt.want)
		}
	}
}

func TestGateRetries(t *testing.T) {
	g := Gate{Retries: 1}
	for kind, want := range map[Kind]bool{Refused: true, Login: false, Passed: false, NotBegun: false, "new": false} {
		if got := g.MayRetry(kind, 1); got != want {
			t.Errorf("MayRetry(%q, 1) = %v; want %v", kind, got, want)
		}
	}
	if g.MayRetry(Refused, 2) {
		t.Error("a second retry; want one")
	}
}
