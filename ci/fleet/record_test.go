package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/report"
	"slipway/images"
)

// runReal calls Run in this process.
func (p *simulation) runReal(request Request) (Outcome, string, error) {
	var out strings.Builder
	outcome, err := Run(p.t.Context(), &out, p.opt, p.spec, request)
	return outcome, out.String(), err
}

// --failed continues with the same content under any name, and refuses other content.
func TestFailedWantsTheSameContent(t *testing.T) {
	p := simulate(t, 1, faultFails)
	if outcome, _, err := p.runReal(p.request); err == nil || outcome.countKinds().doneCount() != 2 {
		t.Fatalf("%v, %s; want one board that fails", err, outcome.countKinds())
	}
	p.request.Failed = true
	data, err := os.ReadFile(p.request.File)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copied := filepath.Join(t.TempDir(), "another name")
	write(copied, data)
	suite, err := os.ReadFile(p.Suite)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(*Request)
		want   string
	}{
		{"the same content under another name", func(a *Request) { a.File = copied }, ""},
		{"another file under the same name", func(*Request) { write(p.request.File, append(bytes.Clone(data[1:]), 'x')) }, "the file "},
		{"another place", func(a *Request) { a.To = "/data/else" }, "--to is"},
		{"another mode", func(a *Request) { a.Rights.Mode = 0o755 }, "--mode is"},
		{"another owner", func(a *Request) { a.Rights.Owner = "app" }, "--owner is"},
		{"without suites", func(a *Request) { a.Unproved = true }, "--unproved is"},
		{"another suite under the same name", func(*Request) { write(p.Suite, append(bytes.Clone(suite), "  'true': {}\n"...)) }, "the suites "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			request := p.request
			tt.change(&request)
			outcome, _, err := p.runReal(request)
			if tt.want != "" && (err == nil || len(outcome.Results) > 0 || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Run = %v; want it refused with %q", err, tt.want)
			}
			if tt.want == "" && len(outcome.Results) != len(p.Boards) {
				t.Errorf("Run = %v; want that it goes on", err)
			}
			write(p.request.File, data)
			write(p.Suite, suite)
		})
	}
}

// A run closes its files when it ends.
func TestRecordIsClosed(t *testing.T) {
	p := simulate(t, 1)
	if _, _, err := p.runReal(p.request); err != nil {
		t.Fatal(err)
	}
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if name, err := os.Readlink(fd); err == nil && strings.HasSuffix(name, "/"+journalName) {
			t.Errorf("%s is open", name)
		}
	}
}

