package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/layers/htmlstyle/pagetest"
)

func TestReadFleetFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fleet.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadReports(file); err == nil || !strings.HasSuffix(err.Error(), "\nnext: report "+filepath.Dir(file)) {
		t.Errorf("ReadReports = %v; want the folder", err)
	}
}

func TestParse(t *testing.T) {
	for _, tt := range []struct{ name, give, want string }{
		{"no JSON", "<html>", "not a report.json"},
		{"a list", "[]", "not a report.json: the whole: unexpected array"},
		{"another program's", `{"board": "x"}`, "it has no version"},
		{"a later one", `{"version": 2, "board": "x"}`, "run it with the one that wrote it"},
		{"no board", `{"version": 1}`, "want version 1 and a board's name"},
		{"a later one among others", `{"version": 1, "reports": [{"version": 2, "board": "x"}]}`, "report 1: version 2"},
		{"none", `{"version": 1, "reports": []}`, "0 reports"},
		{"a text for a number", `{"version": 1, "board": "x", "elapsedMs": "1"}`, "not a report.json"},
		{"an unknown status", `{"version": 1, "board": "x", "stages": [{"name": "a", "status": "\u001b[31mfine"}]}`, `"a" ended as "fine"`},
		{"no status", `{"version": 1, "board": "x", "suites": [{"checks": [{"name": "a"}]}]}`, `ended as ""`},
		{"a proof that nobody gave", `{"version": 1, "board": "x", "suites": [{"checks": [{"name": "a", "status": "passed", "proves": "everything"}]}]}`, `"a" proves "everything"`},
		{"a time before its start", `{"version": 1, "board": "x", "elapsedMs": -1}`, "a time of -1 ms"},
		{"an endless check", `{"version": 1, "board": "x", "suites": [{"checks": [{"status": "passed", "startMs": 9223372036854775807}]}]}`, "a time of"},
		{"many suites", `{"version": 1, "board": "x", "suites": [` + strings.Repeat("{},", 500) + `{}]}`, "501 stages, suites or logs"},
		{"many checks", `{"version": 1, "board": "x", "suites": [{"checks": [` + strings.Repeat(`{},`, MaxChecks) + `{}]}]}`, "2001 checks"},
		{"deep", `{"version": 1, "board": ` + strings.Repeat("[", 20000), "not a report.json"},
	} {
		if all, err := Parse([]byte(tt.give)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Parse = %v, %v; want %q", tt.name, all, err, tt.want)
		}
	}
	if _, err := Parse(make([]byte, maxReportBytes+1)); err == nil || !strings.Contains(err.Error(), "a report of 268435457 bytes") {
		t.Errorf("Parse = %v; want the limit of bytes", err)
	}
}

