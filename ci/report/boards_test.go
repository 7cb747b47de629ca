package report

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/layers/htmlstyle/pagetest"
)

// One cause has one group: numbers, addresses and the names of boards differ from board
// to board, the statuses of programs from cause to cause.
func TestGroupCauses(t *testing.T) {
	saw := func(board, text string) BoardFailure {
		return BoardFailure{board, "", Failure{Name: "check", Saw: text}}
	}
	for _, tt := range []struct {
		name string
		all  []BoardFailure
		want []int // boards of each group
	}{
		{"addresses", []BoardFailure{saw("a", "dial 192.0.2.1:22: refused"), saw("b", "dial [2001:db8::1]:2222: refused")}, []int{2}},
		{"own names", []BoardFailure{saw("lab-a", "reach root@lab-a: refused"), saw("lab-b", "reach root@lab-b: refused")}, []int{2}},
		{"names inside words", []BoardFailure{saw("c", "1 of 2 canaries failed"), saw("a", "1 of 2 canaries failed")}, []int{2}},
		{"values", []BoardFailure{saw("a", "hottest: 98.5 °C (cpu)"), saw("b", "hottest: 101 °C (cpu)")}, []int{2}},
		{"fingerprints", []BoardFailure{saw("a", "shows SHA256:3a/Bc+d"), saw("b", "shows SHA256:Zz+y/9")}, []int{2}},
		{"statuses", []BoardFailure{saw("a", "exit status 1"), saw("b", "exit status 127"), saw("c", "exit status 127")}, []int{2, 1}},
		{"words", []BoardFailure{saw("a", "inactive"), saw("b", "failed")}, []int{1, 1}},
		{"checks", []BoardFailure{saw("a", "x"), {"a", "", Failure{Name: "other", Saw: "x"}}}, []int{1, 1}},
		{"none", nil, nil},
	} {
		var got []int
		for _, c := range GroupCauses(tt.all) {
			got = append(got, len(c.Boards))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: GroupCauses has groups of %v boards; want %v", tt.name, got, tt.want)
		}
	}
}

// A link never leads out of the page's folder or to another scheme.
func TestRelativeLink(t *testing.T) {
	for file, want := range map[string]string{
		"a/report.html": "a/report.html", "a b#c?.html": "a%20b%23c%3F.html", "javascript:x": "./javascript:x", "../x": "", "/etc/passwd": "", "": "",
	} {
		if got := RelativeLink(file); got != want {
			t.Errorf("RelativeLink(%q) = %q; want %q", file, got, want)
		}
	}
}

// columnNames returns the names of a page's columns, with a line before those that are folded.
func columnNames(p BoardsPage) string {
	var all []string
	for i, c := range p.Columns {
		if i == p.FirstFolded()-2 {
			all = append(all, "|")
		}
		all = append(all, c.Name)
	}
	return strings.Join(all, " ")
}

// Columns that failed come first, those of most boards before others. A column's name has
// its suite only where another one has the same.
func TestColumns(t *testing.T) {
	with := func(states ...Status) Report {
		r := Report{Board: "b"}
		for i, name := range []string{"base", "net"} {
			r.Suites = append(r.Suites, SuiteResult{Name: name, Checks: []CheckResult{
				{Name: "up", Status: states[2*i], Saw: name}, {Name: "at-" + name, Status: states[2*i+1]},
			}})
		}
		return r
	}
	for _, tt := range []struct {
		name string
		all  []Report
		want string
	}{
		{"none failed", []Report{with(Passed, Skipped, Passed, Passed)}, "| base: up at-base net: up at-net"},
		{"one failed", []Report{with(Passed, Passed, Passed, Failed), with(Passed, Passed, Passed, Passed)}, "at-net | base: up at-base net: up"},
		{"most boards first", []Report{with(Failed, Passed, Failed, Passed), with(Passed, Passed, Failed, Skipped)}, "net: up base: up | at-base at-net"},
		{"all failed", []Report{with(Failed, Failed, Failed, Failed)}, "base: up at-base net: up at-net"},
		{"no checks", []Report{{Board: "b"}}, ""},
		{"no reports", nil, ""},
	} {
		p := newOverview(tt.all, nil)
		if got := columnNames(p); got != tt.want {
			t.Errorf("%s: the columns are %q; want %q", tt.name, got, tt.want)
		}
		for _, row := range p.Rows {
			for i, c := range row.Cells {
				if suite, _, _ := strings.Cut(p.Columns[i].Title, ": "); strings.HasSuffix(p.Columns[i].Title, ": up") && c.Text != suite {
					t.Errorf("%s: the column %s has the cell %q", tt.name, p.Columns[i].Title, c.Text)
				}
			}
		}
		html, err := p.Render()
		if folds := strings.Contains(string(html), "> All columns ("); err != nil || folds != strings.Contains(tt.want, "|") {
			t.Errorf("%s: Render = %v, a switch for all columns: %t", tt.name, err, folds)
		}
		pagetest.Check(t, string(html))
	}
}

