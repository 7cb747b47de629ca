package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/container"
	"slipway/images"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// connect connects to a real sshd on this machine.
func connect(t *testing.T) *boardssh.Conn {
	t.Helper()
	t.Setenv("SSH_AUTH_SOCK", "")
	return boardtest.Connect(t)
}

func specOf(t *testing.T, suite string) images.Spec {
	return images.Spec{Board: "here", Suites: []string{suitetest.WriteSuite(t, map[string]string{"main.yml": suite})}}
}

// checkStatuses returns a report's checks as "name status".
func checkStatuses(r report.Report) []string {
	var got []string
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			got = append(got, c.Name+" "+string(c.Status))
		}
	}
	return got
}

func TestSmokeOverSSH(t *testing.T) {
	conn := connect(t)
	log := &progresstest.Recorder{}
	ctx := progress.With(t.Context(), progress.New(log))
	spec := specOf(t, `
command:
  slow: {exec: sleep 0.6}
  wrong: {exec: "echo 'it is; $HOME \"quoted\"'; exit 3", meta: {next: do this}}
  hangs: {exec: sleep 1000, timeout: 300}
  floods: {exec: yes, timeout: 1500}
  later: {exec: skip me, skip: true}
  quoted: {argv: [printf, '%s|', "a b", "", "$(id)", "it's"], stdout: "a b||$(id)|it's|"}
clock:
  time: {within: 5}
mount:
  /proc: {filesystem: proc}
file:
  /etc/passwd: {contents: ["/^root:/"], owner: root}
`)
	r, err := Run(ctx, conn, spec, images.Artifact{Key: "0123abcd"})
	if !errors.Is(err, report.ErrFailed) || !strings.Contains(err.Error(), "3 of 9 checks failed") || r.Reason != "check" {
		t.Errorf("Run = %v", err)
	}
	want := []string{
		"slow passed", "wrong failed", "hangs failed", "floods failed", "later skipped", "quoted passed",
		"time passed", "/proc passed", "/etc/passwd passed",
	}
	if diff := cmp.Diff(want, checkStatuses(r)); diff != "" {
		t.Error(diff)
	}
	wrong := r.Suites[0].Checks[1]
	if wrong.Saw != "exit status 3\nstdout: it is; $HOME \"quoted\"" || wrong.Want != "exit status: 0" || wrong.Next != "do this" {
		t.Errorf("%+v", wrong)
	}
	if id := r.Identity; id.Kernel == "" || id.Hostname == "" || id.BootID == "" || id.OS == "" || id.ImageKey != "0123abcd" {
		t.Errorf("identity %+v", id)
	}
	last := log.Last("smoke " + r.Suites[0].Name)
	if last.State != progress.Failed || last.Count != 9 || last.Total != 9 || last.Unit != progress.Tasks {
		t.Errorf("last event %+v", last)
	}
}

// A truncated output fails a check, since the rest may hold what the check looks for.
func TestCutOutputIsNoPass(t *testing.T) {
	conn := connect(t)
	dir := t.TempDir()
	for name, size := range map[string]int{"fits": maxFileBytes, "big": maxFileBytes + 1} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat(strings.Repeat("fine ", 50)+"\n", size/250)[:size]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Run(t.Context(), conn, specOf(t, strings.ReplaceAll(`
command:
  late: {exec: cat $D/big $D/big; echo Oops, stdout: ['!/Oops/'], meta: {next: look for the Oops}}
  late error: {exec: "{ cat $D/big $D/big; echo Oops; } >&2", stderr: ['!/Oops/']}
  late and failed: {exec: cat $D/big $D/big; exit 1, stdout: ['!/Oops/'], meta: {next: fix it}}
  unread: {exec: cat $D/big $D/big}
  the other: {exec: cat $D/big $D/big; echo Oops >&2, stderr: [Oops], stdout: []}
file:
  $D/fits: {contents: ['!/Oops/']}
  $D/big: {contents: ['!/Oops/'], meta: {next: look for the Oops}}
`, "$D", dir)), images.Artifact{})
	if !errors.Is(err, report.ErrFailed) {
		t.Errorf("Run = %v", err)
	}
	want := []string{
		"late failed", "late error failed", "late and failed failed", "unread passed", "the other passed",
		dir + "/fits passed", dir + "/big failed",
	}
	if diff := cmp.Diff(want, checkStatuses(r)); diff != "" {
		t.Fatal(diff)
	}
	checks := r.Suites[0].Checks
	for i, next := range map[int]string{0: "grep", 2: "fix it", 6: "grep"} {
		if c := checks[i]; !strings.Contains(c.Saw, "more than the 1 MiB that is kept") || !strings.Contains(c.Next, next) {
			t.Errorf("%s saw %.200q, next %q; want the limit, and %q next", c.Name, c.Saw, c.Next, next)
		}
	}
	s := &Session{Board: conn}
	if _, err := s.Output(t.Context(), "cat", dir+"/big", dir+"/big"); !errors.Is(err, errTruncated) {
		t.Errorf("ask for 2 MiB = %v; want %v", err, errTruncated)
	}
}

