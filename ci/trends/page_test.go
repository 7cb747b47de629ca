package trends

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"slipway/layers/git"
	"slipway/layers/htmlstyle"
	"slipway/layers/htmlstyle/pagetest"
	"slipway/layers/plaintext"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fewRuns are 14 runs of a board: it builds slower from the tenth on, and one check broke.
// Their texts are hostile.
func fewRuns() Runs {
	var all []Run
	for i := range 14 {
		took, red := 100+float64(i%3), i >= 10
		if i >= 9 {
			took = 130 + float64(i%2)
		}
		all = append(all, Run{
			Board: "<script>alert(1)</script>", Device: `"serial"`, Name: fmt.Sprintf("runs/%02d&lt;", i), Time: time.Date(2026, 3, 1+i, 5, 6, 7, 0, time.UTC),
			Source: git.FolderCommit{URL: "git@gitlab.example.com:team/boards.git", Commit: strings.Repeat(fmt.Sprintf("%02x", i), 20), Branch: "main", Edited: i == 9},
			Key:    fmt.Sprint("key", i/2), built: time.Date(2026, 3, 1+i, 4, 0, 0, 0, time.UTC),
			build:  []value{{metric{"build time", "", "s"}, took, 1}},
			device: []value{{metric{"x]]>", "<b>: &", "%"}, 50, 0}},
			checks: []outcome{{"sshd", "base", red}, {"link", "<i>", i%4 == 1}},
		})
	}
	return Runs{all, []string{"<img src=x>: no report"}}
}

func pageOf(t *testing.T, found Trends) string {
	t.Helper()
	page, err := found.Page()
	if err != nil {
		t.Fatal(err)
	}
	pagetest.Check(t, string(page))
	return string(page)
}

func TestPage(t *testing.T) {
	found, err := Of(fewRuns(), Options{Last: 100})
	if err != nil {
		t.Fatal(err)
	}
	page := pageOf(t, found)
	for _, bad := range []string{"<script", "<img", "<b>: ", "<i>", "NaN", "Inf", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	golden(t, "testdata/page.html", strings.Replace(page, string(htmlstyle.CSS), "", 1))
	var text bytes.Buffer
	if err := found.Write(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/text.txt", text.String())
	text.Reset()
	if err := plaintext.WriteJSON(&text, found); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/trends.json", text.String())
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if diff := cmp.Diff(string(want), got); err != nil || diff != "" {
		t.Errorf("%s: %v\n%s", file, err, diff)
	}
}

// A page of many series and checks stays one that a browser shows, and says what it lacks.
func TestLargePage(t *testing.T) {
	var runs Runs
	for i := range 80 {
		r := Run{Board: "b", Name: fmt.Sprint("run", i), Time: time.Unix(int64(i), 0)}
		for j := range 400 {
			v := 100.0
			if i >= 30 && j >= 320 {
				v = 200
			}
			r.device = append(r.device, value{metric{fmt.Sprint("m", j), "s: c", ""}, v, 1})
			r.checks = append(r.checks, outcome{fmt.Sprint("c", j), "s", i%2 == 1})
		}
		runs.All = append(runs.All, r)
	}
	found, err := Of(runs, Options{Last: 100})
	if err != nil {
		t.Fatal(err)
	}
	page := pageOf(t, found)
	if len(page) > 8<<20 {
		t.Errorf("the page has %d bytes", len(page))
	}
	for _, want := range []string{"20 more changes in", "300 more unsteady checks in", "100 more series in", "14 earlier ones are in", "m399", ">80 regressions<"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestAxis(t *testing.T) {
	for _, tt := range []struct{ least, most, base, step float64 }{
		{0, 10, 0, 5}, {95, 104, 95, 5}, {-1, 1, -1, 1}, {100, 100, 95, 5}, {0, 0, 0, 1}, {62, 78, 60, 10}, {-5e-9, 0, -5e-9, 2.5e-9},
	} {
		base, step := axis(tt.least, tt.most)
		near := func(a, b float64) bool { return a-b < 1e-9*max(1e-9, step) && b-a < 1e-9*max(1e-9, step) || a == b }
		if base > tt.least || base+2*step < tt.most || !near(base, tt.base) || !near(step, tt.step) {
			t.Errorf("axis(%v, %v) = %v, %v; want %v, %v", tt.least, tt.most, base, step, tt.base, tt.step)
		}
	}
}
