package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"slipway/ci/fleet"
	"slipway/flash/trust"
	"slipway/images"
	"slipway/layers/localfile"
)

const someDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// words returns the argv of all calls, with the simulation's folder as DIR.
func (s *simulation) words() (all []string) {
	for _, c := range s.calls() {
		all = append(all, strings.ReplaceAll(strings.Join(c.Argv, " "), s.dir, "DIR"))
	}
	return all
}

// withArtifact adds an artifact with a bundle, as pull leaves it.
func (s *simulation) withArtifact() {
	s.order.Job.Artifact = "registry.example.com/lab/images@" + someDigest
	s.order.How.Artifact = filepath.Join(s.dir, "artifacts/1")
	sum := strings.TrimPrefix(someDigest, "sha256:")
	s.writeFile("artifacts/1/artifact.json", images.Artifact{Board: "orin-lab", Key: sum, Files: []images.File{{Kind: images.Bundle, Name: "new.raucb", SizeBytes: 1, SHA256: sum}}})
	s.writeFile("artifacts/1/artifact.json.sig", "s")
	s.writeFile("artifacts/1/new.raucb", "x")
}

func TestLines(t *testing.T) {
	fleetOf := "orin-lab one.yml"
	limit := " --board-limit=1h0m0s --json"
	tests := []struct {
		name   string
		steps  []Step
		change func(*How)
		want   []string
	}{
		{"deploy", []Step{{Do: Deploy}}, nil, []string{"fleet deploy " + fleetOf + limit}},
		{"update", []Step{{Do: Update, Bundle: someDigest}}, nil, []string{"fleet update " + fleetOf + " DIR/artifacts/1/new.raucb --yes" + limit}},
		{"downgrade", []Step{{Do: Update, Bundle: someDigest, Downgrade: true}}, nil, []string{"fleet update " + fleetOf + " DIR/artifacts/1/new.raucb --yes --downgrade" + limit}},
		{"smoke", []Step{{Do: Smoke}}, func(h *How) { h.Boards = "/b" }, []string{"fleet smoke " + fleetOf + limit + " --boards=/b"}},
		{"flash", []Step{{Do: Flash, Token: "14:21"}}, func(h *How) { h.Device = "usb:1-2.3" }, []string{"flash orin-lab usb:1-2.3 --yes=14:21 --json"}},
		{"place", []Step{{Do: Place, Count: 200}}, func(h *How) { h.Place = "/srv/place.yml" }, []string{"place orin-lab /srv/place.yml --count=200"}},
		{"place without an end", []Step{{Do: Place}}, func(h *How) { h.Place = "/srv/place.yml" }, []string{"place orin-lab /srv/place.yml"}},
		{"a virtual board", []Step{{Do: Flash}, {Do: Boot}, {Do: Deploy}, {Do: Smoke}, {Do: Update, Bundle: someDigest}}, func(h *How) { h.Virtual = true }, []string{
			"virt stop orin-lab", "flash orin-lab build/orin-lab/machine/disk.img --yes=build/orin-lab/machine/disk.img --json",
			"virt stop orin-lab", "virt start orin-lab",
			"fleet deploy " + fleetOf + limit, "fleet smoke " + fleetOf + limit, "fleet update " + fleetOf + " DIR/artifacts/1/new.raucb --yes" + limit,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := simulate(t, test.steps...)
			s.withArtifact()
			if test.change != nil {
				test.change(&s.order.How)
			}
			s.begin()
			s.start()
			r := s.result()
			want := append([]string{"pull registry.example.com/lab/images@" + someDigest + " --into=DIR/artifacts/1 --json"}, test.want...)
			if diff := cmp.Diff(want, s.words()); diff != "" {
				t.Errorf("the lines (-want +got):\n%s\n%s", diff, s.log())
			}
			if r.Kind != fleet.Passed || len(r.Steps) != len(test.steps) || r.Attempts != 2 || r.Host != "lab3-07" {
				t.Errorf("result = %+v; want passed, %d steps, attempt 2 of lab3-07", r, len(test.steps))
			}
			work := s.folder.Work("lab3-07")
			for _, c := range s.calls() {
				if c.Dir != work || c.Progress != "json:"+s.folder.Progress() {
					t.Errorf("%v ran in %s with progress %q; want %s, and the job's file", c.Argv, c.Dir, c.Progress, work)
				}
			}
			if last := test.want[len(test.want)-1]; strings.ReplaceAll(r.Line, s.dir, "DIR") != "cd DIR/state/boards/lab3-07 && slipway "+last {
				t.Errorf("Line = %q; want that of %q", r.Line, last)
			}
			if sig, err := trust.ReadRegular(filepath.Join(work, "build/orin-lab/artifact.json.sig"), 9); string(sig) != "s" || err != nil {
				t.Errorf("the signature = %q, %v; want it as a regular file", sig, err)
			}
			if a, err := images.OpenArtifact(filepath.Join(work, "build/orin-lab")); err != nil || len(a.Files) != 1 {
				t.Errorf("the board's artifact = %v, %v; want the one that was pulled", a, err)
			}
		})
	}
}

