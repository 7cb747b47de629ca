package trends

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/ci/report"
	"slipway/images"
	"slipway/layers/git"
	"slipway/layers/plaintext"

	"github.com/google/go-cmp/cmp"
)

// writeFiles writes files below a new folder, which is then the current one.
func writeFiles(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	aReport    = `{"version":1,"board":"orin","started":"2026-03-01T06:00:00Z","identity":{"serial":"s1","imageKey":"k1"},"stages":[],"suites":[]}`
	anArtifact = `{"board":"orin","key":"k1","built":"2026-03-01T05:00:00Z","files":[{"kind":"tegraflash","name":"t","sizeBytes":1048576}],"source":{"commit":"c1","branch":"main"},"cost":{"buildMs":61500,"cacheHits":3,"cacheMisses":1}}`
)

func TestRead(t *testing.T) {
	other := strings.NewReplacer("06:00", "07:00", "s1", "s2")
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  []string // board, device, name, commit, branch, numbers of builds and of devices, checks
		note  string
	}{
		{"a report beside its artifact", map[string]string{"r/1/report.json": aReport, "r/1/artifact.json": anArtifact}, []string{"orin s1 r/1 c1 main 3 0 0"}, ""},
		{"the folder itself", map[string]string{"r/report.json": aReport}, []string{"orin s1 r   0 0 0"}, ""},
		{"an artifact alone", map[string]string{"r/1/artifact.json": anArtifact}, []string{"orin  r/1 c1 main 3 0 0"}, ""},
		{"a report of another image", map[string]string{"r/1/report.json": strings.Replace(aReport, "k1", "k2", 1), "r/1/artifact.json": anArtifact}, []string{"orin  r/1 c1 main 3 0 0", "orin s1 r/1   0 0 0"}, ""},
		{"a report of another board", map[string]string{"r/1/report.json": strings.Replace(aReport, "orin", "virt", 1), "r/1/artifact.json": anArtifact}, []string{"orin  r/1 c1 main 3 0 0", "virt s1 r/1   0 0 0"}, ""},
		{
			"a build that failed, beside an earlier artifact",
			map[string]string{"r/1/report.json": `{"version":1,"board":"orin","started":"2026-03-01T06:00:00Z","source":{"commit":"c2","branch":"main"},"stages":[{"name":"build","status":"failed"}],"suites":[]}`, "r/1/artifact.json": anArtifact},
			[]string{"orin  r/1 c1 main 3 0 0", "orin  r/1 c2 main 0 0 1"},
			"",
		},
		{
			"a report of several boards",
			map[string]string{"r/1/report.json": `{"version":1,"reports":[` + aReport + "," + other.Replace(aReport) + `]}`, "r/1/artifact.json": anArtifact},
			[]string{"orin s1 r/1 c1 main 3 0 0", "orin s2 r/1 c1 main 3 0 0"},
			"",
		},
		{
			"earlier reports, one of them known",
			map[string]string{"b/orin/report.json": aReport, "b/orin/artifact.json": anArtifact, "b/orin/reports/20260301T060000.000Z.json": aReport, "b/orin/reports/20260301T070000.000Z.json": other.Replace(aReport)},
			[]string{"orin s1 b/orin c1 main 3 0 0", "orin s2 b/orin/reports/20260301T070000.000Z.json   0 0 0"},
			"",
		},
		{
			"a copy that is found first",
			map[string]string{"a/reports/20260301T060000.000Z.json": aReport, "b/report.json": aReport, "b/artifact.json": anArtifact},
			[]string{"orin s1 b c1 main 3 0 0"},
			"",
		},
		{"folders of a build are passed over", map[string]string{"b/virt/layers/x/report.json": aReport, "b/.git/report.json": aReport, "b/1/report.json": aReport}, []string{"orin s1 b/1   0 0 0"}, ""},
		{
			"what a report measures",
			map[string]string{"r/report.json": `{"version":1,"board":"virt","started":"2026-03-01T06:00:00Z","boot":{"elapsedMs":6100,"accel":"kvm"},"stages":[{"name":"boot","status":"passed","elapsedMs":9000},{"name":"x","status":"skipped"}],
				"suites":[{"name":"s","checks":[{"name":"again","kind":"reboot","status":"passed","elapsedMs":40000},{"name":"m","kind":"k","status":"failed","metrics":[{"name":"t","value":1}]},{"name":"no","status":"skipped"}]}]}`},
			[]string{"virt  r   0 3 3"},
			"",
		},
		{"no JSON", map[string]string{"r/1/report.json": "x", "r/2/report.json": aReport}, []string{"orin s1 r/2   0 0 0"}, "r/1/report.json: not a report.json"},
		{"a report without its time", map[string]string{"r/report.json": `{"version":1,"board":"b"}`}, nil, "r/report.json: a report without its time"},
		{"an artifact without its time", map[string]string{"r/artifact.json": `{"board":"b"}`}, nil, "r/artifact.json: an artifact without its board or time"},
		{"an artifact that is no JSON", map[string]string{"r/artifact.json": `{`, "r/report.json": aReport}, []string{"orin s1 r   0 0 0"}, "r/artifact.json: "},
		{"a large report", map[string]string{"r/report.json": aReport + strings.Repeat(" ", maxReportBytes)}, nil, "r/report.json: larger than 32 MiB"},
		{"control characters", map[string]string{"r/report.json": strings.Replace(aReport, "orin", `a\u001b[31mb\nc`, 1)}, []string{"ab c s1 r   0 0 0"}, ""},
		{"a long name", map[string]string{"r/report.json": strings.Replace(aReport, "orin", strings.Repeat("x", 500), 1)}, []string{strings.Repeat("x", 120) + "… (100 bytes more) s1 r   0 0 0"}, ""},
		{"a deep folder", map[string]string{"r" + strings.Repeat("/x", 12) + "/report.json": aReport}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			writeFiles(t, tt.files)
			here, err := os.ReadDir(".")
			if err != nil {
				t.Fatal(err)
			}
			var folders []string
			for _, f := range here {
				folders = append(folders, f.Name())
			}
			runs, err := Read(t.Context(), folders)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range runs.All {
				got = append(got, fmt.Sprintf("%s %s %s %s %s %d %d %d", r.Board, r.Device, r.Name, r.Source.Commit, r.Source.Branch, len(r.build), len(r.device), len(r.checks)))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if notes := strings.Join(runs.Notes, "\n"); (notes == "") != (tt.note == "") || !strings.Contains(notes, tt.note) {
				t.Errorf("notes %q; want %q", notes, tt.note)
			}
		})
	}
}

