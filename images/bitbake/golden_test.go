package bitbake

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"slipway/images/bitbake/bitbaketest"
)

var update = flag.Bool("update", false, "record the runs again with each bitbake that SLIPWAY_BITBAKE names, and rewrite what they are read as")

// recordIn is where runs are recorded: what they say has paths in it.
const recordIn = "/b"

// runsRecorded are runs of one bitbake over the layer in testdata, in order and in one folder.
var runsRecorded = []struct {
	name    string
	prepare func(build string) error
	args    []string
}{
	{"fresh", nil, []string{"-c", "build", "--", "tiny-image"}},
	{"again", spoil, []string{"-c", "build", "--", "tiny-image"}},
	{"nothing", nil, []string{"-c", "build", "--", "tiny-image"}},
	{"broken", nil, []string{"-c", "build", "-k", "--", "broken-image", "liba"}},
}

// spoil leaves shared state alone: one recipe's damaged, one's missing.
func spoil(build string) error {
	libb, err := filepath.Glob(filepath.Join(build, "sstate-cache/libb-*"))
	if err != nil || len(libb) != 1 {
		return fmt.Errorf("libb's shared state is %v, %v; want one file", libb, err)
	}
	libc, err := filepath.Glob(filepath.Join(build, "sstate-cache/libc-*"))
	if err != nil || len(libc) != 1 {
		return fmt.Errorf("libc's shared state is %v, %v; want one file", libc, err)
	}
	return errors.Join(os.RemoveAll(filepath.Join(build, "tmp")), os.Remove(libc[0]), os.WriteFile(libb[0], []byte("damaged\n"), 0o644))
}

// TestRecord records real runs, with -update.
func TestRecord(t *testing.T) {
	if !*update {
		t.Skip("only with -update, and SLIPWAY_BITBAKE, does this record the runs again")
	}
	checkouts := bitbaketest.Checkouts(t)
	out := filepath.Join("../testdata/bitbake/recorded")
	if os.Geteuid() == 0 {
		must(t, os.MkdirAll(recordIn, 0o755))
		must(t, os.Chmod(recordIn, 0o777))
		must(t, os.CopyFS(out, os.DirFS(filepath.Join(bitbaketest.AsUser(t, "../testdata", "-update"), "tmp/recorded"))))
		return
	}
	if dir := os.Getenv("TMPDIR"); os.Getenv("SLIPWAY_TESTDATA") != "" {
		out = filepath.Join(dir, "recorded")
	}
	for _, checkout := range checkouts {
		record(t, checkout, out)
	}
}

func record(t *testing.T, checkout, out string) {
	t.Helper()
	dir := filepath.Join(recordIn, "recording")
	defer os.RemoveAll(dir)
	tree := realTree(t, checkout, dir)
	version := tree.Version()
	program := filepath.Join(dir, "bitbake-"+version)
	for _, part := range []string{"bin", "lib"} {
		must(t, os.CopyFS(filepath.Join(program, part), os.DirFS(filepath.Join(checkout, part))))
	}
	must(t, os.MkdirAll(filepath.Join(out, version), 0o755))
	for _, run := range runsRecorded {
		if run.prepare != nil {
			must(t, run.prepare(tree.Build))
		}
		events := filepath.Join(dir, "events")
		must(t, os.RemoveAll(events))
		cmd := exec.CommandContext(t.Context(), "python3", append([]string{filepath.Join(program, "bin/bitbake")}, run.args...)...)
		cmd.Dir = tree.Build
		cmd.Env = []string{"PATH=" + program + "/bin:/usr/bin:/bin", "HOME=" + dir, "LC_ALL=en_US.UTF-8", "BBPATH=" + tree.Build, "BBEVENTLOG=" + events}
		console, err := cmd.CombinedOutput()
		if (err != nil) != (run.name == "broken") {
			t.Fatalf("%s %s: %v\n%s", version, run.name, err, console)
		}
		log, err := os.ReadFile(events)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(out, version, run.name+".txt"), console, 0o644))
		must(t, os.WriteFile(filepath.Join(out, version, run.name+".events.gz"), packed(t, log), 0o644))
	}
}