// Programs of the station run in order with Slipway's.
func TestLinesOfTheStation(t *testing.T) {
	s := simulate(t, Step{Do: Flash, Token: "1"}, Step{Do: Boot})
	s.order.How = How{Device: "usb:1-2", Recovery: []string{s.self, "recover", "a b"}, Power: []string{s.self, "power", "$(x)"}}
	s.begin()
	s.start()
	r := s.result()
	if diff := cmp.Diff([]string{"recover a b", "flash orin-lab usb:1-2 --yes=1 --json", "power $(x)"}, s.words()); diff != "" {
		t.Errorf("the lines (-want +got):\n%s", diff)
	}
	if log, err := os.ReadFile(s.folder.Log()); !strings.HasSuffix(r.Line, " && "+s.self) || r.Kind != fleet.Passed || err != nil || strings.Contains(string(log), "$(x)'") {
		t.Errorf("result = %+v, log %s, %v; want passed, with the last program's name alone", r, log, err)
	}
}

// A build is two lines, and its result has what the second one printed.
func TestBuildLines(t *testing.T) {
	o := Order{Job: Job{Name: Builder, Board: "orin-lab", Steps: []Step{{Do: Build, Targets: "a,bundle"}}}, How: How{Boards: "/b"}}
	lines, err := Lines(o)
	var got []string
	for _, l := range lines {
		got = append(got, strings.Join(l.Argv, " "))
	}
	want := []string{"build orin-lab --json --target=a,bundle --boards=/b", "push orin-lab hub:builds --json --boards=/b"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, the lines (-want +got):\n%s", err, diff)
	}
}

// A line that the station cannot make begins nothing.
func TestNoLine(t *testing.T) {
	for want, change := range map[string]func(*simulation){
		"step 1, place: the station has no place lab3-07":            func(s *simulation) { s.order.Job.Steps = []Step{{Do: Place}} },
		"step 1, flash: the station has no device for lab3-07":       func(s *simulation) { s.order.Job.Steps = []Step{{Do: Flash, Token: "1"}} },
		"step 1, flash: nobody confirmed that /dev/sdx is erased":    func(s *simulation) { s.order.Job.Steps, s.order.How.Device = []Step{{Do: Flash}}, "/dev/sdx" },
		"step 2, boot: the station has no power command for lab3-07": func(s *simulation) { s.order.Job.Steps = []Step{{Do: Smoke}, {Do: Boot}} },
		"step 1, smoke: the station does not reach lab3-07 by SSH":   func(s *simulation) { s.order.How.Inventory = "" },
		"step 1, update: the job has no artifact with the bundle":    func(s *simulation) { s.order.Job.Steps = []Step{{Do: Update, Bundle: someDigest}} },
		"step 1, update: the artifact has no file sha256:" + otherDigest(): func(s *simulation) {
			s.withArtifact()
			s.order.Job.Artifact = ""
			s.order.Job.Steps = []Step{{Do: Update, Bundle: "sha256:" + otherDigest()}}
		},
	} {
		s := simulate(t, Step{Do: Smoke})
		change(s)
		s.begin()
		s.start()
		if r := s.result(); r.Kind != fleet.Other || r.Saw != want || len(s.calls()) > 0 {
			t.Errorf("result = %s %q, after %v; want other, %q, after nothing", r.Kind, r.Saw, s.calls(), want)
		}
	}
}

func otherDigest() string { return strings.Repeat("1", 64) }

func outcome(kind fleet.Kind, saw string) string {
	o := fleet.Outcome{Results: []fleet.Result{{Host: "lab3-07", Kind: kind, Saw: saw, Passed: 3, Checks: 4, Version: "1.4", System: "new", Report: "lab3-07/report.html"}}}
	data, _ := json.Marshal(o)
	return string(data)
}

