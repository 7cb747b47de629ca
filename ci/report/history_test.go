package report

import (
	"path/filepath"
	"testing"
	"time"
)

// The folder of a board keeps the last runs, and not more.
func TestEarlierReports(t *testing.T) {
	dir := t.TempDir()
	r := passing()
	for range maxPast + 2 {
		r.Started = r.Started.Add(time.Minute)
		if err := r.saveCopy(dir); err != nil {
			t.Fatal(err)
		}
	}
	names, err := pastNames(filepath.Join(dir, PastFolder))
	if err != nil || len(names) != maxPast || filepath.Base(names[maxPast-1]) != r.Started.UTC().Format(pastPattern)+".json" {
		t.Errorf("%d earlier reports %q, %v; want the last %d", len(names), names, err, maxPast)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0 W", 1: "1 W", 1.23456: "1.2346 W", 94e9: "94000000000 W", 1e-6: "1e-06 W", -3.5: "-3.5 W", 1e18: "1e+18 W"} {
		if got := FormatNumber(v, "W"); got != want {
			t.Errorf("number(%v) = %q; want %q", v, got, want)
		}
	}
}
