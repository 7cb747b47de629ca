package suite

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// runHere runs a suite on this machine. $D in the suite is dir.
func runHere(t *testing.T, ctx context.Context, dir, text string) report.SuiteResult {
	t.Helper()
	suite, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": strings.ReplaceAll(text, "$D", dir)}))
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{Board: localBoard{}}
	return s.runSuite(ctx, suite)
}

// resultTexts returns results like "name: passed: saw".
func resultTexts(r report.SuiteResult) []string {
	var all []string
	for _, c := range r.Checks {
		all = append(all, c.Name+": "+suitetest.FormatResult(c))
	}
	return all
}

func TestRetries(t *testing.T) {
	dir := t.TempDir()
	r := runHere(t, t.Context(), dir, `
command:
  third time: {exec: "echo x >> $D/a; test $(wc -l < $D/a) -ge 3", retries: 5, pause: 1}
  never: {exec: "echo x >> $D/b; exit 1", retries: 2, pause: 0}
  at once: {exec: "true", retries: 9}
  too slow: {exec: exec sleep 60, timeout: 300, retries: 1, pause: 1}
`)
	want := []string{
		"third time: passed: exit status 0", "never: failed: exit status 1, no output / exit status: 0",
		"at once: passed: exit status 0", "too slow: failed: no answer in time (300ms) / an answer",
	}
	if diff := cmp.Diff(want, resultTexts(r)); diff != "" {
		t.Error(diff)
	}
	for i, want := range []int{3, 3, 0, 2} {
		if got := r.Checks[i].Attempts; got != want {
			t.Errorf("%s: %d attempts; want %d", r.Checks[i].Name, got, want)
		}
	}
	for file, want := range map[string]string{"a": "x\nx\nx\n", "b": "x\nx\nx\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", file, got, err, want)
		}
	}
}

func TestNeeds(t *testing.T) {
	r := runHere(t, t.Context(), t.TempDir(), `
command:
  has all: {exec: 'true', needs: {file: /dev/null, command: sh}}
  no file: {exec: touch $D/ran, needs: {file: /dev/nvhost gpu}, teardown: [touch $D/torn]}
  no program: {exec: touch $D/ran, needs: [{command: sh}, {command: nvidia-smi-of-nobody}]}
  no module: {exec: touch $D/ran, needs: {module: no-such-thing}}
  fails: {exec: exit 1, title: the one that fails}
  after that: {exec: touch $D/ran, needs: {check: fails}}
  after the skipped: {exec: touch $D/ran, needs: [{check: after that}]}
  after the good: {exec: 'true', needs: [{check: has all}, {check: has all}]}
  by its title: {exec: touch $D/ran, needs: {check: the one that fails}}
  nothing ran: {exec: test ! -e $D/ran && test ! -e $D/torn, alone: true}
`)
	want := []string{
		"has all: passed: exit status 0",
		"no file: skipped: the board lacks what it needs: it has no /dev/nvhost gpu",
		"no program: skipped: the board lacks what it needs: it has no program nvidia-smi-of-nobody",
		"no module: skipped: the board lacks what it needs: its kernel has no module no_such_thing loaded or built in",
		"the one that fails: failed: exit status 1, no output / exit status: 0",
		`after that: skipped: it needs "the one that fails", which failed`,
		`after the skipped: skipped: it needs "after that", which was skipped`,
		"after the good: passed: exit status 0",
		`by its title: skipped: it needs "the one that fails", which failed`,
		"nothing ran: passed: exit status 0",
	}
	if diff := cmp.Diff(want, resultTexts(r)); diff != "" {
		t.Error(diff)
	}
}

// A check that removes what it needs cannot be repeated. It failed, and its teardown runs.
func TestTeardownAfterMissing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/a", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := runHere(t, t.Context(), dir, "command: {x: {exec: rm $D/a; exit 1, retries: 2, needs: {file: $D/a}, teardown: [touch $D/b]}}\n")
	if _, err := os.Stat(dir + "/b"); err != nil || r.Checks[0].Status != report.Failed || r.Checks[0].Attempts != 2 {
		t.Errorf("%v, %+v; want a failed check of 2 attempts, and its teardown", err, r.Checks[0])
	}
}