func TestResults(t *testing.T) {
	smoke, flash := []Step{{Do: Smoke}}, []Step{{Do: Flash, Token: "1"}}
	tests := []struct {
		name  string
		steps []Step
		does  behaviour
		kind  fleet.Kind
		saw   string
	}{
		{"a fleet that passed", smoke, behaviour{Print: outcome(fleet.Passed, "")}, fleet.Passed, ""},
		{"a fleet that has it", smoke, behaviour{Print: outcome(fleet.Already, "")}, fleet.Already, ""},
		{"a kind of fleet", smoke, behaviour{Print: outcome(fleet.OnTrial, "slot B"), Status: 4, Say: "Error: no"}, fleet.OnTrial, "slot B"},
		{"another failure of fleet", smoke, behaviour{Print: outcome(fleet.Passed, ""), Status: 1, Say: "Error: no space\nnext: df"}, fleet.Other, "no space"},
		{"fleet began nothing", smoke, behaviour{Status: 5, Say: "Error: a.yml: wrong\nnext: repeat"}, fleet.Wrong, "a.yml: wrong"},
		{"unreachable", smoke, behaviour{Status: 3, Say: "gone"}, fleet.Silent, "gone"},
		{"checks", smoke, behaviour{Status: 4, Say: "Error: 1 of 4"}, fleet.Checks, "1 of 4"},
		{"no JSON", smoke, behaviour{Print: "{", Status: 1, Say: "Error: \x1b[31mred"}, fleet.Other, "[31mred"},
		{"a flash", flash, behaviour{Print: `[{"device":{"path":"/dev/sdx"},"readBack":true}]`}, fleet.Passed, ""},
		{"a refused flash", flash, behaviour{Print: `[{"device":{"path":"/dev/sdx"},"error":"in use\nby x","reason":"refused"}]`, Status: 6, Say: "Error: no"}, fleet.Other, "in use"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := simulate(t, append(slices.Clone(test.steps), Step{Do: Deploy})...)
			s.order.How.Device = "/dev/sdx"
			s.writeFile(string(test.steps[0].Do)+".json", test.does)
			s.begin()
			s.start()
			r := s.result()
			failed := test.does.Status > 0
			if failed != (len(s.calls()) == 1) {
				t.Errorf("calls = %q; want a deploy unless the first failed", s.words())
			}
			if failed && (r.Kind != test.kind || r.Saw != test.saw) || !failed && r.Kind != fleet.Passed {
				t.Errorf("result = %q, %q; want %q, %q", r.Kind, r.Saw, test.kind, test.saw)
			}
			if r.Steps[0].Status != test.does.Status {
				t.Errorf("steps = %+v; want status %d", r.Steps, test.does.Status)
			}
			if test.kind == fleet.OnTrial && (r.Version != "1.4" || r.Checks != 4 || r.Report != "build/orin-lab/fleet/smoke/lab3-07/report.json") {
				t.Errorf("result = %+v; want what fleet said of the board", r.Result)
			}
			if test.name == "a flash" && r.Steps[0].Receipt != "/dev/sdx: whole" {
				t.Errorf("receipt = %q", r.Steps[0].Receipt)
			}
		})
	}
}

// What an update left on the board stays in the result of a smoke after it.
func TestResultOfTwoSteps(t *testing.T) {
	s := simulate(t, Step{Do: Update, Bundle: someDigest}, Step{Do: Smoke})
	s.withArtifact()
	s.writeFile("update.json", behaviour{Print: outcome(fleet.Already, "")})
	s.writeFile("smoke.json", behaviour{Print: `{"results":[{"host":"lab3-07","kind":"passed","passed":9,"checks":9}]}`})
	s.begin()
	s.start()
	if r := s.result(); r.Kind != fleet.Passed || r.Version != "1.4" || r.System != "new" || r.Checks != 9 {
		t.Errorf("result = %+v; want the system of the update, the checks of the smoke", r.Result)
	}
}

