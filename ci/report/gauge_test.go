package report

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestGauge(t *testing.T) {
	for _, tt := range []struct {
		name string
		give Metric
		want string // status, dot, band, last
	}{
		{"alone", Metric{Value: 3}, "passed 50 - -"},
		{"between limits", Metric{Value: 5, Min: new(0.0), Max: new(10.0)}, "passed 50 4+92 -"},
		{"at most", Metric{Value: 0, Max: new(10.0), Last: new(5.0)}, "passed 4 0+96 50"},
		{"too much", Metric{Value: 20, Max: new(10.0), Last: new(0.0)}, "failed 96 0+50 4"},
		{"too little", Metric{Value: 0, Min: new(10.0)}, "failed 4 96+4 -"},
		{"limits that contradict", Metric{Value: 0, Min: new(10.0), Max: new(-10.0)}, "failed 50 96+0 -"},
		{"the greatest numbers", Metric{Value: 0, Min: new(-math.MaxFloat64), Max: new(math.MaxFloat64)}, "passed 50 4+92 -"},
	} {
		g := tt.give.newGauge("check")
		got := fmt.Sprintf("%s %g", g.Status, g.X)
		for _, part := range []struct {
			there bool
			text  string
		}{{g.Band, fmt.Sprintf("%g+%g", g.BandX, g.BandW)}, {g.Was, fmt.Sprint(g.LastX)}} {
			if !part.there {
				part.text = "-"
			}
			got += " " + part.text
		}
		if got != tt.want {
			t.Errorf("%s: %s; want %s", tt.name, got, tt.want)
		}
	}
}

// A board's page has a line through what earlier runs measured, and the runs are not
// kept for ever.
func TestTrendOfEarlierRuns(t *testing.T) {
	dir := t.TempDir()
	r := passing()
	for i := range maxPast + 2 {
		r.Started = r.Started.Add(time.Minute)
		r.Suites[0].Checks[5].Metrics[0].Value = float64(40 + i%2)
		if err := r.saveCopy(dir); err != nil {
			t.Fatal(err)
		}
	}
	names, err := pastNames(filepath.Join(dir, PastFolder))
	if err != nil || len(names) != maxPast {
		t.Fatalf("%d earlier reports, %v; want %d", len(names), err, maxPast)
	}
	if err := os.WriteFile(names[0], []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, ReportHTML))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(page), fmt.Sprintf("the last %d runs", maxPast-1)); n != 2 {
		t.Errorf("%d lines through %d runs; want 2: one report cannot be read, and this one counts once", n, maxPast-1)
	}
	if !strings.Contains(string(page), `points="0.0,`) || strings.Contains(string(page), "ZgotmplZ") {
		t.Error("the page has no line")
	}
}