func TestTeardown(t *testing.T) {
	dir := t.TempDir()
	r := runHere(t, t.Context(), dir, `
command:
  passes: {exec: touch $D/a, teardown: [rm $D/a, [touch, $D/b c]]}
  fails: {exec: touch $D/d; exit 1, teardown: [rm $D/d]}
  hangs: {exec: exec sleep 60, timeout: 300, teardown: [touch $D/e]}
  leaves something: {exec: 'true', teardown: ["echo no >&2; exit 2", touch $D/last], meta: {next: look}}
`)
	want := []string{
		"passes: passed: exit status 0", "fails: failed: exit status 1, no output / exit status: 0",
		"hangs: failed: no answer in time (300ms) / an answer",
		"leaves something: failed: teardown: sh -c 'echo no >&2; exit 2': exit status 2\nstderr: no / a teardown that works",
	}
	if diff := cmp.Diff(want, resultTexts(r)); diff != "" {
		t.Error(diff)
	}
	if got, want := r.Checks[3].Next, "run its teardown by hand on the board: sh -c 'echo no >&2; exit 2'; sh -c 'touch "+dir+"/last'"; got != want {
		t.Errorf("next %q; want %q", got, want)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{"b c", "e", "last"}, left); diff != "" {
		t.Error(diff)
	}
}

// A Ctrl-C ends the running check. Its teardown runs over the real connection. Checks that
// did not begin have no teardown.
func TestTeardownAfterCtrlC(t *testing.T) {
	conn := connect(t)
	why := errors.New("somebody pressed Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	dir := t.TempDir()
	go callWhenFileExists(ctx, filepath.Join(dir, "begun"), func() { cancel(why) })
	spec := specOf(t, strings.ReplaceAll(`
command:
  slow: {exec: touch $D/begun; sleep 60, retries: 3, teardown: [touch $D/torn]}
  later: {exec: 'true', alone: true, teardown: [touch $D/later]}
`, "$D", dir))
	r, err := Run(ctx, conn, spec, images.Artifact{})
	if !errors.Is(err, why) {
		t.Errorf("Run = %v", err)
	}
	if diff := cmp.Diff([]string{"slow skipped", "later skipped"}, checkStatuses(r)); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(dir, "torn")); err != nil {
		t.Errorf("the teardown was not run: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "later")); err == nil {
		t.Error("the teardown of a check that was not begun was run")
	}
}

// callWhenFileExists calls then as soon as a file exists.
func callWhenFileExists(ctx context.Context, file string, then func()) {
	for ctx.Err() == nil {
		if _, err := os.Stat(file); err == nil {
			then()
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestRunningChecksAreShown(t *testing.T) {
	dir := t.TempDir()
	log := &progresstest.Recorder{}
	shown := func() bool {
		return log.Saw("smoke main", "first, second") || log.Saw("smoke main", "second, first")
	}
	go func() {
		for !shown() && t.Context().Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		os.WriteFile(filepath.Join(dir, "shown"), nil, 0o644)
	}()
	r := runHere(t, progress.With(t.Context(), progress.New(log)), dir, `
command:
  first: {exec: until test -e $D/shown; do sleep 0.05; done}
  second: {exec: until test -e $D/shown; do sleep 0.05; done}
`)
	if diff := cmp.Diff([]string{"first: passed: exit status 0", "second: passed: exit status 0"}, resultTexts(r)); diff != "" {
		t.Error(diff)
	}
}

// localBoard is this machine as a board: it runs real programs, without a connection.
type localBoard struct{}

// Run runs a program on this machine.
func (localBoard) Run(ctx context.Context, argv ...string) (boardssh.Result, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = 10 * time.Second
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	r := boardssh.Result{Stdout: []byte(out.String()), Stderr: []byte(errs.String())}
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		r.Status, err = exit.ExitCode(), nil
	}
	return r, err
}
