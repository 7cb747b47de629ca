package station

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/layers/progress"
)

// Each row of the table in stations.md, section 7, and what no row says.
func TestNext(t *testing.T) {
	for _, tt := range []struct {
		folder  job.FolderState
		key     key
		current bool
		want    deed
	}{
		{job.None, running, false, (*work).begin},
		{job.Held, running, true, (*work).attend},
		{job.Done, running, true, (*work).report},
		{job.Broken, running, true, (*work).again},
		{job.Held, missing, true, (*work).restore},
		{job.Done, missing, true, (*work).restore},
		{job.Broken, missing, true, (*work).restore},
		{job.None, ended, false, (*work).giveUp},
		{job.Done, ended, true, (*work).giveUp},
		{job.Broken, ended, true, (*work).giveUp},

		{job.Held, ended, true, (*work).attend},
		{job.Held, unknown, true, (*work).attend},
		{job.Held, elsewhere, true, (*work).attend},
		{job.Broken, running, false, (*work).begin},
		{job.None, missing, false, (*work).forget},
		{job.None, queued, false, (*work).claim},
		{job.Done, queued, false, (*work).claim},
		{job.None, elsewhere, false, (*work).outwait},
		{job.Broken, elsewhere, true, (*work).outwait},
		{job.Done, elsewhere, true, (*work).report},
		{job.None, unknown, false, (*work).wait},
		{job.Done, unknown, true, (*work).wait},
		{job.Broken, unknown, true, (*work).wait},
	} {
		if got := nameOf(next(tt.folder, tt.key, tt.current)); got != nameOf(tt.want) {
			t.Errorf("next(%s, %s, %v) = %s; want %s", tt.folder, tt.key, tt.current, got, nameOf(tt.want))
		}
	}
}

func nameOf(d deed) string { return runtime.FuncForPC(reflect.ValueOf(d).Pointer()).Name() }

func TestReadPiece(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", maxPieceBytes+10)
	for _, tt := range []struct {
		text  string
		at    uint64
		final bool
		want  string
		to    uint64
	}{
		{"one\ntwo\nthr", 0, false, "one\ntwo\n", 8},
		{"one\ntwo\nthr", 8, false, "", 8},
		{"one\ntwo\nthr", 8, true, "thr", 11},
		{"one\n", 4, true, "", 4},
		{long, 0, false, long[:maxPieceBytes], maxPieceBytes},
		{"a\n" + long, 0, true, "a\n", 2},
		{"bad \xff\xfe\n", 0, false, "bad ?\n", 7},
	} {
		if err := os.WriteFile(name, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readPiece(name, "ID", tt.at, tt.final)
		if want := (job.Log{ID: "ID", N: tt.at, To: tt.to, Text: tt.want}); err != nil || got != want {
			t.Errorf("readPiece(%.20q, %d, %v) = %+v, %v; want %+v", tt.text, tt.at, tt.final, got, err, want)
		}
	}
	if got, err := readPiece(filepath.Join(t.TempDir(), "none"), "ID", 0, true); err != nil || got.Text != "" {
		t.Errorf("readPiece of no file = %+v, %v", got, err)
	}
}

// Pieces of any file are the file, whenever they are cut.
func FuzzReadPiece(f *testing.F) {
	f.Add([]byte("one\ntwo\nthree"), uint16(5))
	f.Add([]byte("漢字\n\xff"), uint16(2))
	f.Add([]byte(strings.Repeat("x", 70_000)+"\n"), uint16(40_000))
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		name := filepath.Join(t.TempDir(), "log")
		at, n := uint64(0), min(int(cut), len(data))
		for _, part := range []struct {
			data  []byte
			final bool
		}{{data[:n], false}, {data, true}} {
			if err := os.WriteFile(name, part.data, 0o600); err != nil {
				t.Fatal(err)
			}
			for {
				p, err := readPiece(name, "ID", at, part.final)
				if err != nil || p.N != at || p.To < at || len(p.Text) > maxPieceBytes || !utf8.ValidString(p.Text) {
					t.Fatalf("readPiece at %d = %+v, %v", at, p, err)
				}
				if p.Text == "" {
					break
				}
				if at = p.To; utf8.Valid(data) && len(data) < maxPieceBytes && p.Text != string(data[p.N:p.To]) {
					t.Fatalf("readPiece at %d = %q; want %q", p.N, p.Text, data[p.N:p.To])
				}
			}
		}
		if at != uint64(len(data)) {
			t.Errorf("the pieces end at %d of %d", at, len(data))
		}
	})
}