// FromReports takes reports from anywhere, such as a store, and ends at an error or at its limit.
func TestFromReports(t *testing.T) {
	one := func(i int) Found {
		return Found{Name: fmt.Sprint("job ", i), Report: &report.Report{Board: "orin", Started: time.Unix(int64(i), 0)}}
	}
	lost := errors.New("the store is gone")
	for _, tt := range []struct {
		name        string
		found       []Found
		err         error
		runs, notes int
	}{
		{"none", nil, nil, 0, 0},
		{"one twice", []Found{one(1), one(2), one(1)}, nil, 2, 0},
		{"without a time", []Found{{Name: "a", Report: &report.Report{Board: "orin"}}, one(2)}, nil, 1, 1},
		{"empty", []Found{{Name: "a"}, {Note: "b: denied"}}, nil, 0, 2},
		{"an error", []Found{one(1)}, lost, 0, 0},
	} {
		runs, err := FromReports(t.Context(), func(yield func(Found, error) bool) {
			for _, f := range tt.found {
				if !yield(f, nil) {
					return
				}
			}
			if tt.err != nil {
				yield(Found{}, tt.err)
			}
		})
		if err != tt.err || len(runs.All) != tt.runs || len(runs.Notes) != tt.notes {
			t.Errorf("%s: %d runs, notes %q, %v; want %d, %d and %v", tt.name, len(runs.All), runs.Notes, err, tt.runs, tt.notes, tt.err)
		}
	}
	asked := 0
	runs, err := FromReports(t.Context(), func(yield func(Found, error) bool) {
		for asked++; yield(one(asked), nil); asked++ {
		}
	})
	if err != nil || len(runs.All) != maxRuns || asked != maxRuns+1 {
		t.Errorf("of an endless store: %d runs of %d, %v; want %d", len(runs.All), asked, err, maxRuns)
	}
}

