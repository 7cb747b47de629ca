package report

import (
	"testing"
	"time"
)

// Nor do the lines of a report's page mix boards.
func TestPastIsOfOneBoard(t *testing.T) {
	dir := t.TempDir()
	began := time.Now().Add(-time.Hour)
	for i, r := range []Report{
		{Identity: Identity{Serial: "A1"}, Target: "x"}, {Identity: Identity{Serial: "A2"}, Target: "x"}, {Target: "x"}, {Target: "y"},
	} {
		r.Board, r.Started = "kind", began.Add(time.Duration(i)*time.Minute)
		if err := r.saveCopy(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []Report{{Identity: Identity{Serial: "A2"}, Target: "moved"}, {Target: "y"}} {
		r.Started = time.Now()
		past := r.earlierReports(dir)
		if len(past) != 1 || past[0].Identity.Serial != r.Identity.Serial {
			t.Errorf("the past of %+v is %+v; want the one of the same board", r, past)
		}
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0 W", 1: "1 W", 1.23456: "1.2346 W", 94e9: "94000000000 W", 1e-6: "1e-06 W", -3.5: "-3.5 W", 1e18: "1e+18 W"} {
		if got := FormatNumber(v, "W"); got != want {
			t.Errorf("number(%v) = %q; want %q", v, got, want)
		}
	}
}
