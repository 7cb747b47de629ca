package cache

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/images/bitbake"
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

// hashserv returns the address of a server that answers for each hash as bitbake 2.8's was
// recorded to answer, and hangs up at another question.
func hashserv(t *testing.T, answers map[string]string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	questions := map[string]string{"OEHASHEQUIV 1.1": "", "": ""}
	for hash, answer := range answers {
		questions[`{"get": {"method": "oe.sstatesig.OEOuthashBasic", "taskhash": "`+hash+`", "all": false}}`] = answer + "\n"
	}
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				answer, known := questions[lines.Text()]
				if !known {
					break
				}
				fmt.Fprint(conn, answer)
			}
			conn.Close()
		}
	}()
	return l.Addr().String()
}

func TestReport(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, bitbake.RecordName), built)
	address := hashserv(t, map[string]string{known: `{"unihash": "x"}`, unknown: "null"})
	tests := []struct {
		name    string
		setting Setting
		whys    []string // of bash, linux and zlib
	}{
		{"with a cache", Setting{Sstate: "http://127.0.0.1", Hashserv: address, PRServ: none}, []string{whyBroken, whyOther, whyGone}},
		{"with one that is gone", Setting{Sstate: "http://127.0.0.1", Hashserv: "127.0.0.1:1", PRServ: none}, []string{whyBroken, whyAlone, whyAlone}},
		{"with one that speaks websockets", Setting{Sstate: "http://127.0.0.1", Hashserv: "ws://" + address, PRServ: none}, []string{whyBroken, whyAlone, whyAlone}},
		{"with none", Setting{Off: true}, []string{whyBroken, whyNoCache, whyNoCache}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReportOf(t.Context(), "b", dir, tt.setting)
			if err != nil {
				t.Fatal(err)
			}
			want := Report{
				Board: "b", State: "succeeded", Started: time.Date(2026, 11, 21, 17, 0, 0, 0, time.UTC), LostMS: 9507,
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
	if _, err := ReportOf(t.Context(), "b", t.TempDir(), Setting{}); err == nil || !strings.Contains(err.Error(), "next: build b") {
		t.Errorf("without a build: %v", err)
	}
}

// What is said of a build that did not succeed, or built nothing.
func TestReportOfOtherBuilds(t *testing.T) {
	missed := `"tasks": [{"recipe": "a", "task": "do_package", "tookMs": 5, "sharedState": "miss"}]`
	tests := []struct{ name, record, want, wantErr string }{
		{"interrupted", `{"state": "interrupted", ` + missed + `}`, "The build was interrupted.\n", ""},
		{"running", `{"state": "running", ` + missed + `}`, "The build is running, or was cut off.\n", ""},
		{"running, at its beginning", `{"state": "running"}`, "b: the last build is running, or was cut off, and looked for nothing", ""},
		{"nothing to do", `{"state": "succeeded"}`, "b: the last build succeeded, and looked for nothing", ""},
		{"parsed alone", `{"state": "succeeded", "parseOnly": true}`, "", "ran no tasks: it was asked only to parse, or for a dry run; run build b first"},
		{"a dry run", `{"state": "succeeded", "dryRun": true, ` + missed + `}`, "", "ran no tasks"},
		{"no record", `{`, "", "build the board again"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, bitbake.RecordName), tt.record)
			var text bytes.Buffer
			r, err := ReportOf(t.Context(), "b", dir, Setting{Off: true})
			if err == nil {
				err = r.Write(&text)
			}
			if (tt.wantErr == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.wantErr) || !strings.Contains(text.String(), tt.want) {
				t.Errorf("%q, %v; want %q, %q", &text, err, tt.want, tt.wantErr)
			}
		})
	}
}

// A large image misses thousands, of which a person reads the slowest.
func TestReportOfManyMisses(t *testing.T) {
	var r Report
	for i := range maxMissLines + 3 {
		r.Misses = append(r.Misses, Lookup{Recipe: fmt.Sprintf("recipe-%d-", i), TookMS: int64(i)})
	}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	said := text.String()
	if !strings.Contains(said, "recipe-42-") || strings.Contains(said, "recipe-2-") || !strings.HasSuffix(said, "and 3 more that took less; --json has all of them\n") {
		t.Errorf("report = %s; want the slowest, and how many more", said)
	}
}

// A server far away is not queried one hash after the other.
func TestKnownHashesQueriesAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewScanner(conn)
		for range 2 + hashesAtOnce { // a greeting is two lines
			in.Scan()
		}
		fmt.Fprint(conn, strings.Repeat("null\n", hashesAtOnce))
	}()
	var hashes []string
	for i := range hashesAtOnce {
		hashes = append(hashes, fmt.Sprintf("%064x", i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	known, err := Cache{Hashserv: l.Addr().String()}.knownHashes(ctx, hashes)
	if err != nil || len(known) != hashesAtOnce || known[hashes[7]] {
		t.Errorf("knows = %d answers, %v; want %d that are no", len(known), err, hashesAtOnce)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(built))
	f.Add([]byte(`{"tasks": [{"sharedState": "miss"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r bitbake.Record
		if json.Unmarshal(data, &r) != nil {
			return
		}
		report := newReport("b", r)
		if len(report.Hits)+len(report.Misses) > len(r.Tasks) {
			t.Errorf("%d lookups of %d tasks", len(report.Hits)+len(report.Misses), len(r.Tasks))
		}
		var text bytes.Buffer
		if err := report.Write(&text); err != nil || strings.Contains(text.String(), "\x1b") {
			t.Errorf("Write = %v, %q", err, text.String())
		}
	})
}