func TestSmokeRunsSeveralAtATime(t *testing.T) {
	conn := connect(t)
	spec := specOf(t, "command: {a: {exec: sleep 1}, b: {exec: sleep 1}, c: {exec: sleep 1}, d: {exec: sleep 1}}")
	r, err := Run(t.Context(), conn, spec, images.Artifact{})
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for _, a := range r.Suites[0].Checks {
		at := 0
		for _, b := range r.Suites[0].Checks {
			if b.StartMS <= a.StartMS && a.StartMS < b.StartMS+b.ElapsedMS {
				at++
			}
		}
		most = max(most, at)
	}
	if most != 3 {
		t.Errorf("%d checks ran at a time; want 3: %+v", most, r.Suites[0].Checks)
	}
}

func TestStoppedSmoke(t *testing.T) {
	conn := connect(t)
	why := errors.New("somebody pressed Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	begun := filepath.Join(t.TempDir(), "begun")
	go callWhenFileExists(ctx, begun, func() { cancel(why) })
	spec := specOf(t, "command: {quick: {exec: 'true'}}")
	spec.Suites = append(spec.Suites, specOf(t, "command: {slow: {exec: touch "+begun+"; sleep 60}}\nunits: {never: }\n").Suites...)
	r, err := Run(ctx, conn, spec, images.Artifact{})
	if !errors.Is(err, why) || errors.Is(err, report.ErrFailed) {
		t.Errorf("Run = %v", err)
	}
	if diff := cmp.Diff([]string{"quick passed", "slow skipped", "never skipped"}, checkStatuses(r)); diff != "" {
		t.Error(diff)
	}
	wantFailedStage(t, r, why.Error(), "repeat the line")
}

// junitText returns the junit.xml of a report.
func junitText(t *testing.T, r report.Report) string {
	t.Helper()
	dir := t.TempDir()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, report.ReportJUnit))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// wantFailedStage checks that the report and its junit.xml say that the run failed.
func wantFailedStage(t *testing.T, r report.Report, saw, next string) {
	t.Helper()
	var smoke report.Stage
	if i := slices.IndexFunc(r.Stages, func(s report.Stage) bool { return s.Name == "smoke" }); i >= 0 {
		smoke = r.Stages[i]
	}
	if smoke.Status != report.Failed || !strings.Contains(smoke.Saw, saw) || !strings.Contains(smoke.Next, next) {
		t.Errorf("stage smoke is %+v; want it failed, with %q seen and %q next", smoke, saw, next)
	}
	junit := junitText(t, r)
	var text strings.Builder
	r.Summary(&text)
	if !strings.Contains(junit, "<failure") || !strings.Contains(text.String(), "FAILED  stage: smoke") {
		t.Errorf("no failure in JUnit or in the summary:\n%s\n%s", junit, text.String())
	}
}

func TestNothingButSkippedChecks(t *testing.T) {
	spec := specOf(t, "command: {x: {exec: 'true', skip: true}}")
	r, err := runSuites(t.Context(), &Session{Board: localBoard{}}, spec, images.Artifact{})
	if !errors.Is(err, report.ErrFailed) || !strings.Contains(err.Error(), "none of 1 checks passed") {
		t.Errorf("runSuites = %v; want %v", err, report.ErrFailed)
	}
	wantFailedStage(t, r, "none of 1 checks passed", "skip")
}

// A project file stands in the place of a board. It has no board.yml to add suites to.
func TestSmokeRefusesProjectFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kas.yml")
	if err := os.WriteFile(file, []byte("header: {version: 14}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec, err := images.LoadBuilt(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadAll(spec); err == nil || !strings.HasPrefix(err.Error(), file+" is a project file, which the command build takes") || strings.Contains(err.Error(), "board.yml") {
		t.Errorf("LoadAll = %v; want what the file is, and which command takes it", err)
	}
}

func TestSmokeRefusesBoardsWithoutSuites(t *testing.T) {
	for _, tt := range []struct {
		suites []string
		want   string
	}{
		{nil, "board x has no suites, so nothing would be proved"},
		{[]string{"base", "nope"}, `no suite "nope"`},
	} {
		r, err := runSuites(t.Context(), &Session{Board: suitetest.Recorded{}}, images.Spec{Board: "x", Suites: tt.suites}, images.Artifact{})
		if err == nil || !strings.Contains(err.Error(), tt.want) || !r.Failed() || r.Reason != "suite" || report.ExitStatus(err) != 5 {
			t.Errorf("smoke(%v) = failed %v, %v; want %s", tt.suites, r.Failed(), err, tt.want)
		}
		wantFailedStage(t, r, tt.want, "board.yml")
	}
}