// The numbers of a run, in the units of people, with the direction that is worse.
func TestValues(t *testing.T) {
	writeFiles(t, map[string]string{"r/artifact.json": anArtifact, "r/report.json": strings.Replace(aReport, `"suites":[]`, `"suites":[{"name":"s","checks":[{"name":"c","status":"passed","metrics":[
		{"name":"up","value":1,"max":2},{"name":"down","unit":"W","value":1,"min":0},{"name":"both","value":1,"min":0,"max":2},{"name":"none","value":1}]}]}]`, 1)})
	runs, err := Read(t.Context(), []string{"r"})
	if err != nil || len(runs.All) != 1 {
		t.Fatalf("%+v, %v; want one run", runs, err)
	}
	var got []string
	for _, v := range append(runs.All[0].build, runs.All[0].device...) {
		got = append(got, fmt.Sprintf("%s|%s|%s|%v|%d", v.name, v.of, v.unit, v.v, v.worse))
	}
	want := []string{"build time||s|61.5|1", "cache hits||%|75|-1", "tegraflash size||MiB|1|1", "up|s: c||1|1", "down|s: c|W|1|-1", "both|s: c||1|0", "none|s: c||1|0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestReadErrors(t *testing.T) {
	writeFiles(t, map[string]string{"file": "x"})
	for folder, want := range map[string]string{"none": "no such file", "file": "is no folder"} {
		if _, err := Read(t.Context(), []string{folder}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "\nnext: ls") {
			t.Errorf("Read(%s) = %v; want %q and a next step", folder, err, want)
		}
	}
	for i := range maxNotes + 3 {
		if err := os.MkdirAll(fmt.Sprint("many/", i), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(fmt.Sprint("many/", i, "/report.json"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if runs, err := Read(t.Context(), []string{"many"}); err != nil || len(runs.Notes) != maxNotes+1 || runs.Notes[maxNotes] != "3 more notes" {
		t.Errorf("Read = %d notes, %v; want %d and how many more", len(runs.Notes), err, maxNotes)
	}
}

// FuzzRuns reads a report and an artifact from anywhere, ten times over.
func FuzzRuns(f *testing.F) {
	f.Add([]byte(aReport), []byte(anArtifact))
	r := report.Report{
		Version: 1, Board: "virt", Started: time.Unix(1e9, 0), Boot: report.Boot{ElapsedMS: 1}, Source: &git.FolderCommit{Commit: "c", Branch: "b"},
		Stages: []report.Stage{{Name: "boot", Status: report.Failed}},
		Suites: []report.SuiteResult{{Name: "s", Checks: []report.CheckResult{{Name: "c", Kind: "reboot", Status: report.Passed, Metrics: []report.Metric{{Name: "m", Value: -1e308, Min: new(float64)}}}}}},
	}
	data, err := json.Marshal(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, []byte(`{"board":"virt","built":"0001-01-02T00:00:00Z","files":[{"kind":"disk","name":"a","sizeBytes":9223372036854775807}],"cost":{"buildMs":-1,"cacheHits":9223372036854775807,"cacheMisses":9223372036854775807}}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, reportText, artifactText []byte) {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, report.ReportJSON), reportText, 0o644), os.WriteFile(images.ArtifactPath(dir), artifactText, 0o644)); err != nil {
			t.Fatal(err)
		}
		runs, err := Read(t.Context(), []string{dir})
		if err != nil {
			t.Fatal(err)
		}
		one := runs.All
		for i := 1; i < 12; i++ { // the same again, with other numbers
			for _, r := range one {
				r.Time, r.built = r.Time.Add(time.Duration(i)*time.Hour), r.built.Add(time.Duration(i)*time.Hour)
				r.device = append([]value{}, r.device...)
				for j := range r.device {
					r.device[j].v *= float64(1 - i/8*2)
				}
				runs.All = append(runs.All, r)
			}
		}
		found, err := Of(runs, Options{Last: 50})
		if err != nil {
			return
		}
		var text, asJSON bytes.Buffer
		page, err := found.Page()
		if err != nil {
			t.Fatal(err)
		}
		if err := plaintext.WriteJSON(&asJSON, found); err != nil {
			t.Fatal(err)
		}
		if err := found.Write(&text); err != nil {
			t.Fatal(err)
		}
		if i := bytes.IndexFunc(text.Bytes(), func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }); i >= 0 {
			t.Fatalf("a control character in %q", text.String())
		}
		for _, bad := range []string{"NaN", "Inf h", "ZgotmplZ", "<script"} {
			if bytes.Contains(page, []byte(bad)) && !bytes.Contains(reportText, []byte(bad)) && !bytes.Contains(artifactText, []byte(bad)) {
				t.Fatalf("%s is on the page", bad)
			}
		}
	})
}
