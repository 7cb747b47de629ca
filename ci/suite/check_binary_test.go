package suite

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/flash/boardssh"
	"slipway/images"
)

// The results of parts are in the report, below their check.
func TestPartsAreResults(t *testing.T) {
	r := runHere(t, t.Context(), t.TempDir(), `
tap:
  camera: {exec: "printf '1..2\nok 1 - opens\nnot ok 2 - reads\n# no frame\n'; exit 1", meta: {next: plug it in}}
  none: {exec: echo hello}
ptest:
  packages: {argv: [printf, 'PASS: a\nSKIP: b\n']}
command:
  after it: {exec: 'true', needs: {check: packages}}
  not after it: {exec: 'true', needs: {check: camera}}
`)
	want := []string{
		"camera: failed: exit status 1\nresults: 1 failed, 1 passed / exit status: 0\nno result that failed",
		"camera/opens: passed: ", "camera/reads: failed: no frame / a pass",
		"none: failed: no TAP: neither a plan like 1..3 nor a result\nexit status 0\nstdout: hello / a whole output",
		"packages: passed: exit status 0; results: 1 passed, 1 skipped", "packages/a: passed: ", "packages/b: skipped: ",
		"after it: passed: exit status 0", `not after it: skipped: it needs "camera", which failed`,
	}
	if diff := cmp.Diff(want, resultTexts(r)); diff != "" {
		t.Error(diff)
	}
	if next := r.Checks[2].Next; next != "plug it in" {
		t.Errorf("next of a part is %q", next)
	}
}

// Slipway sends this test binary to the board, runs it there and leaves nothing behind.
func TestPushedBinary(t *testing.T) {
	conn := connect(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	boardDir := t.TempDir()
	suite := specOf(t, strings.ReplaceAll(`
binary:
  go tests: {path: parts.test, dir: $D, output: go, args: ['-test.run=^(TestEmptyOutcome|TestCheckResultsTruncated)$'], timeout: 120000}
  none of them: {path: parts.test, dir: $D, output: go, args: [-test.v, '-test.run=^TestOfNobody$'], timeout: 120000}
  a program: {path: program, dir: $D, args: [a b, $HOME], env: [X=it's, Y=], exit-status: 3}
  a program that hangs: {path: hangs, dir: $D, timeout: 1500}
  not there: {path: nothing.test, dir: $D, output: go}
  no such folder: {path: program, dir: $D/none}
`, "$D", boardDir))
	suiteDir := filepath.Dir(suite.Suites[0])
	script := "#!/bin/sh\nprintf '%s|' \"$@\" \"$X\" \"$Y\" > " + boardDir + "/said\npwd >> " + boardDir + "/said\nstat -c %a . >> " + boardDir + "/said\nexit 3\n"
	for name, data := range map[string]string{"program": script, "hangs": "#!/bin/sh\nsleep 60\n"} {
		if err := os.WriteFile(filepath.Join(suiteDir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(self, filepath.Join(suiteDir, "parts.test")); err != nil {
		t.Fatal(err)
	}
	r, _ := Run(t.Context(), conn, suite, images.Artifact{})
	want := []string{
		"go tests passed", "go tests/TestEmptyOutcome passed", "go tests/TestCheckResultsTruncated passed",
		"none of them failed", "a program passed", "a program that hangs failed", "not there failed", "no such folder failed",
	}
	got := checkStatuses(r)
	slices.Sort(got) // the tests of a binary run in an order of its own
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%+v", diff, r.Suites)
	}
	said, err := os.ReadFile(filepath.Join(boardDir, "said"))
	if err != nil || !strings.HasPrefix(string(said), "a b|$HOME|it's||"+boardDir+"/slipway-") || !strings.HasSuffix(string(said), "\n700\n") {
		t.Errorf("the program said %q, %v", said, err)
	}
	left, err := os.ReadDir(boardDir)
	if err != nil || len(left) != 1 {
		t.Errorf("left on the board: %v, %v; want what the program wrote", left, err)
	}
}

func TestCheckResultsTruncated(t *testing.T) {
	r := boardssh.Result{Stdout: []byte("1..1\nok\n"), Truncated: true}
	if f := (outputs{read: readTAP}).check(r); f.OK() {
		t.Error("results of an output that was cut count as whole")
	}
}

func TestEmptyOutcome(t *testing.T) {
	var f Finding
	if f.addOutcome(outcome{}); f.OK() {
		t.Error("a program that told no result passes")
	}
}