// The page has the column of a fact if any board has it, with the value in that board's row.
func TestFactColumns(t *testing.T) {
	p := newOverview([]Report{{Board: "a"}, {Board: "b", Identity: Identity{Image: "<lab> 7", BootID: "5f"}}}, nil) // no column for a boot's number
	if got := p.FactColumns(); !slices.Equal(got, []string{"Image"}) {
		t.Errorf("FactColumns = %v; want those of factColumns that a board has", got)
	}
	if got := p.Rows[1].Facts; len(got) != 1 {
		t.Errorf("a row has the facts %v; want those alone that have a column", got)
	}
	html, err := p.Render()
	if err != nil {
		t.Fatal(err)
	}
	pagetest.Check(t, string(html))
	for _, want := range []string{`<th scope="col" class="fact">Image</th>`, `<td class="fact"></td>`, `<td class="fact">&lt;lab&gt; 7</td>`} {
		if strings.Count(string(html), want) != 1 {
			t.Errorf("the page has %d times %s; want it once", strings.Count(string(html), want), want)
		}
	}
}

// Every name of factColumns is a name of Facts, or the column would never be seen.
func TestFactColumnsAreFacts(t *testing.T) {
	all := Identity{"h", "m", "s", "m", "b", "o", "i", "l", "b", "f", "k", "s", 60, "i"}.Facts()
	for _, name := range factColumns {
		if !slices.ContainsFunc(all, func(f fact) bool { return f.Name == name }) {
			t.Errorf("factColumns has %q, which Facts does not return", name)
		}
	}
}

// Two reports of one board have different names, with their times, in each form.
func TestReportsOfOneBoard(t *testing.T) {
	a, b, other := failing(), failing(), failing()
	a.Target, b.Target, other.Target = "lab-a", "lab-a", "lab-b"
	b.Started = a.Started.Add(26 * time.Hour)
	for _, r := range []Report{a, b, other} {
		r.Suites[0].Checks[3].Saw = "reach root@" + r.Target + ": refused"
	}
	all, dir := []Report{a, b, other}, t.TempDir()
	if err := WriteAll(dir, all); err != nil {
		t.Fatal(err)
	}
	page := readPage(t, filepath.Join(dir, ReportHTML))
	for _, want := range []string{
		"virt, 2026-03-04 05:06:07 UTC to 2026-03-05 07:06:07 UTC",
		`sshd is running: 3 boards`,
		`<a href="boards/lab-a-2026-03-04-05-06-07-UTC.html">lab-a, 2026-03-04 05:06:07 UTC</a>`,
		`<a href="boards/lab-a-2026-03-05-07-06-07-UTC.html">lab-a, 2026-03-05 07:06:07 UTC</a>`,
		`<a href="boards/lab-b.html">lab-b</a>`,
		"<small>2026-03-05 07:06:07 UTC</small>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, link := range []string{"boards/lab-a-2026-03-05-07-06-07-UTC.html", "boards/lab-b.html"} {
		if _, err := os.Stat(filepath.Join(dir, link)); err != nil {
			t.Error(err)
		}
	}
	for form, want := range map[string]string{
		"tap": " - lab-a, 2026-03-05 07:06:07 UTC: base: sshd", "junit": `name="lab-a, 2026-03-05 07:06:07 UTC base"`,
	} {
		var text bytes.Buffer
		if err := WriteAs(&text, formNamed(t, form), all...); err != nil || strings.Count(text.String(), want) != 1 {
			t.Errorf("%s has %q %d times, %v; want it once", form, want, strings.Count(text.String(), want), err)
		}
	}
}

// Reports of a board with the longest name have pages of their own.
func TestReportsOfLongName(t *testing.T) {
	a, b, dir := failing(), failing(), t.TempDir()
	a.Target, b.Target = strings.Repeat("x", 9999), strings.Repeat("x", 9999)
	b.Started = a.Started.Add(time.Hour)
	if err := WriteAll(dir, []Report{a, b, b}); err != nil {
		t.Fatal(err)
	}
	if pages, err := filepath.Glob(filepath.Join(dir, "boards", "x*-2026-03-04-0[56]-06-07-UTC*.html")); err != nil || len(pages) != 3 {
		t.Errorf("the pages are %q, %v; want 3", pages, err)
	}
}

// Whatever boards, suites and checks are called, the page has no script but its own.
func TestHostileOverview(t *testing.T) {
	all := []Report{failing(), failing()}
	for i := range all {
		r := &all[i]
		r.Board, r.Target = hostileText, hostileText+"</style></script>"
		for j := range r.Suites {
			r.Suites[j].Name = "</style>" + hostileText
			for k := range r.Suites[j].Checks {
				r.Suites[j].Checks[k].Name, r.Suites[j].Checks[k].Saw = hostileText+"</script>", hostileText
			}
		}
	}
	dir := t.TempDir()
	if err := WriteAll(dir, all); err != nil {
		t.Fatal(err)
	}
	page := readPage(t, filepath.Join(dir, ReportHTML))
	if strings.Count(page, "<script") != 1 || strings.Count(page, "</script") != 1 || strings.Count(page, "</style") != 1 || strings.ContainsAny(page, "\x1b\x07\u202e") {
		t.Error("a name of a board or check came through")
	}
}