// kill kills a process, and waits until it is gone.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// Wherever a job's process is killed, a second one ends the job, with one result.
func TestKilled(t *testing.T) {
	for _, point := range []string{"order", "a step", "result"} {
		t.Run(point, func(t *testing.T) {
			s := simulate(t, Step{Do: Smoke}, Step{Do: Deploy})
			if state, _, err := s.folder.State(); state != None || err != nil {
				t.Errorf("State before the order = %s, %v; want none", state, err)
			}
			if err := Exec(t.Context(), s.folder, s.self); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("Exec before the order = %v; want no file", err)
			}
			s.begin()
			if state, _, err := s.folder.State(); state != Broken || err != nil {
				t.Errorf("State with an order alone = %s, %v; want broken", state, err)
			}
			s.writeFile("stop", point)
			if point == "a step" {
				s.writeFile("smoke.json", behaviour{Wait: true, Stops: 1})
			}
			s.start()
			state, pid, err := s.folder.State()
			if state != Held || err != nil {
				t.Fatalf("State = %s, %v; want held", state, err)
			}
			at := s.meeting()
			if point == "a step" == (at == pid) {
				t.Errorf("process %d waits, and %d has the lock", at, pid)
			}
			kill(t, pid)
			if point == "a step" { // it keeps the lock until it has ended
				for gone(pid) != nil {
					time.Sleep(time.Millisecond)
				}
				if state, _, err := s.folder.State(); state != Held || err != nil {
					t.Errorf("State while the step ends = %s, %v; want held", state, err)
				}
				s.meeting() // with its SIGTERM, as its parent is gone
				if err := unix.Kill(at, unix.SIGINT); err != nil {
					t.Fatal(err)
				}
			}
			s.await(Broken)
			if err := os.Remove(filepath.Join(s.dir, "stop")); err != nil {
				t.Fatal(err)
			}
			s.writeFile("smoke.json", behaviour{})
			s.start()
			r := s.result()
			if r.Kind != fleet.Passed || len(r.Steps) != 2 {
				t.Errorf("result = %+v; want passed", r)
			}
			before := len(s.calls())
			if err := Exec(t.Context(), s.folder, s.self); err != nil || len(s.calls()) != before {
				t.Errorf("Exec of a job that is done = %v, %q; want nothing", err, s.words()[before:])
			}
			if err := Start(t.Context(), s.folder, s.self); err != nil {
				t.Errorf("Start of a job that is done = %v; want nothing", err)
			}
		})
	}
}

// gone returns nil once a process has ended and was reaped.
func gone(pid int) error {
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	return nil
}

func TestStop(t *testing.T) {
	tests := []struct {
		name string
		stop []Stop
		does behaviour
		kind fleet.Kind
	}{
		{"once", []Stop{Gently, Gently}, behaviour{Wait: true, Stops: 1, Status: 1, Say: "Error: interrupt"}, fleet.Stopped},
		{"twice", []Stop{Gently, Now}, behaviour{Wait: true, Stops: 2, Status: 1, Say: "Error: interrupt"}, fleet.Stopped},
		{"what fleet says of the board stays", []Stop{Now}, behaviour{Wait: true, Stops: 2, Status: 3, Print: outcome(fleet.Unsure, "it restarts")}, fleet.Unsure},
		{"fleet says that it was stopped", []Stop{Gently}, behaviour{Wait: true, Stops: 1, Status: 1, Print: outcome(fleet.Stopped, "stopped")}, fleet.Stopped},
		{"the step finishes, the next is not begun", []Stop{Gently}, behaviour{Wait: true, Stops: 1, Print: outcome(fleet.Passed, "")}, fleet.Stopped},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := simulate(t, Step{Do: Smoke}, Step{Do: Deploy})
			s.writeFile("smoke.json", test.does)
			s.begin()
			s.start()
			s.meeting()
			for _, how := range test.stop {
				if err := s.folder.Stop(how); err != nil {
					t.Fatal(err)
				}
			}
			for range test.does.Stops {
				s.meeting() // the step has got it
			}
			r := s.result()
			if r.Kind != test.kind || r.Steps[0].Status != test.does.Status || len(s.calls()) != 1 {
				t.Errorf("result = %+v after %q; want %s after one step", r, s.words(), test.kind)
			}
			if got, _ := os.ReadFile(filepath.Join(s.dir, "signals")); string(got) != strings.Repeat("interrupt\n", test.does.Stops) {
				t.Errorf("the step got %q; want %d interrupts", got, test.does.Stops)
			}
		})
	}
}

