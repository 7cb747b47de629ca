package update_test

import (
	"testing"

	"slipway/flash/boardssh/boardtest"
)

func TestSWUpdate(t *testing.T) {
	s := startSWUpdate(t)
	good := s.Make(t, boardtest.Bundle{Name: "good", Version: "2", Content: "system 2"})
	runSuite(t, board{
		Conn: s.Conn, Name: "SWUpdate", Good: good, New: "system 2",
		Refused: map[string]string{
			"another board's":       s.Make(t, boardtest.Bundle{Name: "other", Format: "9.9", Version: "2", Content: "crumbs"}),
			"another signer's":      s.Make(t, boardtest.Bundle{Name: "other-signer", Version: "2", Content: "system 3", Key: "other-signer"}),
			"damaged in the middle": damageFile(t, good),
		},
		Running: func() string { return s.Slot(s.Booted()) },
		Other:   func() string { return s.Slot(map[string]string{"A": "B", "B": "A"}[s.Booted()]) },
		Restart: func() { s.Restart(t) },
	})
	if s.Verified() != "1" {
		t.Errorf("slot %q was marked good; want 1", s.Verified())
	}
}
