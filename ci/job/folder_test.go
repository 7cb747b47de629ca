package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"slipway/ci/fleet"
)

func TestOrderAndResultComeBack(t *testing.T) {
	s := simulate(t, Step{Do: Flash, Token: "a,b"}, Step{Do: Update, Bundle: someDigest, Downgrade: true})
	s.order.How = How{Device: "/dev/sdx", Virtual: true, Power: []string{"a", "b c"}}
	s.begin()
	want := s.order
	want.V = Version
	got, err := s.folder.Order()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Order = %v (-want +got):\n%s", err, diff)
	}
	s.order.Job.ID = NewID() // another folder's
	if err := s.folder.Begin(s.order); err != nil {
		t.Fatal(err)
	}
	if _, err := s.folder.Order(); err == nil || !strings.Contains(err.Error(), "it is of the job "+s.order.Job.ID) {
		t.Errorf("Order of another job = %v; want an error that names it", err)
	}
}

func TestFolders(t *testing.T) {
	dir := t.TempDir()
	ids := []string{"06FQ3C8T9KA2M4V7", "06FQ3C8T9KA2M4V8"}
	for _, name := range append(slices.Clone(ids), "lost+found", "06FQ3C8T9KA2M4V7.old") {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Folders(dir)
	if want := []Folder{Folder(filepath.Join(dir, ids[0])), Folder(filepath.Join(dir, ids[1]))}; !slices.Equal(got, want) || err != nil {
		t.Errorf("Folders = %v, %v; want %v", got, err, want)
	}
	if got, err := Folders(filepath.Join(dir, "none")); len(got) > 0 || err != nil {
		t.Errorf("Folders of nothing = %v, %v; want none", got, err)
	}
}

// On a full disk no order appears, so nothing is begun.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small tmpfs; run the tests by sudo")
	}
	s := simulate(t, Step{Do: Smoke})
	jobs := filepath.Dir(string(s.folder))
	if err := os.MkdirAll(jobs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", jobs, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	defer func() {
		err := unix.Unmount(jobs, 0)
		for end := time.Now().Add(patience); errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = unix.Unmount(jobs, 0) {
			time.Sleep(5 * time.Millisecond) // the job's process ends after its result
		}
		if err != nil {
			t.Error(err)
		}
	}()
	filler := filepath.Join(jobs, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v; want %v", err, unix.ENOSPC)
	}
	if err := s.folder.Begin(s.order); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "\nnext: df -h ") {
		t.Errorf("Begin = %v; want %v, with df as the next step", err, unix.ENOSPC)
	}
	if state, _, err := s.folder.State(); state != None || err != nil {
		t.Errorf("State = %s, %v; want none", state, err)
	}
	if err := Start(t.Context(), s.folder, s.self); err == nil || len(s.calls()) > 0 {
		t.Errorf("Start = %v, after %q; want an error, and nothing begun", err, s.words())
	}
	if err := s.folder.Stop(Gently); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stop without a folder = %v; want no file", err)
	}
	if err := errors.Join(os.Mkdir(string(s.folder), 0o755), s.folder.Stop(Gently), os.RemoveAll(string(s.folder))); err != nil {
		t.Errorf("Stop on a full disk = %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.begin()
	s.start()
	if r := s.result(); r.Kind != fleet.Passed {
		t.Errorf("result with space = %+v; want passed", r)
	}
}

func TestRefused(t *testing.T) {
	good := simulate(t, Step{Do: Smoke}).order.Job
	for want, change := range map[string]func(*Job){
		"artifact": func(j *Job) { j.Artifact = "registry.example.com/lab/images:v1" },
		"the artifact \"--into=/x@" + someDigest[:25]: func(j *Job) { j.Artifact = "--into=/x@" + someDigest },
		"station":        func(j *Job) { j.Station = "a b" },
		"name \"*\"":     func(j *Job) { j.Name = "*" },
		"name \"../up\"": func(j *Job) { j.Name = "../up" },
		"name \"..\"":    func(j *Job) { j.Name = ".." },
		"board \"a/b\"":  func(j *Job) { j.Board = "a/b" },
		"board \"-h\"":   func(j *Job) { j.Board = "-h" },
		"ID":             func(j *Job) { j.ID = "../../etc" },
		"project":        func(j *Job) { j.Project = "boards.tar" },
		"0 steps":        func(j *Job) { j.Steps = nil },
		"more than 0":    func(j *Job) { j.LimitMS = -1 },
		"unknown":        func(j *Job) { j.Steps = []Step{{Do: "rm -rf"}} },
		"has a bundle":   func(j *Job) { j.Steps = []Step{{Do: Update}} },
		"the bundle":     func(j *Job) { j.Steps = []Step{{Do: Update, Bundle: "/etc/passwd"}} },
		"confirmation":   func(j *Job) { j.Steps = []Step{{Do: Flash, Token: "a b"}} },
	} {
		j := good
		change(&j)
		err := j.Check()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 250 {
			t.Errorf("Check = %v; want one sentence about %s", err, want)
		}
		if begun := Folder(filepath.Join(t.TempDir(), "x")).Begin(Order{Job: j}); begun == nil || begun.Error() != err.Error() {
			t.Errorf("Begin = %v; want %v", begun, err)
		}
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for want, data := range map[string]string{
		"version 2 is made by a newer Slipway": `{"v":2}`,
		"the version 0":                        `{}`,
		"longer than 65536 bytes":              `{"v":1,"id":"` + strings.Repeat("x", 65<<10) + `"}`,
		"unexpected string":                    `{"v":1,"limitMs":"1h"}`,
		"unexpected end of JSON":               `{"v":1`,
		"after top-level value":                `{"v":1} {}`,
	} {
		if _, err := Parse[Job]([]byte(data)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Parse = %v; want %s", err, want)
		}
	}
	for _, device := range []string{"--raw", "/dev/sda,/dev/sdb"} {
		if err := (Order{Job: good, How: How{Device: device}}).check(); err == nil {
			t.Errorf("a device %s was accepted", device)
		}
	}
}

func fuzzForm[F form](f *testing.F, seeds ...F) {
	for _, seed := range seeds {
		data, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"v":1,"steps":[{"do":"flash"}],"labels":[""],"claim":null,"epoch":-1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		one, err := Parse[F](data)
		if err != nil {
			return
		}
		again, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		two, err := Parse[F](again)
		last, _ := json.Marshal(two)
		if err == nil && !bytes.Equal(again, last) || err != nil && len(again) <= maxFormBytes {
			t.Errorf("parsed again: %v\n%s\n%s", err, again, last)
		}
	})
}

func someJob() Job {
	return Job{V: 1, ID: "06FQ3C8T9KA2M4V7", Station: "bench-3", Name: "lab3-07", Board: "orin-lab", Artifact: "r/i@" + someDigest, Steps: []Step{{Do: Smoke}}, LimitMS: 1, StartWithinMS: 1}
}

func FuzzJob(f *testing.F)     { fuzzForm(f, someJob()) }
func FuzzBoard(f *testing.F)   { fuzzForm(f, Board{V: 1, Name: "a", Last: &Last{Kind: fleet.Passed}}) }
func FuzzStation(f *testing.F) { fuzzForm(f, Station{V: 1, Name: "a", Epoch: 3}) }

// An order that is accepted makes lines in which no word of a hub stands for a flag.
func FuzzOrder(f *testing.F) {
	data, err := json.Marshal(Order{V: 1, Job: someJob(), How: How{Inventory: "all:", Device: "/dev/sdx", Power: []string{"p"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(bytes.Replace(data, []byte(`"smoke"`), []byte(`"flash","token":"--blind"`), 1))
	f.Add(bytes.Replace(data, []byte(`"smoke"`), []byte(`"place","count":7`), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := parseOrder(data)
		if err != nil {
			return
		}
		if err := o.Job.Check(); err != nil {
			t.Error(err)
		}
		if o.Job.limit() <= 0 || o.Job.limit() > longestLimit {
			t.Errorf("limit = %v", o.Job.limit())
		}
		o.How.Artifact = "" // a folder of this machine
		lines, _ := Lines(o)
		if pull, ok := Pull(o); ok {
			lines = append(lines, pull)
		}
		flags := []string{"--into", "--json", "--yes", "--board-limit", "--downgrade", "--boards", "--count"}
		for _, l := range lines {
			for _, word := range l.Argv {
				if flag, _, _ := strings.Cut(word, "="); !l.Own && strings.HasPrefix(word, "-") && !slices.Contains(flags, flag) {
					t.Errorf("%q has the flag %s", l.Argv, word)
				}
			}
		}
	})
}

// A card that is accepted has a name without a way out of its place, and an entry that others can read.
func FuzzCard(f *testing.F) {
	entry := []byte(`{"verdict":"PASS","taken":true,"row":"n1","stamp":"00","began":"2026-11-30T09:00:00Z","device":{"path":"/dev/sda"}}`)
	f.Add("2026-11-30/091502.123-mmc0.json", entry)
	f.Add("2026-11-30/../x.json", entry)
	f.Add("2026-11-30/a.json", []byte(`{"verdict":"","began":null}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		e, err := Card{Place: "line-1", Name: name, Entry: data}.Check()
		if err != nil {
			return
		}
		if day, file, _ := strings.Cut(name, "/"); len(day) != 10 || strings.ContainsAny(file, "/\x00\n") || e.Verdict == "" || e.Row != "" && e.Taken && e.Stamp == "" {
			t.Errorf("%q is a card: %+v", name, e)
		}
		if again, err := json.Marshal(e); err != nil {
			t.Errorf("%s: %v %s", data, err, again)
		}
	})
}

func FuzzResult(f *testing.F) {
	data, err := json.Marshal(Result{Result: fleet.Result{Host: "a", Kind: fleet.Checks}, Steps: []StepResult{{Do: Smoke, Status: 4}}, Attempts: 2})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"kind":"","steps":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseResult(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil || r.Kind == "" {
			t.Fatalf("a result of kind %q: %v", r.Kind, err)
		}
		if _, err := parseResult(again); err != nil {
			t.Errorf("parsed again: %v\n%s", err, again)
		}
	})
}
