package cache

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const built = `{
 "board": "b", "state": "succeeded", "started": "2026-11-21T17:00:00Z", "setscene": {"hits": 1, "misses": 3},
 "tasks": [
  {"recipe": "zlib", "task": "do_populate_sysroot", "tookMs": 20, "outcome": "succeeded", "sharedState": "hit"},
  {"recipe": "zlib", "task": "do_package", "tookMs": 500, "sharedState": "miss", "hash": "` + known + `"},
  {"recipe": "linux", "multiconfig": "xavier", "task": "do_deploy", "tookMs": 9000, "sharedState": "miss", "hash": "` + unknown + `"},
  {"recipe": "bash\u001b[31m", "task": "do_package", "tookMs": 7, "sharedState": "broken"},
  {"recipe": "bash", "task": "do_compile", "tookMs": 700, "outcome": "succeeded"}
 ]}`

const (
	known   = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	unknown = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestReport(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, recordName), built)
	ask := func(hash string) string {
		return `{"get": {"method": "oe.sstatesig.OEOuthashBasic", "taskhash": "` + hash + `", "all": false}}`
	}
	address := replay(t, said(greetHashserv, ask(known), `{"unihash": "x"}`, ask(unknown), "null"))
	tests := []struct {
		name    string
		setting Setting
		whys    []string // of bash, linux and zlib
	}{
		{"with a cache", Setting{Sstate: "http://127.0.0.1", Hashserv: address, PRServ: none}, []string{whyBroken, whyOther, whyGone}},
		{"with one that is gone", Setting{Sstate: "http://127.0.0.1", Hashserv: "127.0.0.1:1", PRServ: none}, []string{whyBroken, whyAlone, whyAlone}},
		{"with none", Setting{Off: true}, []string{whyBroken, whyNoCache, whyNoCache}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReportOf(t.Context(), "b", dir, tt.setting)
			if err != nil {
				t.Fatal(err)
			}
			want := Report{
				Board: "b", State: "succeeded", Started: "2026-11-21T17:00:00Z", LostMS: 9507,
				Hits: []Lookup{{Recipe: "zlib", Task: "do_populate_sysroot", TookMS: 20}},
				Misses: []Lookup{
					{Recipe: "bash\x1b[31m", Task: "do_package", TookMS: 7, Why: tt.whys[0]},
					{Recipe: "mc:xavier:linux", Task: "do_deploy", TookMS: 9000, Hash: unknown, Why: tt.whys[1]},
					{Recipe: "zlib", Task: "do_package", TookMS: 500, Hash: known, Why: tt.whys[2]},
				},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	got, err := ReportOf(t.Context(), "b", dir, Setting{Off: true})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := got.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"b: 1 of 4 tasks came from shared state (25 %), 3 did not and took 10 s of work. The build succeeded.\n", "mc:xavier:linux  do_deploy   9.0"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, &text)
		}
	}
	if strings.Contains(text.String(), "\x1b") {
		t.Errorf("report has a control character: %q", text.String())
	}
	if _, err := ReportOf(t.Context(), "b", t.TempDir(), Setting{}); err == nil || !strings.Contains(err.Error(), "run build b first") {
		t.Errorf("without a build: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(built))
	f.Add([]byte(`{"tasks": [{"sharedState": "miss"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord(bytes.NewReader(data))
		if err != nil {
			return
		}
		report := r.report("b")
		if len(report.Hits)+len(report.Misses) > len(r.Tasks) {
			t.Errorf("%d lookups of %d tasks", len(report.Hits)+len(report.Misses), len(r.Tasks))
		}
		var text bytes.Buffer
		if err := report.Write(&text); err != nil || strings.Contains(text.String(), "\x1b") {
			t.Errorf("Write = %v, %q", err, text.String())
		}
	})
}