func packed(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	must(t, err)
	_, err = w.Write(data)
	must(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

func unpacked(tb testing.TB, path string) []byte {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// watched reads a recorded run as if it went on now.
func watched(t *testing.T, log []byte, console string, failed bool) Record {
	t.Helper()
	rec := Record{Started: firstTime(log)}
	w := newWatch(context.Background(), &rec, forecast{Tasks: map[string]int64{}})
	for line := range strings.Lines(console) {
		w.readConsoleLine(strings.TrimSuffix(line, "\n"))
	}
	r := &logReader{onEvent: w.handleEvent, onBadLine: func(err error) { t.Error(err) }}
	defer r.close()
	for len(log) > 0 { // in parts that end anywhere
		n := min(len(log), 1000)
		_, _ = r.Write(log[:n])
		log = log[n:]
	}
	var err error
	if failed {
		err = errors.New("exit status 1")
	}
	w.finishBuild(err)
	return rec
}

// firstTime returns the time of the first event that has one.
func firstTime(log []byte) time.Time {
	first := time.Now()
	r := &logReader{onBadLine: func(error) {}, onEvent: func(e event) {
		if at := e.eventTime(); !at.IsZero() && at.Before(first) {
			first = at
		}
	}}
	defer r.close()
	_, _ = r.Write(log)
	return first
}

// told is what a record tells that is the same whenever, and by whichever bitbake, the run was.
func told(r Record) Record {
	r.Started, r.Parsed.TookMS, r.Disk, r.Workers, r.Queued = time.Time{}, 0, Disk{}, 0, nil
	r.Parsed.Recipes = 0 // versions keep different caches
	r.Variables = maps.Clone(r.Variables)
	for i := range r.Tasks {
		t := &r.Tasks[i]
		t.StartMS, t.TookMS = 0, 0
		t.Log, t.Critical = strings.TrimRight(t.Log, "0123456789"), false // how long each took differs
	}
	slices.SortFunc(r.Tasks, func(a, b Task) int { return cmp.Or(cmp.Compare(a.Recipe, b.Recipe), cmp.Compare(a.Task, b.Task)) })
	for i := range r.Failures {
		r.Failures[i].Log = strings.TrimRight(r.Failures[i].Log, "0123456789")
	}
	r.Errors, r.Warnings = nil, nil // each version has words of its own
	return r
}

// The five bitbakes' event logs are read as one and the same.
func TestRecordedRuns(t *testing.T) {
	versions, err := filepath.Glob("../testdata/bitbake/recorded/*/fresh.events.gz")
	must(t, err)
	if len(versions) < 5 {
		t.Fatalf("%d versions are recorded; want 1.46, 2.0, 2.8, 2.18 and master's", len(versions))
	}
	for _, run := range runsRecorded {
		golden := filepath.Join("../testdata/bitbake/recorded", run.name+".json")
		var want Record
		if text, err := os.ReadFile(golden); err == nil && !*update {
			must(t, json.Unmarshal(text, &want))
		}
		for i, first := range versions {
			dir := filepath.Dir(first)
			log := unpacked(t, filepath.Join(dir, run.name+".events.gz"))
			console, err := os.ReadFile(filepath.Join(dir, run.name+".txt"))
			must(t, err)
			got := told(watched(t, log, string(console), run.name == "broken"))
			if *update && i == 0 {
				text, err := json.MarshalIndent(got, "", " ")
				must(t, errors.Join(err, os.WriteFile(golden, append(text, '\n'), 0o644)))
				want = got
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("%s of %s: (-want +got)\n%s", run.name, filepath.Base(dir), diff)
			}
			fallsBack(t, run.name+" of "+filepath.Base(dir), want, string(console))
		}
	}
}

// fallsBack reads the console alone, which tells the failures and their logs.
func fallsBack(t *testing.T, name string, want Record, console string) {
	t.Helper()
	got := told(watched(t, nil, console, len(want.Failures) > 0))
	if len(got.Failures) != len(want.Failures) || got.Counts.Failed != want.Counts.Failed || len(got.Tasks) > 0 {
		t.Fatalf("%s, by the console: %d failures, %d counted, %d tasks; want %d, %d and none", name, len(got.Failures), got.Counts.Failed, len(got.Tasks), len(want.Failures), want.Counts.Failed)
	}
	for i, f := range want.Failures {
		if g := got.Failures[i]; g.Recipe != f.Recipe || g.Task != f.Task || g.Log != f.Log || g.Why != f.Why {
			t.Errorf("%s, by the console: failure %+v; want %+v", name, g, f)
		}
	}
}

func FuzzEventLog(f *testing.F) {
	logs, err := filepath.Glob("../testdata/bitbake/recorded/*/again.events.gz")
	if err != nil || len(logs) == 0 {
		f.Fatalf("no recorded event log: %v", err)
	}
	for _, path := range logs {
		for line := range bytes.Lines(unpacked(f, path)) {
			if decodedEvents[classOf(line)] && len(line) < 4000 {
				f.Add(line)
			}
		}
	}
	f.Add([]byte(`{"class": "bb.build.TaskStarted", "vars": "gASVHQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAJpZJSFlFKULg=="}` + "\n"))
	f.Add([]byte(`{"allvariables": {"DISTRO": {"v": "tiny"}}}` + "\n"))
	python, err := startUnpickler()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(python.close)
	f.Fuzz(func(t *testing.T, log []byte) {
		rec := Record{Started: time.Now()}
		w := newWatch(context.Background(), &rec, forecast{Tasks: map[string]int64{}})
		r := &logReader{python: python, onEvent: w.handleEvent, onBadLine: w.noteBadLine}
		_, _ = r.Write(log)
		_, _ = r.Write([]byte("\n"))
		w.finishBuild(nil)
		if len(rec.Tasks) > maxTasks || len(rec.Failures) > maxFailures || len(rec.Warnings) > maxMessages {
			t.Errorf("the record has %d tasks, %d failures; want it bounded", len(rec.Tasks), len(rec.Failures))
		}
		if _, err := rec.renderPage(); err != nil {
			t.Errorf("html: %v", err)
		}
	})
}

func FuzzConsole(f *testing.F) {
	texts, err := filepath.Glob("../testdata/bitbake/recorded/*/*.txt")
	if err != nil || len(texts) == 0 {
		f.Fatalf("no recorded console: %v", err)
	}
	for _, path := range texts {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("NOTE: Running setscene task 6 of 23 (/x/y.bb:do_a)\nNOTE: Running task 999999999 of 0 (/x/z.bb:do_b)\n")
	f.Fuzz(func(t *testing.T, text string) {
		rec := Record{Started: time.Now()}
		w := newWatch(context.Background(), &rec, forecast{Tasks: map[string]int64{}})
		for line := range strings.Lines(text) {
			w.readConsoleLine(strings.TrimSuffix(line, "\n"))
		}
		w.finishBuild(nil)
		if len(rec.Tasks) > maxTasks || len(rec.Failures) > maxFailures || len(rec.Errors) > maxMessages {
			t.Errorf("the record has %d tasks, %d failures; want it bounded", len(rec.Tasks), len(rec.Failures))
		}
	})
}