// A host with another address in the inventory is another board.
func TestFailedOfAnotherAddress(t *testing.T) {
	p := simulate(t, 3)
	p.request.Limit = "all:!board-002"
	if _, _, err := p.runReal(p.request); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(p.request.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	swapped := strings.NewReplacer("board-001:", "board-002:", "board-002:", "board-001:").Replace(string(text))
	if err := os.WriteFile(p.request.Inventory, []byte(swapped), 0o600); err != nil {
		t.Fatal(err)
	}
	p.request.Failed, p.request.Limit = true, ""
	outcome, _, err := p.runReal(p.request)
	if err != nil || outcome.countKinds().doneCount() != 2 || !p.BoardsWithFile(p.request.To, p.sum)["board-002"] {
		t.Errorf("%v, %s; want the board that has the name board-001 now done too", err, outcome.countKinds())
	}
	if took := p.CountFiles(p.request.To); took["board-000"] != 1 {
		t.Errorf("files that came: %v; want one at board-000", took)
	}
}

// A file that changes while boards get it ends the run, as its digest does not describe
// what those boards have.
func TestFileChangesMeanwhile(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(file, suite string) error
		want   string // kinds
	}{
		"touched": {func(file, _ string) error { return os.Chtimes(file, time.Time{}, time.Unix(1, 0)) }, "3 passed"},
		"written": {func(file, _ string) error { return os.WriteFile(file, []byte("other"), 0o600) }, "1 passed, 1 not begun, 1 file changed"},
		"replaced": {func(file, _ string) error {
			return errors.Join(os.WriteFile(file+".new", []byte("other"), 0o600), os.Rename(file+".new", file))
		}, "1 passed, 1 not begun, 1 file changed"},
		"before":    {func(file, _ string) error { return os.WriteFile(file, []byte("other"), 0o600) }, "3 not begun"},
		"removed":   {func(file, _ string) error { return os.Remove(file) }, "1 passed, 1 not begun, 1 file changed"},
		"the suite": {func(_, suite string) error { return os.WriteFile(suite, []byte("command: {'true': {}}\n"), 0o600) }, "1 passed, 1 not begun, 1 file changed"},
	} {
		t.Run(name, func(t *testing.T) {
			p := simulate(t, 3)
			p.request.Parallel = 1
			plan, _, err := newPlan(t.Context(), p.opt, p.spec, p.request)
			if err != nil {
				t.Fatal(err)
			}
			defer plan.close()
			plan.limit = func(ctx context.Context, j *job) (context.Context, context.CancelFunc) {
				if j.host.Name == "board-001" && name != "before" { // it was begun
					if err := tt.change(p.request.File, p.Suite); err != nil {
						t.Error(err)
					}
				}
				return withBoardLimit(ctx, j)
			}
			if err := plan.prepareRun(t.Context()); err != nil {
				t.Fatal(err)
			}
			if name == "before" {
				if err := tt.change(p.request.File, p.Suite); err != nil {
					t.Fatal(err)
				}
			}
			var said strings.Builder
			outcome, err := plan.runFleet(t.Context(), &said)
			if all := fmt.Sprint(said.String(), err); err != nil && (strings.Contains(all, "with --failed") || strings.Count(all, "run it without --failed") < 2) {
				t.Errorf("--failed would be refused, and it says:\n%s", all)
			}
			if got := outcome.countKinds().String(); got != tt.want || (err == nil) != (tt.want == "3 passed") {
				t.Errorf("%v, %s (stopped: %s); want %s", err, got, outcome.Stopped, tt.want)
			}
		})
	}
}

// A second run is refused while one runs, and says which. The record of the first one is complete.
func TestTwoRuns(t *testing.T) {
	p := simulate(t, 1, faultSlow)
	p.request.Parallel = 1
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, io.Discard, p.opt, p.spec, p.request)
		ended <- err
	}()
	<-p.Boards[1].Slowed
	_, _, err := p.runReal(p.request)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d, since 20", os.Getpid())) || !strings.Contains(err.Error(), "next: repeat the line  # when that run has ended") {
		t.Errorf("a second run: %v; want it refused, with who is at work", err)
	}
	other := p.request
	other.File, other.To, other.Limit = "", "", "board-000"
	if _, _, err := p.runReal(other); err != nil {
		t.Errorf("fleet smoke beside it: %v", err)
	}
	stop()
	<-ended
	if last, err := p.readOutcome(); err != nil || last.countKinds().String() != "1 passed, 1 not begun, 1 stopped" {
		t.Errorf("the first run's record: %v, %s", err, last.countKinds())
	}
}