// What is read is what was written.
func TestReadReports(t *testing.T) {
	for name, all := range map[string][]Report{"one": {failing()}, "several": {passing(), failing(), stopped()}} {
		dir := t.TempDir()
		if err := WriteAll(dir, all); err != nil {
			t.Fatal(err)
		}
		got, err := ReadReports(filepath.Join(dir, ReportJSON))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tidyAll(all), got); diff != "" {
			t.Errorf("%s (-wrote +read):\n%s", name, diff)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, report := range sampleReports {
		data, err := json.Marshal(report().Tidy())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"version":1,"reports":[{"version":1,"board":"a","suites":[{"checks":[{"status":"failed","metrics":[{"name":"m","value":1e308,"max":-1e308}]}]}]},{"version":1,"board":"b"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := Parse(data)
		if err != nil {
			return
		}
		for _, form := range forms {
			if _, err := form.render(all); err != nil {
				t.Fatalf("%s: %v", form.name, err)
			}
		}
	})
}

// fleet is three boards of one kind.
func fleet() []Report {
	a, b, c := passing(), failing(), stopped()
	a.Target, b.Target, c.Target = "root@192.0.2.1", "../<b>", "rack1-c"
	b.Reason, c.Reason = "check", "unreachable"
	return []Report{a, b, c}
}

func TestWriteAll(t *testing.T) {
	dir := t.TempDir()
	if err := WriteAll(dir, fleet()); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{ReportHTML, ReportJUnit} {
		got, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if file == ReportHTML {
			pagetest.Check(t, string(got))
		}
		golden(t, filepath.Join("testdata", "report", "fleet", file), got)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range pages {
		got = append(got, strings.TrimPrefix(p, dir+"/"))
	}
	if diff := cmp.Diff([]string{"boards/b.html", "boards/rack1-c.html", "boards/root-192.0.2.1.html"}, got); diff != "" {
		t.Error(diff)
	}
}

// A page shows the columns that failed, even where it cannot show all.
func TestOverviewOfManyChecks(t *testing.T) {
	a, b := passing(), failing()
	for _, r := range []*Report{&a, &b} {
		many := SuiteResult{Name: "many"}
		for i := range maxColumns {
			many.Checks = append(many.Checks, CheckResult{Name: strings.Repeat("x", i), Status: Skipped})
		}
		r.Suites = append([]SuiteResult{many}, r.Suites...)
	}
	v := newOverview([]Report{a, stopped(), b}, nil)
	html, err := v.Render()
	if all := fmt.Sprintf("All columns (60 of %d)", len(v.Columns)); err != nil || len(v.Columns) != maxColumns+18 || !strings.Contains(string(html), all) {
		t.Errorf("Render = %v; want %q of %d columns", err, all, len(v.Columns))
	}
	var got []string
	for _, row := range v.Rows {
		line := row.Result
		for _, c := range row.Cells[:5] {
			line += " " + c.Sign()
		}
		got = append(got, fmt.Sprint(len(row.Cells), " ", line))
	}
	want := []string{"60 stage boot failed ✗ –   =", "60 2 of 72 checks failed ✓ ✗ ✗ ✗ =", "60 11 of 72 checks passed, 61 skipped ✓ ✓ ✓ ✓ ="}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConvert(t *testing.T) {
	dir := t.TempDir()
	if err := passing().Write(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := WriteAll(filepath.Join(dir, "b"), fleet()); err != nil {
		t.Fatal(err)
	}
	files := []string{filepath.Join(dir, "a", ReportJSON), filepath.Join(dir, "b", ReportJSON)}
	var out bytes.Buffer
	if err := Convert(&out, []string{filepath.Join(dir, "a"), files[1]}, nil, ""); err != nil || strings.Count(out.String(), "  checks") != 1+len(fleet()) {
		t.Errorf("Convert of a folder and a file = %v; want their summaries\n%s", err, out.String())
	}
	out.Reset()
	if err := Convert(&out, []string{dir}, nil, ""); err != nil || strings.Count(out.String(), "  checks") != 1+len(fleet()) {
		t.Errorf("Convert of a folder of folders = %v; want their summaries\n%s", err, out.String())
	}
	out.Reset()
	if err := os.WriteFile(filepath.Join(dir, "fleet.json"), []byte(`{"results": [{"host": "a", "report": "a/report.html"}, {"host": "c"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Convert(&out, []string{dir}, nil, ""); err != nil || strings.Count(out.String(), "  checks") != 1 {
		t.Errorf("Convert of a fleet's folder = %v; want the board of the last run alone\n%s", err, out.String())
	}
	if err := Convert(&out, []string{t.TempDir()}, nil, ""); err == nil || !strings.Contains(err.Error(), ReportJSON) {
		t.Errorf("Convert of an empty folder = %v; want an error that names %s", err, ReportJSON)
	}
	out.Reset()
	if err := Convert(&out, files, formNamed(t, "tap"), ""); err != nil || strings.Count(out.String(), "\n1..") != 1 || !strings.Contains(out.String(), "\n1..60\n") {
		t.Errorf("Convert = %v, and printed\n%s\nwant one list of 60", err, out.String())
	}
	to := filepath.Join(dir, "all")
	if err := Convert(&out, files, nil, to); err != nil {
		t.Fatal(err)
	}
	if all, err := ReadReports(filepath.Join(to, ReportJSON)); err != nil || len(all) != 4 {
		t.Errorf("%d reports in %s, %v; want 4", len(all), to, err)
	}
	if err := Convert(&out, []string{filepath.Join(dir, "none.json")}, nil, to); err == nil {
		t.Error("Convert of no file went well")
	}
	out.Reset()
	both := filepath.Join(dir, "both")
	if err := Convert(&out, files, formNamed(t, "json"), both); err != nil {
		t.Fatal(err)
	}
	if all, err := ReadReports(filepath.Join(both, ReportJSON)); err != nil || len(all) != 4 || !json.Valid(out.Bytes()) {
		t.Errorf("%d reports in %s, %v, and printed\n%s\nwant 4, and JSON", len(all), both, err, out.String())
	}
}