// Events of a job reach who follows it, the last one too, and not more than two a second.
func TestProgress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	b.wish("b1", "hold", true)
	var mu sync.Mutex
	var events []progress.Event
	var subjects []string
	sub, err := w.admin.Subscribe("prog.>", func(m *nats.Msg) {
		var e progress.Event
		if err := json.Unmarshal(m.Data, &e); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		events, subjects = append(events, e), append(subjects, m.Subject)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection ends, too
	began := time.Now()
	b.start()
	j := b.add("b1")
	get := func() []progress.Event { mu.Lock(); defer mu.Unlock(); return events }
	w.until("there are events", func() bool { return len(get()) >= 3 })
	b.wish("b1", "hold", false)
	w.ended(j.ID)
	w.until("the step's end is told", func() bool { all := get(); return all[len(all)-1].State == progress.Done })
	if n, most := len(get()), int(time.Since(began)/progressEvery)+2; n > most {
		t.Errorf("%d events in %v; want at most %d", n, time.Since(began), most)
	}
	if want := "prog.bench-1.b1." + j.ID; subjects[0] != want || get()[0].Step != "write" {
		t.Errorf("event %+v to %s; want %s", get()[0], subjects[0], want)
	}
}

// The report that a job's step left is sent, packed.
func TestReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	b.wish("b1", "report", true)
	s := b.start()
	j := b.add("b1")
	if r := w.ended(j.ID).Result; r.Kind != fleet.Passed || r.Report == "" {
		t.Errorf("result = %+v; want a report", r)
	}
	packed, err := pack([]byte(simulatedReport))
	if err != nil {
		t.Fatal(err)
	}
	if !w.engineHas("REPORTS", packed) {
		t.Error("the hub does not have the report")
	}
	b.wish("b1", "report", false)
	for wish, want := range map[string]string{"vast report": "it is longer than a hub takes", "long report": "report.json: larger than 32768 KiB"} {
		b.wish("b1", wish, true)
		if r := w.ended(b.add("b1").ID).Result; r.Kind != fleet.Passed {
			t.Errorf("result = %+v; want %s", r, fleet.Passed)
		}
		if log := s.log.String(); !strings.Contains(log, "its report is not sent: ") || !strings.Contains(log, want) {
			t.Errorf("log = %s; want that the report is not sent: %s", log, want)
		}
		b.wish("b1", wish, false)
	}
}

// The hub stores no secret of a log: neither one of a known form, nor a word of the board's power program.
func TestSecretsOfLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	b.wish("b1", "secrets", true)
	text, err := os.ReadFile(b.config)
	if err == nil {
		err = os.WriteFile(b.config, bytes.Replace(text, []byte("{board: orin"), []byte(`{board: orin, power: ["true", "--password=swordfish", cycle]`), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.start()
	j := b.add("b1")
	w.ended(j.ID)
	if log := w.kept(j.ID); !strings.Contains(log, "example.com, and [hidden], by cycle") || strings.Contains(log, "hunter2") || strings.Contains(log, "swordfish") {
		t.Errorf("the hub has the log %q; want no password", log)
	}
}

// engineHas reports whether a stream's files have these bytes.
func (w *world) engineHas(stream string, data []byte) (has bool) {
	w.t.Helper()
	files, err := filepath.Glob(filepath.Join(w.dir, "hub", "engine", "jetstream", "*", "streams", stream, "msgs", "*.blk"))
	if err != nil || len(files) == 0 {
		w.t.Fatalf("the stream %s has the files %v, %v", stream, files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			w.t.Fatal(err)
		}
		has = has || bytes.Contains(text, data)
	}
	return has
}
