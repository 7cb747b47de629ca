// Package suitetest simulates boards for tests of checks.
package suitetest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/sshd"
	"slipway/layers/run"
)

// Recorded is a simulated board. It maps a command line, or the beginning of one, to its output: of
// two that match, the longer. An output whose first line is "exit 1" has the status 1.
type Recorded map[string]string

// Run returns the output and status recorded for the command line or its beginning, or an error.
func (b Recorded) Run(_ context.Context, argv ...string) (boardssh.Result, error) {
	line := strings.Join(argv, " ")
	for _, prefix := range slices.Backward(slices.Sorted(maps.Keys(b))) { // longer ones first
		if strings.HasPrefix(line, prefix) {
			if rest, ok := strings.CutPrefix(b[prefix], "exit 1\n"); ok {
				return boardssh.Result{Status: 1, Stdout: []byte(rest)}, nil
			}
			return boardssh.Result{Stdout: []byte(b[prefix])}, nil
		}
	}
	return boardssh.Result{}, fmt.Errorf("not recorded: %s", line)
}

// FormatResult returns "failed: saw / want", or for another status like "passed: saw".
func FormatResult(r report.CheckResult) string {
	if r.Status == report.Failed {
		return "failed: " + r.Saw + " / " + r.Want
	}
	return string(r.Status) + ": " + r.Saw
}

// WriteSuite writes the files of a suite into a temporary folder, and returns main.yml's path.
func WriteSuite(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "main.yml")
}

// StartBoard starts sshd, and sets PATH, HOME and SSH_AUTH_SOCK: "ssh board" connects to it, with
// the host key alias serial-7. It returns the host key as known_hosts has it, and the path of the
// user's known_hosts. ssh ignores HOME, so a script in PATH adds -F. Without ssh it skips the test.
func StartBoard(t *testing.T, settings ...string) (key, known string) {
	t.Helper()
	program, err := exec.LookPath("ssh")
	if _, missing := os.Stat(sshd.Program); err != nil || missing != nil {
		t.Skip("ssh or sshd is missing: install the Debian packages openssh-client and openssh-server")
	}
	s, err := sshd.New(t.TempDir(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	dir := t.TempDir()
	known = filepath.Join(dir, "known_hosts")
	config := fmt.Sprintf("Host board\n\tHostName 127.0.0.1\n\tPort %d\n\tHostKeyAlias serial-7\n\tIdentityFile %s\n\tUserKnownHostsFile %s\n\tGlobalKnownHostsFile none\n", s.Port, s.Identity, known)
	for name, text := range map[string]string{"config": config, "ssh": "#!/bin/sh\nexec " + program + " -F " + filepath.Join(dir, "config") + " \"$@\"\n"} {
		if err := run.WriteProgram(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("HOME", dir)
	t.Setenv("SSH_AUTH_SOCK", "")
	line, err := os.ReadFile(s.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	_, key, _ = strings.Cut(strings.TrimSpace(string(line)), " ")
	return key, known
}