// A run ends when its journal cannot be written. What was recorded stays valid.
func TestFullDisk(t *testing.T) {
	p := simulate(t, 40)
	if err := os.MkdirAll(p.opt.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", p.opt.Dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(p.opt.Dir, unix.MNT_DETACH) })
	plan, _, err := newPlan(t.Context(), p.opt, p.spec, p.request)
	if err != nil {
		t.Fatal(err)
	}
	defer plan.close()
	ballast := filepath.Join(p.opt.Dir, "ballast")
	plan.limit = func(ctx context.Context, j *job) (context.Context, context.CancelFunc) {
		if j.host.Name == "board-012" {
			_ = os.WriteFile(ballast, make([]byte, 4<<20), 0o600) // as much as fits
		}
		return withBoardLimit(ctx, j)
	}
	if err := plan.prepareRun(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pageName, junitName, outcomeName} { // of an earlier run
		if err := errors.Join(os.MkdirAll(p.outputDir(), 0o755), os.WriteFile(filepath.Join(p.outputDir(), name), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var said strings.Builder
	outcome, err := plan.runFleet(t.Context(), &said)
	if pages, _ := filepath.Glob(filepath.Join(p.outputDir(), "*.[hx]*ml")); len(pages) > 0 || strings.Contains(said.String(), "report: /") || !strings.Contains(said.String(), "report: none could be written; the record is "+p.outputDir()) {
		t.Errorf("the files %q are there, and it says:\n%s", pages, &said)
	}
	if n := outcome.countKinds(); !errors.Is(err, unix.ENOSPC) || n[NotBegun] == 0 || !strings.Contains(outcome.Stopped, "cannot be written") {
		t.Fatalf("%v, %s, stopped: %q; want a run that ends for the full disk", err, n, outcome.Stopped)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	p.request.Failed = true
	if outcome, _, err := p.runReal(p.request); err != nil || outcome.countKinds().doneCount() != 40 {
		t.Errorf("--failed: %v, %s; want all done", err, outcome.countKinds())
	}
	for name, n := range p.CountFiles(p.request.To) {
		if n != 1 {
			t.Errorf("%s was given the file %d times", name, n)
		}
	}
}

// A run that cannot write its record begins nothing, and leaves that of the last run.
func TestFullDiskAtTheBeginning(t *testing.T) {
	p := simulate(t, 3)
	if err := os.MkdirAll(p.opt.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", p.opt.Dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(p.opt.Dir, unix.MNT_DETACH) })
	if _, _, err := p.runReal(p.request); err != nil {
		t.Fatal(err)
	}
	read := func() (all string) {
		for _, name := range []string{journalName, outcomeName, junitName, pageName} {
			data, err := os.ReadFile(filepath.Join(p.outputDir(), name))
			all += fmt.Sprintf("%s %v %x\n", name, err, sha256.Sum256(data))
		}
		return all
	}
	before := read()
	_ = os.WriteFile(filepath.Join(p.opt.Dir, "ballast"), make([]byte, 4<<20), 0o600) // as much as fits
	_, out, err := p.runReal(p.request)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "no board was asked") || strings.Contains(out, "report: ") {
		t.Errorf("Run = %v\n%s", err, out)
	}
	if after := read(); after != before || strings.Contains(after, "no such file") {
		t.Errorf("the record was\n%sand is\n%s", before, after)
	}
}

// A journal that was cut at any byte either names all boards, of which none is done that was
// not, or is refused.
func TestJournalCutAnywhere(t *testing.T) {
	p := simulate(t, 4, faultFails)
	if _, _, err := p.runReal(p.request); err == nil {
		t.Fatal("no board fails")
	}
	file := filepath.Join(p.outputDir(), journalName)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := parseJournal(text)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := range text {
		h, err := parseJournal(text[:n])
		if err != nil {
			refused++
			continue
		}
		if len(h.outcome.Results) != len(p.Boards) {
			t.Fatalf("cut at byte %d: %d boards; want %d", n, len(h.outcome.Results), len(p.Boards))
		}
		for _, r := range h.outcome.Results {
			if i, known := whole.at[r.Host]; !known || r.Kind.Done() && !whole.outcome.Results[i].Kind.Done() {
				t.Fatalf("cut at byte %d: %+v", n, r)
			}
		}
	}
	if refused == 0 || refused == len(text) {
		t.Errorf("%d of %d cuts are refused", refused, len(text))
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	p.request.Failed = true
	for n := range len(lines) {
		cut := bytes.Join(lines[:n], nil)
		if err := os.WriteFile(file, cut, 0o600); err != nil {
			t.Fatal(err)
		}
		outcome, _, err := p.runReal(p.request)
		inHead := n < 1+len(p.Boards)
		if inHead && (err == nil || len(outcome.Results) > 0 || !strings.Contains(err.Error(), "\nnext: repeat the line without --failed")) {
			t.Errorf("--failed after %d lines: %v, %s; want it refused", n, err, outcome.countKinds())
		}
		if left, err := os.ReadFile(file); inHead && (err != nil || !bytes.Equal(left, cut)) {
			t.Errorf("--failed after %d lines changed the journal: %v", n, err)
		}
		if !inHead && len(outcome.Results) != len(p.Boards) {
			t.Errorf("--failed after %d lines: %v, %s; want all boards", n, err, outcome.countKinds())
		}
	}
}

// Concurrent calls of appendEntry share a sync.
func TestJournalSyncsTogether(t *testing.T) {
	dir := t.TempDir()
	j, err := newJournal(dir, []entry{{Version: journalVersion, Head: 1, Run: &Outcome{Started: time.Now().UTC()}}}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	const writers, each = 50, 10
	var syncs atomic.Int64
	sync1 := j.sync
	j.sync = func() error {
		syncs.Add(1)
		time.Sleep(2 * time.Millisecond) // a disk
		return sync1()
	}
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for range each {
				if err := j.appendEntry(entry{Host: fmt.Sprint("board", i), Note: &Note{}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := syncs.Load(); n > writers*each/5 {
		t.Errorf("%d lines cost %d syncs", writers*each, n)
	}
	if h, err := readHistory(dir); err != nil || len(h.notes) != writers {
		t.Errorf("the journal: %v, %d notes; want %d", err, len(h.notes), writers)
	}
	failed := errors.New("it failed")
	j.sync = func() error { return failed }
	for range 2 {
		if err := j.appendEntry(entry{Host: "board", Note: &Note{}}); !errors.Is(err, failed) {
			t.Errorf("appendEntry = %v; want %v, and nothing after it", err, failed)
		}
		j.sync = func() error { return nil }
	}
}

const goodJournal = `{"at":"2026-11-23T10:00:00Z","journal":2,"head":2,"run":{"board":"b","work":"smoke","did":{"command":"smoke","sent":null},"inventory":"i","started":"2026-11-23T10:00:00Z","elapsedMs":0,"results":null}}
{"at":"2026-11-23T10:00:00Z","host":"one","result":{"host":"one","address":"a","kind":"not begun","elapsedMs":0,"passed":0,"checks":0,"tries":0}}
{"at":"2026-11-23T10:00:01Z","host":"one","begun":1}
`

func TestParseJournal(t *testing.T) {
	ended := `{"at":"2026-11-23T10:00:02Z","host":"one","result":{"host":"one","address":"a","kind":"passed","elapsedMs":1,"passed":2,"checks":2,"tries":1}}` + "\n"
	for _, tt := range []struct{ name, text, want string }{ // want is the kind of the one result, or in the error
		{"begun", goodJournal, "stopped"},
		{"ended", goodJournal + ended, "passed"},
		{"a torn line", goodJournal + ended[:50], "stopped"},
		{"a line that lacks its end alone", goodJournal + ended[:len(ended)-1], "stopped"},
		{"begun again", goodJournal + ended + strings.Replace(strings.Split(goodJournal, "\n")[2], ":1}", ":2}", 1) + "\n", "stopped"},
		{"empty", "", "line 1: no run"},
		{"garbage", strings.Replace(goodJournal, `"begun":1`, `"begun":`, 1) + ended, "line 3: "},
		{"zeros", goodJournal + "\x00\x00\x00\n", "line 4: "},
		{"an empty line", goodJournal + "\n", "line 4: "},
		{"a field of another Slipway", goodJournal + `{"host":"one","beg":1}` + "\n", "line 4: "},
		{"two values", goodJournal + strings.TrimSpace(ended) + "{}\n", "line 4: more than one value"},
		{"nothing said", goodJournal + `{"host":"one"}` + "\n", "line 4: it says nothing"},
		{"no host", goodJournal + `{"begun":1}` + "\n", "line 4: no host"},
		{"another host", goodJournal + `{"host":"two","begun":1}` + "\n", "line 4: host two"},
		{"another host's result", goodJournal + strings.Replace(ended, `"host":"one"`, `"host":"two"`, 1), "line 4: the result of two"},
		{"an unknown kind", goodJournal + strings.Replace(ended, "passed", "lucky", 1), `line 4: the result of one is of "one" and of kind "lucky"`},
		{"another version", strings.Replace(goodJournal, `"journal":2`, `"journal":1`, 1), "line 1: version 1"},
		{"a head that is cut", strings.Replace(goodJournal, `"head":2`, `"head":4`, 1), "it is cut: it holds only 3 of the 4 lines"},
		{"a head of no length", strings.Replace(goodJournal, `"head":2,`, "", 1), "it is cut: it holds only 3 of the 0 lines"},
		{"a head whose last line is torn", goodJournal[:strings.Index(goodJournal, `,"tries":0`)], "it is cut: it holds only 1 of the 2 lines"},
		{"its length in a later line", goodJournal + strings.Replace(ended, `"host"`, `"head":99,"host"`, 1), "passed"},
		{"two runs", goodJournal + goodJournal, "line 4: the run must be in the first line"},
		{"no run", ended, "line 1: the run must be in the first line"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, err := parseJournal([]byte(tt.text))
			if err != nil {
				if !strings.HasPrefix(err.Error(), tt.want) {
					t.Errorf("parseJournal = %v; want %q", err, tt.want)
				}
				return
			}
			if len(h.outcome.Results) != 1 || string(h.outcome.Results[0].Kind) != tt.want {
				t.Errorf("results %+v; want one that is %q", h.outcome.Results, tt.want)
			}
		})
	}
}

// A parsed journal can be written, and then has the same content.
func FuzzParseJournal(f *testing.F) {
	f.Add([]byte(goodJournal))
	f.Add([]byte(goodJournal + `{"at":"2026-11-23T10:00:02Z","host":"two","note":{"bundle":"b","address":"a","from":{"slot":"A"},"to":{"slot":"B","installed":"x"}}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := parseJournal(text)
		if err != nil {
			return
		}
		var again bytes.Buffer
		enc := json.NewEncoder(&again)
		for _, e := range h.journalEntries() {
			if err := enc.Encode(e); err != nil {
				t.Skip(err) // a year that JSON knows no form of
			}
		}
		g, err := parseJournal(again.Bytes())
		if err != nil {
			t.Fatalf("%v in\n%s", err, again.String())
		}
		if len(g.outcome.Results) != len(h.outcome.Results) || len(g.notes) != len(h.notes) {
			t.Errorf("%d results and %d notes; want %d and %d", len(g.outcome.Results), len(g.notes), len(h.outcome.Results), len(h.notes))
		}
	})
}

const childVariable = "SLIPWAY_FLEET_CHILD"

// childWork is the work of a child process, which the tests kill.
type childWork struct {
	Dir                         string
	Spec                        images.Spec
	Inventory, File, To, Update string
	Parallel                    int
	Failed                      bool
}

func runChild(asked string) int {
	var work childWork
	err := json.Unmarshal([]byte(asked), &work)
	if err == nil {
		_, err = Run(context.Background(), os.Stdout, images.Options{Dir: work.Dir}, work.Spec, Request{
			Inventory: work.Inventory, File: work.File, To: work.To, Update: work.Update, Parallel: work.Parallel, Failed: work.Failed,
		})
	}
	if err != nil {
		fmt.Println(err)
	}
	return report.ExitStatus(err)
}

// runProcess does the work in a child process and kills it after a time.
func (p *simulation) runProcess(request Request, after time.Duration) (out string, killed bool) {
	p.t.Helper()
	work, err := json.Marshal(childWork{p.opt.Dir, p.spec, request.Inventory, request.File, request.To, request.Update, request.Parallel, request.Failed})
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(work))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	defer time.AfterFunc(after, func() { _ = cmd.Process.Kill() }).Stop()
	err = cmd.Wait()
	var exit *exec.ExitError
	return said.String(), errors.As(err, &exit) && exit.ExitCode() < 0
}

// untilEnd starts child processes and kills each at a random moment, until one ends by
// itself. It returns the output of that one and the number of killed ones.
func (p *simulation) untilEnd(random *rand.Rand, most time.Duration, begin, goOn Request) (string, int) {
	p.t.Helper()
	for n := 0; ; n++ {
		request := begin
		if _, err := os.Stat(filepath.Join(p.outputDir(), journalName)); err == nil {
			request = goOn
		}
		after := time.Duration(random.Int64N(int64(most))) + 1
		out, killed := p.runProcess(request, after)
		if !killed {
			return out, n
		}
		most += most / 10 // a busy machine may have got nowhere
	}
}

// runRounds starts each round with new boards, until a number of processes were killed: a
// few, or many in the long form.
func runRounds(t *testing.T, round func(t *testing.T, random *rand.Rand) (killed int)) {
	t.Helper()
	wanted := 4
	if os.Getenv("SLIPWAY_LONG") != "" {
		wanted = 60
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for n, killed := 0, 0; killed < wanted && n < 10*wanted && !t.Failed(); n++ {
		t.Run(fmt.Sprint("round ", n), func(t *testing.T) { killed += round(t, random) })
	}
}

// A deploy that is killed at any moment and continued sends each board one file and keeps
// its results.
func TestKilledDeploy(t *testing.T) {
	runRounds(t, func(t *testing.T, random *rand.Rand) int {
		p := simulate(t, 24, faultFails, faultNoLogin)
		again := p.request
		again.Failed = true
		out, killed := p.untilEnd(random, 700*time.Millisecond, p.request, again)
		t.Logf("%d kills, then\n%s", killed, out)
		for name, n := range p.CountFiles(p.request.To) {
			want := 1
			if name == p.Boards[26].Name {
				want = 0
			}
			if n != want {
				t.Errorf("%s was given the file %d times; want %d", name, n, want)
			}
		}
		last, err := p.readOutcome()
		if n := last.countKinds(); err != nil || n.doneCount() != 26 || n[Checks] != 1 || n[Login] != 1 {
			t.Errorf("%v, %s; want 26 boards done, and what the others failed for", err, n)
		}
		p.checkFiles(last)
		return killed
	})
}

// An update that is killed at any moment, and started anew or continued, updates no board
// that runs the new system.
func TestKilledUpdate(t *testing.T) {
	for name, failed := range map[string]bool{"begun again": false, "gone on with": true} {
		t.Run(name, func(t *testing.T) {
			runRounds(t, func(t *testing.T, random *rand.Rand) int {
				p := simulateUpdate(t, 12, nil)
				p.request.Parallel = 3
				again := p.request
				again.Failed = failed
				out, killed := p.untilEnd(random, 1200*time.Millisecond, p.request, again)
				t.Logf("%d kills, then\n%s", killed, out)
				p.wantUpdated(12)
				if last, err := p.readOutcome(); err != nil || last.countKinds().doneCount() != 12 {
					t.Errorf("%v, %s; want 12 boards done", err, last.countKinds())
				}
				p.wantAlready(12)
				return killed
			})
		})
	}
}

// wantAlready checks that another run finds the bundle on all boards and writes nothing.
func (p *simulation) wantAlready(n int) {
	p.t.Helper()
	for _, dryRun := range []bool{false, true} {
		request := p.request
		request.DryRun = dryRun
		if outcome, _, err := p.runReal(request); err != nil || outcome.countKinds()[Already] != n {
			p.t.Errorf("--dry-run=%v: %v, %s; want that all of them have it", dryRun, err, outcome.countKinds())
		}
	}
	p.wantUpdated(n)
}

// wantUpdated checks that boards run the bundle, committed, and that none was updated while
// it ran the bundle.
func (p *simulation) wantUpdated(n int) {
	p.t.Helper()
	digest, err := digestOf(p.t.Context(), p.request.Update)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, b := range p.Boards[:n] {
		if u := b.Updated(); u.Runs != digest || !u.Good || u.Again > 0 || u.Installed == 0 {
			p.t.Errorf("%s: %+v; want %.12s to run, committed, and never installed again", b.Name, u, digest)
		}
	}
}

// An artifact is compared by its own digest and that of its container. It is not sent if
// these differ from what the build recorded.
func TestFailedOfAnotherArtifact(t *testing.T) {
	p := simulate(t, 0, faultNoLogin)
	p.request.File, p.request.To, p.request.Deploy, p.request.Limit = "", "", true, "board-000"
	p.spec.Deploy.Dir = "/data/deployed"
	dir := filepath.Join(p.opt.Dir, p.spec.Board)
	build := func(container, said string) {
		t.Helper()
		sum := sha256.Sum256([]byte(said))
		a := images.Artifact{Board: p.spec.Board, Files: []images.File{{Kind: images.Container, Name: "c.tar", SizeBytes: int64(len(container)), SHA256: hex.EncodeToString(sum[:])}}}
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "c.tar"), []byte(container), 0o600), a.Save(dir)); err != nil {
			t.Fatal(err)
		}
	}
	build("one", "one")
	if outcome, _, err := p.runReal(p.request); outcome.countKinds()[Login] != 1 {
		t.Fatalf("%v, %s; want a board that lets nobody in", err, outcome.countKinds())
	}
	p.request.Failed = true
	if outcome, _, err := p.runReal(p.request); outcome.countKinds()[Login] != 1 {
		t.Errorf("--failed: %v, %s; want that it goes on", err, outcome.countKinds())
	}
	for want, said := range map[string]string{"the artifact ": "two", "build again": "one"} {
		build("two", said)
		if outcome, _, err := p.runReal(p.request); err == nil || !strings.Contains(err.Error(), want) || len(outcome.Results) > 0 {
			t.Errorf("--failed = %v; want it refused with %q", err, want)
		}
	}
}

// There are never two attempts at once on a board that has two names. Suites may run twice.
func TestTwoNamesOfOneBoard(t *testing.T) {
	p := simulate(t, 2)
	text, err := os.ReadFile(p.request.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	_, second, _ := strings.Cut(string(text), "    board-001:\n")
	for name, tt := range map[string]struct {
		hosts string
		want  string // in the refusal
	}{
		"an address": {string(text) + "    other:\n" + second, "board-001 and other have the address 127.77.0.2, port "},
		"a serial": {
			strings.ReplaceAll(string(text), "      ansible_port:", "      slipway_serial: S1\n      ansible_port:"),
			"board-000 and board-001 have the serial S1",
		},
		"port 22":       {"board ansible_host=Lab\nother ansible_host=lab ansible_port=22\n", "board and other have the address lab, port 22"},
		"jump hosts":    {"a ansible_host=h ansible_ssh_common_args='-J one'\nb ansible_host=h ansible_ssh_common_args='-J two'\n", ""},
		"one jump host": {"a ansible_host=h ansible_ssh_common_args='-J one'\nb ansible_host=h ansible_ssh_common_args='-J one'\n", "port 22 through one"},
	} {
		t.Run(name, func(t *testing.T) {
			request := p.request
			request.Inventory = filepath.Join(t.TempDir(), "hosts")
			if err := os.WriteFile(request.Inventory, []byte(tt.hosts), 0o600); err != nil {
				t.Fatal(err)
			}
			_, _, err := newPlan(t.Context(), p.opt, p.spec, request)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "because of 1 host: ") || !strings.Contains(err.Error(), "\nnext: fleet list "+request.Inventory)) {
				t.Errorf("deploy: %v; want it refused with %q", err, tt.want)
			}
			request.File, request.To = "", ""
			if _, _, err := newPlan(t.Context(), p.opt, p.spec, request); err != nil {
				t.Errorf("smoke: %v", err)
			}
		})
	}
}

// A board that got another name since its update is not updated again. --failed reports the
// hosts that it leaves out.
func TestRenamedBoards(t *testing.T) {
	p := simulateUpdate(t, 3, nil)
	if outcome, _, err := p.runReal(p.request); err != nil || outcome.countKinds()[Passed] != 3 {
		t.Fatalf("%v, %s", err, outcome.countKinds())
	}
	text, err := os.ReadFile(p.request.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	swapped := strings.NewReplacer("board-000:", "board-001:", "board-001:", "board-000:", "board-002:", "new:").Replace(string(text))
	if err := os.WriteFile(p.request.Inventory, []byte(swapped), 0o600); err != nil {
		t.Fatal(err)
	}
	p.wantAlready(3)
	p.request.Limit = "board-000"
	if _, _, err := p.runReal(p.request); err != nil {
		t.Fatal(err)
	}
	p.request.Limit, p.request.Failed = "", true
	if _, out, err := p.runReal(p.request); err != nil || !strings.Contains(out, "leaves out hosts that the last run did not have (2): board-001, new") {
		t.Errorf("--failed: %v in\n%s", err, out)
	}
}
