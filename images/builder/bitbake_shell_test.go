package builder

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/images"
	"slipway/images/cache"
	"slipway/layers/run"
)

// With this in its environment the test binary becomes a shell of that line.
const shellLine = "SLIPWAY_SHELL_LINE"

func init() {
	line, set := os.LookupEnv(shellLine)
	if !set {
		return
	}
	spec, err := WithLayers()
	must(err)
	s, err := NewShell(context.Background(), spec, images.Options{Dir: "build"}, line)
	if err == nil {
		must(os.Unsetenv(shellLine))
		err = s.Become()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(125)
}

// shellBoard makes a folder that looks like a clone with one board and its bitbake.
func shellBoard(t *testing.T, header, bitbake string) (dir string, spec images.Spec) {
	t.Helper()
	spec, err := WithLayers()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, content := range map[string]string{
		filepath.Join("images/boards", spec.Board, "kas.yml"): header + "repos: {own: {}, bitbake: {path: " + dir + "/bitbake}}\n",
		"bitbake/bin/bitbake": bitbake,
	} {
		must(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		must(run.WriteProgram(filepath.Join(dir, name), []byte(content), 0o755))
	}
	return dir, spec
}

// inShell is this program, about to become a shell of a line.
func inShell(t *testing.T, dir, line string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), shellLine+"="+line), env...)
	return cmd
}

// bitbake in a shell is told of the cache, as in a build: its tasks' hashes would be others.
func TestShellHasTheCache(t *testing.T) {
	dir, _ := shellBoard(t, "header: {version: 14}\n", "")
	fakeCheckout(t, filepath.Join(dir, "bitbake"), "2.8.1")
	server := fakeCacheServe(t)
	cmd := inShell(t, dir, `cat $BBPRECONF`, cache.Environment+"="+server)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `SSTATE_MIRRORS = "file://.* `+server) {
		t.Errorf("BBPRECONF = %q, %v; want the cache", out, err)
	}
}

func TestShell(t *testing.T) {
	dir, spec := shellBoard(t, "header: {version: 14}\nenv: {EDITION: lite}\n",
		"#!/bin/sh\necho bitbake \"$@\" in $BUILDDIR with $EDITION, passes $BB_ENV_PASSTHROUGH_ADDITIONS\n")
	build := filepath.Join(dir, "build", spec.Board, "bitbake")
	tests := []struct {
		line, want string
		status     int
	}{
		{"bitbake -e 'a  b'", "bitbake -e a  b in " + build + " with lite, passes *EDITION*", 0},
		{"pwd", build + "\n", 0},
		{"cat conf/local.conf", "*MACHINE ??= *", 0},
		{"echo a | tr a b && exit 7", "b\n", 7},
		{"no-such-program", "*no-such-program*not found*", 127},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			cmd := inShell(t, dir, tt.line)
			out, _ := cmd.CombinedOutput() // its status is looked at
			if got := cmd.ProcessState.ExitCode(); got != tt.status || !holds(string(out), tt.want) {
				t.Errorf("%s = %q, status %d; want %q, status %d", tt.line, out, got, tt.want, tt.status)
			}
		})
	}
}

// holds says whether a text has the parts of a pattern between its stars, in order.
func holds(text, pattern string) bool {
	if !strings.Contains(pattern, "*") {
		return text == pattern
	}
	for part := range strings.SplitSeq(pattern, "*") {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}
