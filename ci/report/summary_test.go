package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindingsIn(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, tt := range []struct {
		name, text string
		want       []Finding
	}{
		{"a line and a column", `boards/a/kas.yml:3:1: unknown key "machin"`, []Finding{{File: "boards/a/kas.yml", Line: 3, Text: `unknown key "machin"`}}},
		{"a line alone", "suites/x.yml:12: no", []Finding{{File: "suites/x.yml", Line: 12, Text: "no"}}},
		{"two of several lines", "a.yml:1: x\nnext: boards\nb.json:2:3: y", []Finding{{File: "a.yml", Line: 1, Text: "x"}, {File: "b.json", Line: 2, Text: "y"}}},
		{"a whole path", dir + "/boards/a/board.yml:1:1: no", []Finding{{File: "boards/a/board.yml", Line: 1, Text: "no"}}},
		{"a whole path elsewhere", "/srv/a.yml:1:1: no", []Finding{{File: "/srv/a.yml", Line: 1, Text: "no"}}},
		{"no line", "unknown board\nnext: boards", []Finding{{Text: "unknown board\nnext: boards"}}},
		{"an address", "https://example.com:80: no", []Finding{{Text: "https://example.com:80: no"}}},
		{"line 0", "a.yml:0: no", []Finding{{Text: "a.yml:0: no"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, FindingsIn(tt.text)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	if got := len(FindingsIn(strings.Repeat("a.yml:1: x\n", 2*maxFindings))); got != maxFindings {
		t.Errorf("%d findings; want %d", got, maxFindings)
	}
}

// Whatever an error says, GitHub sees one command a finding, and Markdown one block.
func FuzzFailed(f *testing.F) {
	f.Add("a.yml:1:2: x\n::set-env name=PATH::/tmp", "next")
	f.Add("```\n<script>", "a`b")
	f.Add("a%0A,b.yml:3: x\r\n::error::y", "")
	f.Fuzz(func(t *testing.T, cause, step string) {
		file := filepath.Join(t.TempDir(), "summary")
		t.Setenv(SummaryVariable, file)
		t.Setenv("GITHUB_ACTIONS", "true")
		var log bytes.Buffer
		if err := ShowFailed(&log, "slipway build a", cause, step); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(log.String()) {
			if !strings.HasPrefix(line, "::error ") || !strings.HasSuffix(line, "\n") {
				t.Errorf("a line of the log is %q; want a command", line)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var open string
		for _, line := range strings.Split(string(text), "\n") {
			switch {
			case open == "" && strings.HasPrefix(line, "```"):
				open = line
			case line == open:
				open = ""
			case open == "" && line != "" && line != "Next:" && line != "### slipway build a failed":
				t.Errorf("outside of blocks: %q", line)
			}
		}
		var quality bytes.Buffer
		if err := WriteQuality(&quality, "x", "boards", FindingsIn(cause)); err != nil || !json.Valid(quality.Bytes()) {
			t.Errorf("quality = %s, %v", quality.String(), err)
		}
	})
}

func TestAnnotate(t *testing.T) {
	all := []Finding{{File: "a,b.yml", Line: 2, Text: "50 %\nx"}, {Text: "y", Info: true}}
	var log bytes.Buffer
	t.Setenv("GITHUB_ACTIONS", "")
	Annotate(&log, "t", all...)
	if log.Len() > 0 {
		t.Errorf("without GitHub: %q", log.String())
	}
	t.Setenv("GITHUB_ACTIONS", "true")
	Annotate(&log, "a: b", all...)
	want := "::error file=a%2Cb.yml,line=2,title=a%3A b::50 %25%0Ax\n::notice title=a%3A b::y\n"
	if log.String() != want {
		t.Errorf("Annotate = %q; want %q", log.String(), want)
	}
}

func TestQuality(t *testing.T) {
	var out bytes.Buffer
	if err := WriteQuality(&out, "check", "boards", []Finding{{File: "a.yml", Line: 2, Text: "x"}, {Text: "y", Info: true}}); err != nil {
		t.Fatal(err)
	}
	var got []quality
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got) != 2 {
		t.Fatalf("%s: %v", out.String(), err)
	}
	if q := got[0]; q.Location.Path != "a.yml" || q.Location.Lines.Begin != 2 || q.Severity != "major" || len(q.Fingerprint) != 64 {
		t.Errorf("first = %+v", q)
	}
	if q := got[1]; q.Location.Path != "boards" || q.Location.Lines.Begin != 1 || q.Severity != "info" || q.Fingerprint == got[0].Fingerprint {
		t.Errorf("second = %+v", q)
	}
	out.Reset()
	if err := WriteQuality(&out, "check", "boards", nil); err != nil || strings.TrimSpace(out.String()) != "[]" {
		t.Errorf("nothing wrong = %q, %v; want an empty list", out.String(), err)
	}
}

// A summary is added to what earlier steps wrote, and SLIPWAY_SUMMARY goes first.
func TestSummary(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(SummaryVariable, "")
	t.Setenv(gitHubSummary, "")
	if err := AddSummary(func() string { return "x" }); err != nil {
		t.Errorf("without a summary: %v", err)
	}
	t.Setenv(gitHubSummary, filepath.Join(dir, "github"))
	for range 2 {
		if err := AddSummary(func() string { return "x" }); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(SummaryVariable, filepath.Join(dir, "own"))
	if err := AddSummary(func() string { return "y" }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"github": "x\nx\n", "own": "y\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); string(text) != want || err != nil {
			t.Errorf("%s = %q, %v; want %q", name, text, err, want)
		}
	}
	t.Setenv(SummaryVariable, filepath.Join(dir, "none/own"))
	if err := AddSummary(func() string { return "y" }); err == nil {
		t.Error("a summary that cannot be written = nil; want an error")
	}
}

// GitLab shows one finding of each fingerprint: the same text at two lines has two, and a finding
// that several boards have is written once.
func TestQualityIsSaidOnce(t *testing.T) {
	var out bytes.Buffer
	twice := Finding{File: "a.yml", Line: 2, Text: "x"}
	if err := WriteQuality(&out, "check", "boards", []Finding{twice, twice, {File: "a.yml", Line: 3, Text: "x"}, {File: "b.yml", Line: 2, Text: "x"}}); err != nil {
		t.Fatal(err)
	}
	var got []quality
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got) != 3 {
		t.Fatalf("%s: %v; want 3 findings", out.String(), err)
	}
	if got[0].Fingerprint == got[1].Fingerprint || got[0].Fingerprint == got[2].Fingerprint {
		t.Errorf("%s: want three fingerprints", out.String())
	}
}