// The limit stops a step as a person does, and kills one that does not end.
func TestLimit(t *testing.T) {
	for _, test := range []struct {
		name    string
		graces  [2]time.Duration
		does    behaviour
		status  int
		signals string
	}{
		{"once", [2]time.Duration{time.Hour, time.Hour}, behaviour{Wait: true, Stops: 1, Status: 1}, 1, "interrupt\n"},
		{"twice", [2]time.Duration{1, time.Hour}, behaviour{Wait: true, Stops: 2, Status: 1}, 1, "interrupt\ninterrupt\n"},
		{"killed", [2]time.Duration{1, 1}, behaviour{Wait: true}, -1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			for limit := int64(300); ; limit *= 2 { // until the step begins before its limit
				s := simulate(t, Step{Do: Smoke}, Step{Do: Deploy})
				s.writeFile("smoke.json", test.does)
				s.writeFile("graces.json", test.graces)
				s.order.Job.LimitMS = limit
				s.begin()
				s.start()
				r := s.result()
				if r.Kind != fleet.Slow {
					t.Errorf("result = %s %q; want too slow", r.Kind, r.Saw)
				}
				calls := s.calls()
				if len(calls) == 0 {
					continue
				}
				data, _ := os.ReadFile(filepath.Join(s.dir, "signals"))
				if test.signals != "" && string(data) != test.signals {
					t.Errorf("the step got %q; want %q", data, test.signals)
				}
				if r.Steps[0].Status != test.status || len(calls) != 1 || gone(calls[0].PID) != nil {
					t.Errorf("result = %+v, after %q; want status %d, and the step gone", r, s.words(), test.status)
				}
				return
			}
		})
	}
}

// A second process is refused while the first works, by Exec and by Start.
func TestTwoAtOnce(t *testing.T) {
	s := simulate(t, Step{Do: Smoke})
	s.writeFile("smoke.json", behaviour{Wait: true, Stops: 1})
	s.begin()
	s.start()
	s.meeting()
	if err := Exec(t.Context(), s.folder, s.self); !errors.Is(err, localfile.ErrHeld) {
		t.Errorf("a second Exec = %v; want %v", err, localfile.ErrHeld)
	}
	if err := Start(t.Context(), s.folder, s.self); !errors.Is(err, localfile.ErrHeld) {
		t.Errorf("a second Start = %v; want %v", err, localfile.ErrHeld)
	}
	if err := s.folder.Stop(Gently); err != nil {
		t.Fatal(err)
	}
	s.meeting()
	if r := s.result(); len(s.calls()) != 1 || r.Kind != fleet.Passed {
		t.Errorf("result = %+v after %q; want one step", r, s.words())
	}
}

// Of many that start at once, one does the job.
func TestManyStart(t *testing.T) {
	s := simulate(t, Step{Do: Smoke})
	s.begin()
	ended := make(chan error, 4)
	for range cap(ended) {
		go func() { ended <- Start(t.Context(), s.folder, s.self) }()
	}
	for range cap(ended) {
		if err := <-ended; err != nil && !errors.Is(err, localfile.ErrHeld) {
			t.Error(err)
		}
	}
	if s.result(); len(s.calls()) != 1 {
		t.Errorf("the step ran %d times; want once\n%s", len(s.calls()), s.log())
	}
}

// A context stops a job as a SIGINT does.
func TestContext(t *testing.T) {
	s := simulate(t, Step{Do: Smoke})
	s.begin()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Exec(ctx, s.folder, s.self); err != nil {
		t.Fatal(err)
	}
	if r := s.result(); r.Kind != fleet.Stopped || len(s.calls()) > 0 {
		t.Errorf("result = %+v; want stopped, and nothing begun", r)
	}
}

func TestProgramIsMissing(t *testing.T) {
	s := simulate(t, Step{Do: Smoke})
	s.begin()
	if err := Start(t.Context(), s.folder, "/nonexistent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Start = %v; want no file", err)
	}
	if state, _, err := s.folder.State(); state != None || err != nil {
		t.Errorf("State = %s, %v; want %s, as nothing was begun", state, err, None)
	}
	s.begin()
	if err := Exec(t.Context(), s.folder, "/nonexistent"); err != nil {
		t.Fatal(err)
	}
	if r := s.result(); r.Kind != fleet.Other || !strings.Contains(r.Saw, "no such file") {
		t.Errorf("result = %+v; want other", r)
	}
}

// A process that was slow to begin leaves the board to the station that may have the lease by now.
func TestBeginBy(t *testing.T) {
	s := simulate(t, Step{Do: Smoke})
	s.order.BeginBy = BootTime()
	s.begin()
	if err := Start(t.Context(), s.folder, s.self); err == nil || !strings.Contains(err.Error(), "the lease of the station was over") || len(s.calls()) > 0 {
		t.Errorf("Start = %v after %q; want an error, and nothing begun", err, s.words())
	}
	if state, _, err := s.folder.State(); state != None || err != nil {
		t.Errorf("State = %s, %v; want %s", state, err, None)
	}
	s.order.BeginBy = BootTime() + time.Hour
	s.begin()
	s.start()
	if r := s.result(); r.Kind != fleet.Passed {
		t.Errorf("result = %+v; want passed", r)
	}
}