// If containerd is down, the next step of a container check is about containerd. The suite's
// own next step is about the container.
func TestContainerdIsDown(t *testing.T) {
	suite, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": "container: {x: {image: a, meta: {next: look at the CSV}}}"}))
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{Board: suitetest.Recorded{"true": ""}, open: func(context.Context) (containerEngine, error) { return nil, errors.New("no socket") }}
	if r := s.RunCheck(t.Context(), suite.Checks[0])[0]; r.Status != report.Failed || !strings.Contains(r.Next, "systemctl status containerd") {
		t.Errorf("%+v", r)
	}
}

// recordedContainers is a container engine with a recorded answer.
type recordedContainers struct {
	exit container.Exit
	err  error
}

func (c recordedContainers) Version(context.Context) (string, error) { return "1.7.24~ds1", c.err }
func (c recordedContainers) Close() error                            { return nil }
func (c recordedContainers) Run(context.Context, container.Spec) (container.Exit, error) {
	return c.exit, c.err
}

// slowContainers needs some time for each container.
type slowContainers struct{ recordedContainers }

func (c slowContainers) Run(context.Context, container.Spec) (container.Exit, error) {
	time.Sleep(20 * time.Millisecond)
	return c.exit, c.err
}

// Containers run one at a time. The wait does not count as a check's time.
func TestContainersRunOneAtATime(t *testing.T) {
	suite, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": "container: {a: {image: a}, b: {image: a}, c: {image: a}}"}))
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{open: func(context.Context) (containerEngine, error) { return slowContainers{}, nil }}
	checks := s.runSuite(t.Context(), suite).Checks
	slices.SortFunc(checks, func(a, b report.CheckResult) int { return int(a.StartMS - b.StartMS) })
	ended := int64(0)
	for i, c := range checks {
		if c.Status != report.Passed || c.StartMS < ended {
			t.Errorf("container %d: %s, began after %d ms; want the one before it ended first, after %d ms", i, c.Status, c.StartMS, ended)
		}
		ended = c.StartMS + c.ElapsedMS
	}
}

func TestContainers(t *testing.T) {
	const probe = "container: {x: {image: a, output: [slipway probe]}}"
	for _, tt := range []struct {
		name, suite string
		containers  recordedContainers
		want        string
	}{
		{"answers", "containerd: {x: }", recordedContainers{}, "passed: containerd 1.7.24~ds1 answers"},
		{"wrong version", "containerd: {x: {version: {have-prefix: '2.'}}}", recordedContainers{}, "failed: version 1.7.24~ds1 / version: begins with \"2.\""},
		{"silent", "containerd: {x: }", recordedContainers{err: errors.New("no socket")}, "failed: no socket / an answer"},
		{"works", probe, recordedContainers{exit: container.Exit{Output: []byte("slipway probe\n")}}, "passed: exit status 0; output: slipway probe"},
		{
			"no library", probe,
			recordedContainers{exit: container.Exit{Status: 127, Output: []byte("xz: liblzma.so.5: \x1b[1mno\x1b[0m\n")}},
			"failed: exit status 127\noutput: xz: liblzma.so.5: no / exit status: 0\noutput: a line with \"slipway probe\"",
		},
		{
			"says too much", probe,
			recordedContainers{exit: container.Exit{Output: []byte("slipway probe\n"), Truncated: true}},
			"failed: exit status 0, output: more than the 14 bytes that are kept\noutput: slipway probe / output: all of it",
		},
		{"says too much for nobody", "container: {x: {image: a}}", recordedContainers{exit: container.Exit{Truncated: true}}, "passed: exit status 0"},
		{"hook failed", probe, recordedContainers{err: errors.New("hook: exit status 1")}, "failed: hook: exit status 1 / an answer"},
	} {
		suite, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": tt.suite}))
		if err != nil {
			t.Fatal(err)
		}
		s := &Session{Board: suitetest.Recorded{"true": ""}, open: func(context.Context) (containerEngine, error) { return tt.containers, nil }}
		if diff := cmp.Diff(tt.want, suitetest.FormatResult(s.RunCheck(t.Context(), suite.Checks[0])[0])); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// Where nobody deployed the image, the suite's own next step does not help.
func TestContainerWithoutImage(t *testing.T) {
	path := suitetest.WriteSuite(t, map[string]string{"main.yml": "container: {x: {image: a, meta: {next: look at the lists}}}"})
	suite, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	missing := recordedContainers{err: fmt.Errorf("run a container: %w", container.ErrNoImage)}
	s := &Session{Board: suitetest.Recorded{"true": ""}, open: func(context.Context) (containerEngine, error) { return missing, nil }}
	if got := s.RunCheck(t.Context(), suite.Checks[0])[0].Next; !strings.HasPrefix(got, "bring the image") {
		t.Errorf("next is %q; want how to bring the image", got)
	}
}
