package report

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"slipway/layers/plaintext"

	"github.com/google/go-cmp/cmp"
)

// forging are names and words that would be results of their own if they were printed as they are.
func forging() Report {
	const tap, tag = "x\nok 99 - forged # SKIP\n  ...\nBail out! now", "<testcase name=forged>"
	return Report{
		Board: "virt", Target: tap, Identity: Identity{Hostname: tag + "\nok 98", Serial: tap},
		Stages: []Stage{{Name: tag, Status: Failed, Saw: tag + tap, Next: tap}},
		Suites: []SuiteResult{{Name: tap + tag, Checks: []CheckResult{
			{Name: tap, Kind: "file", Status: Passed, Saw: tap},
			{Name: `ends in \`, Status: Skipped, Saw: `# TODO \`},
			{Name: "5 # SKIP me > RESULT=pass", Status: Failed, Saw: tag + "\n" + `"quoted" \n` + "\ttab", Want: tap, Next: "---"},
			{Name: "x.y", Status: Failed, Metrics: []Metric{{Name: tag, Unit: "a b>", Value: 2, Max: new(1.5)}, {Name: tap, Unit: "%", Value: -0.25}}},
			{Name: "x y", Status: Passed, Metrics: []Metric{{Name: "rate", Unit: "MiB/s", Value: 1e21}}},
			{Name: "x/y", Status: Passed},
			{Name: "", Status: Passed},
		}}},
	}
}

var tapPoint = plaintext.Regexp(`(?m)^(not )?ok (\d+) - `)

// wantPoints wants of TAP one point for each stage and check, in their order.
func wantPoints(t *testing.T, all []Report) {
	t.Helper()
	data, err := renderTAP(tidyAll(all))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, r := range all {
		for _, p := range r.listPoints() {
			want = append(want, fmt.Sprintf("%v %d", p.Status == Failed, len(want)+1))
		}
	}
	var got []string
	for _, m := range tapPoint().FindAllStringSubmatch(string(data), -1) {
		got = append(got, fmt.Sprintf("%v %s", m[1] != "", m[2]))
	}
	if diff := cmp.Diff(want, got); diff != "" || regexp.MustCompile(`(?m)^Bail`).Match(data) {
		t.Errorf("points (-want +got):\n%s\nin\n%s", diff, data)
	}
}

func TestBoardsForgeNoResults(t *testing.T) {
	for _, all := range [][]Report{{forging()}, {forging(), failing(), forging()}} {
		wantPoints(t, all)
	}
}

// Perl's own reader of TAP takes ours, also that of a board that tries to forge.
func TestTAPByProve(t *testing.T) {
	prove, err := exec.LookPath("prove")
	if err != nil {
		t.Skip("prove is missing (Debian package perl)")
	}
	for _, tt := range []struct {
		name   string
		all    []Report
		want   string
		failed bool
	}{
		{"passing", []Report{passing()}, "Files=1, Tests=18,", false},
		{"failing", []Report{failing()}, "Failed tests:  6, 10, 17", true},
		{"stopped", []Report{stopped()}, "Failed test:  4", true},
		{"several", []Report{passing(), failing()}, "Failed tests:  24, 28, 35", true},
		{"forging", []Report{forging()}, "Failed tests:  1, 4-5", true},
		{"nothing", []Report{{Board: "x"}}, "Failed test:  1", true},
	} {
		file := filepath.Join(t.TempDir(), "report.tap")
		var b bytes.Buffer
		if err := WriteAs(&b, formNamed(t, "tap"), tt.all...); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), prove, "-v", "-e", "cat", file).CombinedOutput()
		if failed := err != nil; failed != tt.failed || !strings.Contains(string(out), tt.want) || strings.Contains(string(out), "Parse errors") {
			t.Errorf("%s: prove = %v; want failed %v, %q, and no errors of reading\n%s", tt.name, err, tt.failed, tt.want, out)
		}
	}
}

func TestFormOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		json bool
		want string
	}{{"", false, ""}, {"", true, "json"}, {"tap", true, "tap"}, {"junit", false, "junit"}} {
		f, err := FormOf(tt.name, tt.json)
		if err != nil || (f == nil) != (tt.want == "") || f != nil && f.name != tt.want {
			t.Errorf("FormOf(%q, %v) = %v, %v; want %q", tt.name, tt.json, f, err, tt.want)
		}
	}
	if _, err := FormOf("pdf", false); err == nil || !strings.Contains(err.Error(), "have json, junit, html, tap") {
		t.Errorf("FormOf(pdf) = %v; want what there is", err)
	}
}
