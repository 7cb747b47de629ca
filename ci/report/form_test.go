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

// forging are names and words that would be results of their own, were they printed as
// they are.
func forging() Report {
	const tap, lava = "x\nok 99 - forged # SKIP\n  ...\nBail out! now", "<LAVA_SIGNAL_TESTCASE TEST_CASE_ID=forged RESULT=pass>"
	return Report{
		Board: "virt", Target: tap, Identity: Identity{Hostname: lava + "\nok 98", Serial: tap},
		Stages: []Stage{{Name: lava, Status: Failed, Saw: lava + tap, Next: tap}},
		Suites: []SuiteResult{{Name: tap + lava, Checks: []CheckResult{
			{Name: tap, Kind: "file", Status: Passed, Saw: tap},
			{Name: `ends in \`, Status: Skipped, Saw: `# TODO \`},
			{Name: "5 # SKIP me > RESULT=pass", Status: Failed, Saw: lava + "\n" + `"quoted" \n` + "\ttab", Want: tap, Next: "---"},
			{Name: "x.y", Status: Failed, Metrics: []Metric{{Name: lava, Unit: "a b>", Value: 2, Max: new(1.5)}, {Name: tap, Unit: "%", Value: -0.25}}},
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

// lavaSignal is as LAVA's dispatcher takes signals from what a job prints.
var (
	lavaSignal = plaintext.Regexp(`<LAVA_SIGNAL_(\S+) ([^>]+)>`)
	lavaCase   = plaintext.Regexp(`^TEST_CASE_ID=[-_a-zA-Z0-9.]+ RESULT=(pass|fail|skip)( MEASUREMENT=-?[0-9.]+)?( UNITS=[-_a-zA-Z0-9.]+)?$`)
	lavaSet    = plaintext.Regexp(`^(START [-_a-zA-Z0-9.]+|STOP)$`)
)

// wantSignals wants of LAVA's lines a test case for each stage and check, and no more
// than their metrics besides; in each set another name for each.
func wantSignals(t *testing.T, all []Report) {
	t.Helper()
	data, err := renderLAVA(tidyAll(all))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{}
	for _, r := range all {
		for _, p := range r.listPoints() {
			want[lavaResults[p.Status]]++
			if len(p.Metrics) > 1 {
				for _, m := range p.Metrics {
					want[plaintext.Either(m.withinLimits(), "pass", "fail")]++
				}
			}
		}
	}
	got, names, set := map[string]int{}, map[string]bool{}, ""
	for _, m := range lavaSignal().FindAllStringSubmatch(string(data), -1) {
		switch result := lavaCase().FindStringSubmatch(m[2]); {
		case m[1] == "TESTCASE" && result != nil && !names[set+strings.Fields(m[2])[0]]:
			got[result[1]]++
			names[set+strings.Fields(m[2])[0]] = true
		case m[1] == "TESTSET" && lavaSet().MatchString(m[2]):
			set = m[2]
		default:
			t.Errorf("signal %q", m[0])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("test cases (-want +got):\n%s\nin\n%s", diff, data)
	}
}

func TestBoardsForgeNoResults(t *testing.T) {
	for _, all := range [][]Report{{forging()}, {forging(), failing(), forging()}} {
		wantPoints(t, all)
		wantSignals(t, all)
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
	}{{"", false, ""}, {"", true, "json"}, {"tap", true, "tap"}, {"lava", false, "lava"}} {
		f, err := FormOf(tt.name, tt.json)
		if err != nil || (f == nil) != (tt.want == "") || f != nil && f.name != tt.want {
			t.Errorf("FormOf(%q, %v) = %v, %v; want %q", tt.name, tt.json, f, err, tt.want)
		}
	}
	if _, err := FormOf("pdf", false); err == nil || !strings.Contains(err.Error(), "have json, junit, html, tap, lava") {
		t.Errorf("FormOf(pdf) = %v; want what there is", err)
	}
}
