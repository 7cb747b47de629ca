package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/ci/report"
	"slipway/layers/host"
	"slipway/layers/htmlstyle/pagetest"
)

// groups returns the heads of a page's groups of failures, each with its boards.
func groups(page string) (all []string) {
	for _, section := range strings.Split(page, `<section class="failure`)[1:] {
		section, _, _ = strings.Cut(section, "</ul>")
		head := strings.TrimSpace(pagetest.Text("<body><h2>" + strings.Split(section, "<h2>")[1]))
		head, _, _ = strings.Cut(strings.Replace(head, " Such as ", " Saw ", 1), " Saw ")
		_, names, _ := strings.Cut(section, `<ul class="names">`)
		all = append(all, head+" | "+pagetest.Text("<body>"+names))
	}
	return all
}

// The page says first how many boards passed, and has one group for each cause with the
// names of its boards.
func TestPageOfFleet(t *testing.T) {
	p := simulate(t, 1, faultRefused, faultFails, faultRefused, faultFull, faultFails, faultRefused)
	if _, err := p.runPlan(t.Context()); err == nil {
		t.Fatal("the run passed")
	}
	data, err := os.ReadFile(filepath.Join(p.outputDir(), pageName))
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	pagetest.Check(t, page)
	if text := pagetest.Text(page); !strings.HasPrefix(text, "simulated, 6 of 13 boards did not pass 7 passed, 3 failed, 3 not reached deploy ") {
		t.Errorf("the page begins with %.120q; want the verdict", text)
	}
	want := []string{
		"cat /etc/slipway/fact-03: 2 boards | board-003 board-009",
		"disk full: 1 board | board-007",
		"connection refused: 3 boards | board-001 board-005 board-011",
	}
	if got := groups(page); !slices.Equal(got, want) {
		t.Errorf("the groups are %q; want %q", got, want)
	}
	for _, want := range []string{`<a href="board-003/report.html">board-003</a>`, `<a href="fleet.json">`, `<td class="cell failed" title=`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// Boards that were not begun are one group, with the reason.
func TestPageOfStoppedFleet(t *testing.T) {
	o := Outcome{Board: "virt", Work: "smoke", Started: time.Unix(1, 0), Stopped: "1 of 2 canaries failed", Results: []Result{
		{Host: "a", Kind: Silent, Saw: "no answer from 192.0.2.1", Tries: 1}, {Host: "b", Kind: NotBegun}, {Host: "c", Kind: NotBegun},
	}}
	html, err := o.Page(o.readReports(t.TempDir())).Render()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"no answer: 1 board | a", "not begun: 2 boards | b c"}
	if got := groups(string(html)); !slices.Equal(got, want) || !strings.Contains(string(html), "<dd>"+o.Stopped+"</dd>") {
		t.Errorf("the groups are %q; want %q, and why it stopped", got, want)
	}
}

// Write needs no folders of the boards: whoever calls it has the reports.
func TestWriteOutcome(t *testing.T) {
	dir := t.TempDir()
	o := Outcome{Board: "virt", Work: "smoke", Started: time.Unix(1, 0), Results: []Result{{Host: "a", Kind: Checks, Report: "a/report.html", Tries: 1}, {Host: "b", Kind: Lost, Tries: 1}}}
	reports := []report.Report{{Suites: []report.SuiteResult{{Name: "base", Checks: []report.CheckResult{{Name: "root", Status: report.Failed, Saw: "99 % used"}}}}}, {}}
	if err := o.Write(dir, reports); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{outcomeName: `"kind": "checks failed"`, pageName: "99 % used", junitName: `name="b"`} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q: %v\n%s", name, want, err, text)
		}
	}
}

// The next step for new keys is a line that can be typed.
func TestNextStepForNewKeys(t *testing.T) {
	o := Outcome{Board: "virt", Inventory: "lab/my hosts.yml", Results: []Result{{Host: "a", Kind: NewKey}}}
	if got, want := o.nextOf(NewKey), host.ProgramName()+" fleet pin virt 'lab/my hosts.yml'"; !strings.HasSuffix(got, ": "+want) {
		t.Errorf("nextOf = %q; want its end %q", got, want)
	}
}

// A board's words and an inventory's names reach the page as text. No link leaves its folder.
func TestPageOfHostileFleet(t *testing.T) {
	const hostile = `"><script>alert(1)</script>`
	dir := t.TempDir()
	r := report.Report{Board: hostile, Started: time.Unix(1, 0), Suites: []report.SuiteResult{{Name: hostile, Checks: []report.CheckResult{
		{Name: hostile, Kind: hostile, Status: report.Failed, Saw: hostile, Want: hostile, Next: hostile},
	}}}}
	if err := r.Write(filepath.Join(dir, "javascript:a#b")); err != nil {
		t.Fatal(err)
	}
	o := Outcome{Board: hostile, Work: hostile, Inventory: hostile, Stopped: hostile, Results: []Result{
		{Host: "javascript:a#b", Kind: Checks, Report: "javascript:a#b/report.html", Tries: 1},
		{Host: hostile, Address: hostile, Kind: Other, Saw: hostile, Report: "../../report.html", Version: hostile, System: hostile},
		{Host: "/etc", Kind: Passed, Saw: hostile, Report: "/etc/report.html"},
	}}
	html, err := o.Page(o.readReports(dir)).Render()
	if err != nil {
		t.Fatal(err)
	}
	pagetest.Check(t, string(html))
	if !strings.Contains(string(html), `href="./javascript:a%23b/report.html"`) || strings.Count(string(html), `href="`) != 2+2 {
		t.Errorf("want links to the one report and to 2 files in\n%s", pagetest.Text(string(html)))
	}
}

// However many boards fail however differently, a browser shows the page.
func TestPageOfManyBoards(t *testing.T) {
	o := Outcome{Board: "virt", Work: "smoke"}
	for i := range 2000 {
		r := Result{Host: fmt.Sprintf("board-%04d", i), Kind: Refused, Saw: fmt.Sprintf("dial tcp 192.0.2.%d:22: connection refused", i%250), Tries: 1}
		if i%2 == 0 {
			r.Kind, r.Saw = Other, strings.Repeat("x", i+1)
		}
		o.Results = append(o.Results, r)
	}
	html, err := o.Page(o.readReports(t.TempDir())).Render()
	if err != nil {
		t.Fatal(err)
	}
	if got := groups(string(html)); len(got) != 200 || len(html) > 2<<20 || !strings.Contains(string(html), "801 more causes") {
		t.Errorf("%d groups in %d bytes; want 200 in at most 2 MiB, and how many are left out", len(got), len(html))
	}
	if !strings.Contains(string(html), "<summary>Which boards</summary>") || !strings.Contains(string(html), "The words of 900 more ") {
		t.Error("want the names of 1000 boards folded, and how many say nothing")
	}
	all := groups(string(html))
	if !slices.ContainsFunc(all, func(g string) bool { return strings.HasPrefix(g, "connection refused: 1000 boards") }) {
		t.Errorf("the groups are %.300q; want the cause of 1000 boards among them", all)
	}
}
