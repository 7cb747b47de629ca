package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"slipway/ci"
	"slipway/ci/report"
	"slipway/flash/boardssh/sshd"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/progress"
)

func TestMain(m *testing.M) {
	os.Unsetenv("SSH_AUTH_SOCK") // the person's own keys are no part of the tests
	if asked := os.Getenv(childVariable); asked != "" {
		os.Exit(runChild(asked))
	}
	os.Exit(m.Run())
}

// simulation is a fleet of simulated boards with the request of a run over it.
type simulation struct {
	*simulatedFleet
	t       *testing.T
	opt     images.Options
	spec    images.Spec
	request Request
	sum     string // of the file to send

	update func(context.Context, *attempt, ci.UpdateOptions) (ci.Outcome, error) // nil: the real one
}

const simulatedChecks = 8

// simulate switches on ok good boards, then for each fault a board with it and a good one.
func simulate(t *testing.T, ok int, faults ...boardFault) *simulation {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	var all []boardFault
	for range ok {
		all = append(all, faultNone)
	}
	for _, fault := range faults {
		all = append(all, fault, faultNone)
	}
	dir := t.TempDir()
	f, err := startFleet(t.Context(), dir, all, simulatedChecks, faultLimits{Hangs: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	data := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return &simulation{
		simulatedFleet: f, t: t, opt: images.Options{Dir: filepath.Join(dir, "build")}, sum: hex.EncodeToString(sum[:]),
		spec:    images.Spec{Board: "simulated", Suites: []string{f.Suite}},
		request: Request{Inventory: f.Inventory, File: file, To: "/data/new/file", Parallel: 6},
	}
}

// runPlan does what Run does, but ends the time of a slow board as soon as it becomes slow.
func (p *simulation) runPlan(ctx context.Context) (Outcome, error) {
	p.t.Helper()
	var out strings.Builder
	plan, _, err := newPlan(ctx, p.opt, p.spec, p.request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer plan.close()
	if p.update != nil {
		plan.update = p.update
	}
	slowed := map[string]<-chan struct{}{}
	for _, b := range p.Boards {
		if b.Fault == faultSlow {
			slowed[b.Name] = b.Slowed
		}
	}
	plan.limit = func(ctx context.Context, j *job) (context.Context, context.CancelFunc) {
		slow := slowed[j.host.Name]
		if slow == nil {
			return withBoardLimit(ctx, j)
		}
		ctx, cancel := context.WithCancelCause(ctx)
		go func() {
			select {
			case <-slow:
				cancel(errSlow)
			case <-ctx.Done():
			}
		}()
		return ctx, func() { cancel(nil) }
	}
	if err := plan.prepareRun(ctx); err != nil {
		p.t.Fatal(err)
	}
	outcome, err := plan.runFleet(ctx, &out)
	p.t.Log(out.String())
	return outcome, err
}

func (p *simulation) outputDir() string {
	command := "deploy"
	if p.request.Update != "" {
		command = "update"
	}
	return filepath.Join(p.opt.Dir, "simulated", "fleet", command)
}

// readOutcome reads the outcome from fleet.json, and checks that the journal has the same.
func (p *simulation) readOutcome() (o Outcome, err error) {
	data, err := os.ReadFile(filepath.Join(p.outputDir(), outcomeName))
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil {
		return o, err
	}
	h, err := readHistory(p.outputDir())
	if err == nil && !cmp.Equal(h.outcome, o) {
		err = errors.New("the journal and fleet.json differ:\n" + cmp.Diff(h.outcome, o))
	}
	return o, err
}

// Each failure is reported by its kind, and the other boards get all files.
func TestEachFailure(t *testing.T) {
	p := simulate(t, 1, allFaults...)
	summary := filepath.Join(t.TempDir(), "summary.md")
	t.Setenv(report.SummaryVariable, summary)
	outcome, err := p.runPlan(t.Context())
	if !errors.Is(err, report.ErrFailed) || !strings.Contains(err.Error(), fmt.Sprintf("%d of %d boards did not pass", len(allFaults), len(p.Boards))) {
		t.Errorf("error %v; want %d boards, and the kind of the board that failed its checks", err, len(allFaults))
	}
	holds := p.BoardsWithFile(p.request.To, p.sum)
	for i, b := range p.Boards {
		r := outcome.Results[i]
		if r.Host != b.Name || r.Kind != Kind(b.Fault.ExpectedKind()) {
			t.Errorf("%s (%s): %s %q (%s); want %q", b.Name, b.Fault, r.Host, r.Kind, r.Saw, b.Fault.ExpectedKind())
		}
		if ok := b.Fault == faultNone; ok != (r.Passed == simulatedChecks) {
			t.Errorf("%s (%s): %d checks passed", b.Name, b.Fault, r.Passed)
		}
		if want := b.Fault.GetsFile(); holds[b.Name] != want {
			t.Errorf("%s (%s): holds the file: %v; want %v", b.Name, b.Fault, holds[b.Name], want)
		}
		if strings.ContainsAny(r.Saw, "\x1b\n\x00") {
			t.Errorf("%s: %q has control characters", b.Name, r.Saw)
		}
		if b.Fault == faultOtherKey && (!strings.Contains(r.Saw, ", but slipway_host_key in "+p.Inventory+" pins ") || !strings.HasSuffix(r.Saw, "; if you know that it was, change slipway_host_key")) {
			t.Errorf("%s: %q does not name the user's own file", b.Name, r.Saw)
		}
		if whole, err := os.ReadFile(filepath.Join(p.outputDir(), b.Name, report.ReportJSON)); b.Fault == faultNoLogin && (len(r.Saw) > 160 || err != nil || !bytes.Contains(whole, []byte("keys are looked for in"))) {
			t.Errorf("%s: %q; want one short line, and the whole in its report (%v)", b.Name, r.Saw, err)
		}
		if strings.Count(r.Saw, errSlow.Error()) > 1 {
			t.Errorf("%s: %q says twice why it ended", b.Name, r.Saw)
		}
	}
	p.checkFiles(outcome)
	p.checkSummaries(outcome, summary)
}

// checkSummaries checks that the summary names the failed check and the report's command, and that
// the CI server's summary has each failure with its next step.
func (p *simulation) checkSummaries(o Outcome, server string) {
	p.t.Helper()
	var out strings.Builder
	if err := o.WriteSummary(&out, p.outputDir()); err != nil {
		p.t.Error(err)
	}
	i := slices.IndexFunc(o.Results, func(r Result) bool { return r.Kind == Checks })
	for _, want := range []string{"· command: ", "see the board's report: " + host.ProgramName() + " report " + p.outputDir() + "/" + o.Results[i].Host + "\n"} {
		if !strings.Contains(out.String(), want) {
			p.t.Errorf("want %q in\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(server)
	for _, r := range o.Results {
		if !r.Kind.Done() && !strings.Contains(string(text), "such as "+r.Host+")") {
			p.t.Errorf("%v: no %s in\n%s", err, r.Host, text)
		}
	}
	if strings.Count(string(text), "\nnext ") < len(allFaults) {
		p.t.Errorf("want a next step for each failure in\n%s", text)
	}
}

// checkFiles compares the written files with the outcome.
func (p *simulation) checkFiles(want Outcome) {
	p.t.Helper()
	got, err := p.readOutcome()
	if err != nil || len(got.Results) != len(want.Results) || got.countKinds().String() != want.countKinds().String() {
		p.t.Errorf("fleet.json: %v, %s; want %s", err, got.countKinds(), want.countKinds())
	}
	var junit struct {
		Suite struct {
			Tests    int        `xml:"tests,attr"`
			Failures int        `xml:"failures,attr"`
			Cases    []struct{} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	data, err := os.ReadFile(filepath.Join(p.outputDir(), junitName))
	if err == nil {
		err = xml.Unmarshal(data, &junit)
	}
	n := want.countKinds()
	if failures := len(want.Results) - n.doneCount() - n[NotBegun]; err != nil || junit.Suite.Failures != failures || len(junit.Suite.Cases) != len(want.Results) {
		p.t.Errorf("junit.xml: %v, %+v; want %d failures", err, junit.Suite, failures)
	}
	html, err := os.ReadFile(filepath.Join(p.outputDir(), pageName))
	for _, r := range want.Results {
		if r.Tries == 0 {
			continue
		}
		var report struct {
			Target         string
			Stages, Suites []any
		}
		data, err := os.ReadFile(filepath.Join(p.outputDir(), r.Host, "report.json"))
		if err == nil {
			err = json.Unmarshal(data, &report)
		}
		if err != nil || report.Target != r.Host || len(report.Stages)+len(report.Suites) == 0 || !strings.Contains(string(html), r.Report) {
			p.t.Errorf("%s: report %q: %v", r.Host, r.Report, err)
		}
	}
	if err != nil {
		p.t.Error(err)
	}
}

// If a canary fails, no other board begins. --failed continues with those, and keeps the
// boards that passed.
func TestCanaryThenFailed(t *testing.T) {
	p := simulate(t, 4, faultFails)
	p.request.Canary, p.request.Limit = 2, "board-004,board-000,board-001,board-005"
	inventory, err := os.ReadFile(p.request.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	p.request.Canary = 3 // 000, 001 and 004, which fails
	outcome, err := p.runPlan(t.Context())
	if n := outcome.countKinds(); err == nil || n[Passed] != 2 || n[Checks] != 1 || n[NotBegun] != 1 || !strings.Contains(outcome.Stopped, "1 of 3 canaries failed") {
		t.Fatalf("%v, %s, stopped %q; want one canary that failed, and one board not begun", err, n, outcome.Stopped)
	}
	p.request.Failed, p.request.Canary, p.request.Limit = true, 0, "board-002"
	if _, err := Run(t.Context(), &strings.Builder{}, p.opt, p.spec, p.request); err == nil || !strings.Contains(err.Error(), "the last run had none of the chosen hosts (1, such as board-002; ") || !strings.HasSuffix(err.Error(), "\nnext: repeat the line without --failed") {
		t.Errorf("--failed of another board: %v", err)
	}
	p.request.Limit = ""
	outcome, err = p.runPlan(t.Context())
	if n := outcome.countKinds(); err == nil || n[Passed] != 3 || n[Checks] != 1 || n[NotBegun] != 0 {
		t.Errorf("--failed: %v, %s; want the fourth board done", err, n)
	}
	if tries := outcome.Results[0].Tries; outcome.Results[0].Host != "board-000" || tries != 1 {
		t.Errorf("board-000 was tried again: %+v", outcome.Results[0])
	}
	// The inventory has lost the bad board.
	if err := os.WriteFile(p.request.Inventory, []byte(strings.ReplaceAll(string(inventory), "board-004:", "new:")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.runPlan(t.Context()); err == nil || !strings.Contains(err.Error(), "\nnext: repeat the line without --failed") {
		t.Errorf("--failed without the host that failed: %v", err)
	}
	// The file was fixed meanwhile, and the bad board is left out.
	if err := os.WriteFile(p.request.Inventory, inventory, 0o600); err != nil {
		t.Fatal(err)
	}
	p.request.Limit = "all:!board-004"
	outcome, err = p.runPlan(t.Context())
	if n := outcome.countKinds(); err == nil || !strings.Contains(err.Error(), "\nnext: repeat the line without --limit") || n[Passed] != 3 || n[Checks] != 1 || outcome.Results[0].Tries != 1 {
		t.Errorf("--failed without one that failed: %v, %s; want nothing done, and the outcome as it was", err, n)
	}
	p.checkFiles(outcome)
}

// A command does not continue the work of another command, nor that with another file.
func TestFailedOfOtherWork(t *testing.T) {
	p := simulate(t, 1, faultFails)
	deployed, _ := p.runPlan(t.Context())
	p.request.File, p.request.To = "", ""
	if n := deployed.countKinds(); n[Checks] != 1 {
		t.Fatalf("%s; want one board that fails", n)
	}
	p.request.Failed = true
	if _, err := Run(t.Context(), io.Discard, p.opt, p.spec, p.request); err == nil || !strings.HasSuffix(err.Error(), "\nnext: repeat the line without --failed") || strings.Contains(err.Error(), "stat ") {
		t.Errorf("fleet smoke --failed after a deploy = %v; want that there is no smoke before, and what to run", err)
	}
	p.request.Failed = false
	smoked, _ := p.runPlan(t.Context())
	last, err := p.readOutcome()
	if err != nil || !last.Started.Equal(deployed.Started) || smoked.Work != "smoke" || !strings.HasPrefix(last.Work, "deploy ") {
		t.Errorf("%v: the deploy's outcome is of %v, %q; want it left as it was", err, last.Started, last.Work)
	}
	p.request.Failed, p.request.File, p.request.To = true, p.request.Inventory, "/data/other"
	if _, err := Run(t.Context(), io.Discard, p.opt, p.spec, p.request); err == nil || !strings.Contains(err.Error(), "the same work") {
		t.Errorf("--failed with another file = %v; want it refused", err)
	}
}

// After K failures no board begins. Those that already began are finished.
func TestStopAfter(t *testing.T) {
	p := simulate(t, 0, faultRefused, faultNoLogin, faultNotSSH)
	p.request.Parallel, p.request.StopAfter = 1, 2
	outcome, err := p.runPlan(t.Context())
	n := outcome.countKinds()
	if !errors.Is(err, report.ErrUnreachable) || n[Refused] != 1 || n[Passed] != 1 || n[Login] != 1 || n[NotBegun] != 3 {
		t.Errorf("%v, %s; want a stop after the third board", err, n)
	}
}

// Boards that a retry can help are tried again after all others.
func TestRetries(t *testing.T) {
	p := simulate(t, 1, faultRefused, faultNoLogin)
	p.request.Parallel, p.request.Retries = 1, 2
	sink := &events{}
	outcome, _ := p.runPlan(progress.With(t.Context(), progress.New(sink)))
	sink.wantOpen(t, "board-001", 2)
	got := map[Kind]int{}
	for _, r := range outcome.Results {
		got[r.Kind] = r.Tries
	}
	if got[Refused] != 3 || got[Login] != 1 || got[Passed] != 1 {
		t.Errorf("tries %v; want 3 where the board refused, otherwise 1", got)
	}
}

// Two runs on one machine do not work on one board at the same time. With Locks, this is also true
// for runs in two build folders.
func TestBusy(t *testing.T) {
	p := simulate(t, 2)
	t.Run("one build folder", func(t *testing.T) { p.wantBusy(t, filepath.Join(p.opt.Dir, "fleet.locks")) })
	p.opt.Locks = t.TempDir()
	t.Run("a folder of the machine", func(t *testing.T) { p.wantBusy(t, p.opt.Locks) })
}

// wantBusy locks a board in dir, and runs the plan.
func (p *simulation) wantBusy(t *testing.T, dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "board-001"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	outcome, _ := p.runPlan(t.Context())
	if n := outcome.countKinds(); n[Busy] != 1 || n[Passed] != 1 {
		t.Errorf("%s; want one board in use", n)
	}
}

// A run that is stopped reports the boards that it was working on as stopped, and the
// others as not begun.
func TestBrokenOff(t *testing.T) {
	p := simulate(t, 0, faultSlow)
	p.request.Parallel = 1
	ctx, cancel := context.WithCancel(t.Context())
	slow := p.Boards[0].Slowed
	go func() {
		<-slow
		cancel()
	}()
	outcome, err := p.runPlan(ctx)
	if n := outcome.countKinds(); err == nil || n[Stopped] != 1 || n[NotBegun] != 1 || outcome.Stopped == "" {
		t.Errorf("%v, %s, %q; want one stopped and one not begun", err, n, outcome.Stopped)
	}
}

// The serial of the inventory is checked before anything is written.
func TestOtherBoard(t *testing.T) {
	p := simulate(t, 2)
	text, err := os.ReadFile(p.request.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	with := strings.Replace(string(text), "board-000:\n", "board-000:\n      slipway_serial: SN-board-000\n", 1)
	with = strings.Replace(with, "board-001:\n", "board-001:\n      slipway_serial: SN-else\n", 1)
	if err := os.WriteFile(p.request.Inventory, []byte(with), 0o600); err != nil {
		t.Fatal(err)
	}
	outcome, _ := p.runPlan(t.Context())
	if n := outcome.countKinds(); n[Passed] != 1 || n[OtherBoard] != 1 || p.BoardsWithFile(p.request.To, p.sum)["board-001"] {
		t.Errorf("%s; want the second board refused and left alone", n)
	}
}

// events collects progress events.
type events struct {
	mu  sync.Mutex
	all []progress.Event
}

func (e *events) Event(one progress.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, one)
}

func (*events) Close() {}

// wantOpen checks that a board does not count as done while a retry is left.
func (e *events) wantOpen(t *testing.T, board string, tries int) {
	t.Helper()
	announced, complete := 0, false
	for _, one := range e.all {
		switch {
		case one.Step == "fleet":
			complete = complete || one.Count == one.Total
		case one.Step == board && complete:
			t.Errorf("all boards count as done, and then: %+v", one)
		case one.Step == board && strings.Contains(one.Detail, "tried again after the others"):
			announced++
		}
	}
	if announced != tries {
		t.Errorf("%s was announced to be tried again %d times; want %d", board, announced, tries)
	}
}

// Each board has a progress line that says how it ended. The whole run has one line.
func TestLines(t *testing.T) {
	p := simulate(t, 2, faultFails)
	sink := &events{}
	_, _ = p.runPlan(progress.With(t.Context(), progress.New(sink)))
	ends := map[string]string{}
	for _, e := range sink.all {
		if e.State != progress.Running {
			ends[e.Step] = string(e.State) + " " + e.Detail
		}
	}
	for step, want := range map[string]string{
		"board-000": "done passed, 8 of 8 checks", "board-002": "failed checks failed, 7 of 8 checks", "fleet": "failed 3 passed, 1 checks failed",
	} {
		if !strings.HasPrefix(ends[step], want) {
			t.Errorf("%s ended as %q; want %q", step, ends[step], want)
		}
	}
	if len(ends) != 5 {
		t.Errorf("lines %v; want those of 4 boards, and one for all", ends)
	}
}

func TestDryRunAndRefusals(t *testing.T) {
	p := simulate(t, 2)
	p.request.DryRun, p.request.Canary = true, 1
	var out strings.Builder
	if _, err := Run(t.Context(), &out, p.opt, p.spec, p.request); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"would send " + p.request.File, "(4.0 MiB) to /data/new/file on 2 boards", "board-000  127.77.0.1  canary"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("dry run:\n%s\nwant %q", out.String(), want)
		}
	}
	if _, err := os.Stat(p.outputDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dry run wrote %s: %v", p.outputDir(), err)
	}
	for want, change := range map[string]func(*Request){
		"--parallel=1000":       func(a *Request) { a.Parallel = 1000 },
		"--canary":              func(a *Request) { a.Canary = -1 },
		"--file and --to":       func(a *Request) { a.To = "" },
		"the file's whole path": func(a *Request) { a.To = "etc/" },
		"needs the record of a": func(a *Request) { a.Failed = true },
		"no such file":          func(a *Request) { a.File += "x" },
		"no host and no group":  func(a *Request) { a.Limit = "nobody" },
	} {
		request := p.request
		change(&request)
		if _, err := Run(t.Context(), &out, p.opt, p.spec, request); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run = %v; want %q", err, want)
		}
	}
}

// Hosts that cannot be reached by the inventory end a run before any board is reached.
func TestProblemsEndARunBeforeItBegins(t *testing.T) {
	p := simulate(t, 1)
	text := "all:\n  hosts:\n    ok: {slipway_board: another}\n    bad: {ansible_host: '{{ x }}'}\n    worse: {ansible_connection: local}\n"
	if err := os.WriteFile(p.request.Inventory, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Run(t.Context(), &strings.Builder{}, p.opt, p.spec, p.request)
	if err == nil || !strings.Contains(err.Error(), "because of 2 hosts") || !strings.Contains(err.Error(), "hosts.yml:4: bad: ansible_host: a template") {
		t.Errorf("Run = %v; want both hosts with their lines", err)
	}
	p.request.Limit = "ok"
	if _, err := Run(t.Context(), &strings.Builder{}, p.opt, p.spec, p.request); err == nil || !strings.Contains(err.Error(), "slipway_board is another than simulated\nnext: fleet list "+p.request.Inventory) {
		t.Errorf("Run = %v; want a word about the other board", err)
	}
}

// Every kind says what to do next, except those of boards that are done.
func TestKinds(t *testing.T) {
	if !slices.IsSortedFunc(kinds, func(a, b struct {
		kind  Kind
		err   error
		retry bool
		next  string
	},
	) int {
		return a.kind.rank() - b.kind.rank()
	}) {
		t.Error("kinds are not in their order")
	}
	for _, k := range kinds {
		if (k.next == "") != k.kind.Done() {
			t.Errorf("kind %q: next %q", k.kind, k.next)
		}
	}
}

// realFleet starts OpenSSH servers, each with keys of its own, and writes their inventory.
func realFleet(t *testing.T, n int) (inventory string, servers []*sshd.Server) {
	t.Helper()
	if _, err := os.Stat(sshd.Program); err != nil {
		t.Skipf("%s is missing: install the Debian package openssh-server", sshd.Program)
	}
	who, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "[boards]\n")
	for i := range n {
		s, err := sshd.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Stop)
		servers = append(servers, s)
		pinned, err := os.ReadFile(s.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		_, key, _ := strings.Cut(strings.TrimSpace(string(pinned)), " ")
		fmt.Fprintf(&text, "real%d ansible_host=127.0.0.1 ansible_port=%d ansible_user=%s ansible_ssh_private_key_file=%s slipway_host_key='%s'\n", i, s.Port, who.Username, s.Identity, key)
	}
	inventory = filepath.Join(t.TempDir(), "hosts.ini")
	if err := os.WriteFile(inventory, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return inventory, servers
}

// With a real sshd, one board gets the file and passes, one shows another key than the
// pinned one, and one is off.
func TestRealServers(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	inventory, servers := realFleet(t, 3)
	text, err := os.ReadFile(inventory)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	_, key, _ := strings.Cut(lines[1], "slipway_host_key=")
	was, _, _ := strings.Cut(lines[2], "slipway_host_key=")
	lines[2] = was + "slipway_host_key=" + key // real1 shall have the key of real0
	if err := os.WriteFile(inventory, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	servers[2].Stop()
	dir := t.TempDir()
	suite, file := filepath.Join(dir, "suite.yml"), filepath.Join(dir, "file")
	to := filepath.Join(dir, "there", "file")
	for name, text := range map[string]string{suite: fmt.Sprintf("file:\n  %s:\n    contains: [hello]\n", to), file: "hello\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	outcome, err := Run(t.Context(), &out, images.Options{Dir: filepath.Join(dir, "build")}, images.Spec{Board: "real", Suites: []string{suite}},
		Request{Inventory: inventory, File: file, To: to})
	for i, want := range []Kind{Passed, HostKey, Refused} {
		if len(outcome.Results) != 3 || outcome.Results[i].Kind != want {
			t.Fatalf("%v\n%s\nresult %d is not %q", err, out.String(), i, want)
		}
	}
	if got, err := os.ReadFile(to); err != nil || string(got) != "hello\n" {
		t.Errorf("the file is %q, %v", got, err)
	}
	if !strings.Contains(outcome.Results[1].Saw, "host key not trusted") {
		t.Errorf("real1: %s", outcome.Results[1].Saw)
	}
}

// A program runs on each board without a shell. Two names of one board are one warning, and a
// name that nobody knows has its next step on a line of its own.
func TestRunProgram(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	inventory, servers := realFleet(t, 3)
	text, err := os.ReadFile(inventory)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	_, same, _ := strings.Cut(lines[1], " ")
	lines = append(lines, "again "+same, strings.Replace(strings.Replace(lines[2], "real1", "nobody", 1), "127.0.0.1", "nobody.invalid", 1))
	if err := os.WriteFile(inventory, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	servers[2].Stop()
	opt := images.Options{Dir: filepath.Join(t.TempDir(), "build")}
	run := func(spec images.Spec, request Request) (Outcome, string, error) {
		var out strings.Builder
		request.Inventory, request.Unproved = inventory, true
		outcome, err := Run(t.Context(), &out, opt, spec, request)
		return outcome, out.String(), err
	}
	outcome, said, err := run(images.Spec{}, Request{Program: []string{"printf", `%s\n`, "$HOME; a  b", "c\x1b[2J"}})
	kinds := map[string]Kind{}
	for _, r := range outcome.Results {
		kinds[r.Host] = r.Kind
	}
	if want := map[string]Kind{"real0": Passed, "real1": Passed, "real2": Refused, "again": Passed, "nobody": NoName}; !maps.Equal(kinds, want) || !errors.Is(err, report.ErrUnreachable) {
		t.Fatalf("Run = %v, %v; want %v\n%s", kinds, err, want, said)
	}
	for _, want := range []string{"real0  $HOME; a  b\nreal0  c[2J\n", "again  $HOME; a  b\n", "warning: " + inventory + ": Slipway asks boards with two names twice, at once: keep one name, or leave the other out by --limit (1, such as again)", "FAILED  " + inventory + " on 5 boards"} {
		if !strings.Contains(said, want) {
			t.Errorf("want %q in\n%s", want, said)
		}
	}
	if strings.Count(said, "two names") != 1 || strings.Contains(said, "next: ") {
		t.Errorf("want one warning, and no next step within a line:\n%s", said)
	}
	written, err := os.ReadFile(filepath.Join(opt.Dir, "fleet/run/nobody/report.json"))
	if err != nil || strings.Contains(string(written), "next: see that") {
		t.Errorf("the report of nobody: %v\n%s", err, written)
	}

	outcome, said, err = run(images.Spec{Board: "real"}, Request{Limit: "real0:real1", Program: []string{"sh", "-c", "echo out; echo bad >&2; exit 3"}})
	if len(outcome.Results) != 2 || !errors.Is(err, report.ErrFailed) || !strings.Contains(fmt.Sprint(err), "2 program failed") || outcome.Results[0].Saw != "exit status 3: bad" || outcome.Results[0].Answer.Status != 3 || outcome.Results[0].Answer.Stdout != "out\n" {
		t.Errorf("Run = %+v, %v\n%s", outcome.Results, err, said)
	}
	if _, _, err := run(images.Spec{Board: "real"}, Request{Failed: true, Program: []string{"true"}}); err == nil || !strings.Contains(err.Error(), "the program is \"true\", and was") {
		t.Errorf("--failed of another program: %v", err)
	}
	outcome, _, err = run(images.Spec{Board: "real"}, Request{Limit: "real0", Program: []string{"sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x"}})
	if err != nil || len(outcome.Results[0].Answer.Stdout) != maxAnswerBytes || !outcome.Results[0].Answer.Truncated {
		t.Errorf("a long answer: %v, %d bytes", err, len(outcome.Results[0].Answer.Stdout))
	}
	outcome, _, err = run(images.Spec{Board: "real"}, Request{Limit: "real0", Program: []string{"nosuchprogram"}})
	if err == nil || outcome.Results[0].Kind != Program || strings.Contains(outcome.Results[0].Saw, "sh -c") {
		t.Errorf("a program that is not there: %+v, %v", outcome.Results, err)
	}
	outcome, _, err = run(images.Spec{Board: "real"}, Request{Limit: "real0", Program: []string{"hostname; id"}})
	if err == nil || !strings.Contains(outcome.Results[0].Saw, "-- sh -c 'hostname; id'") {
		t.Errorf("a line of a shell: %+v, %v", outcome.Results, err)
	}
	_, said, err = run(images.Spec{}, Request{Limit: "real2", DryRun: true, Program: []string{"echo", "a b"}})
	if err != nil || !strings.Contains(said, "would run echo 'a b' on 1 board,") {
		t.Errorf("a dry run: %v\n%s", err, said)
	}
}

// If smoke fails before its first check, the board's report says so once.
func TestSmokeWithoutSuites(t *testing.T) {
	p := simulate(t, 1)
	p.request.File, p.request.To, p.spec.Suites = "", "", nil
	if _, err := p.runPlan(t.Context()); err == nil {
		t.Fatal("smoke without suites succeeded")
	}
	all, err := report.ReadReports(filepath.Join(p.opt.Dir, "simulated/fleet/smoke", p.Boards[0].Name, "report.json"))
	if err != nil || all[0].Counts().Stages[report.Failed] != 1 {
		t.Errorf("reports %+v, %v; want one failed stage", all, err)
	}
}
