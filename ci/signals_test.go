package ci

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"slipway/layers/progress"
	"slipway/layers/run"
)

// linkClone makes a folder that looks like the clone but has its own build folder. The
// commands that run there are compiled in the clone, where Go has compiled their
// packages.
func linkClone(t *testing.T, clone string) string {
	t.Helper()
	// Go's test cache would take the times of what os.ReadDir lists for input.
	names, err := run.Output(t.Context(), run.Command{Argv: []string{"ls", "-A", clone}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range strings.Fields(string(names)) {
		if name == "build" {
			continue
		}
		if err := os.Symlink(filepath.Join(clone, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// shareImage gives a copy of the clone the image of other tests, so that its commands do
// not build it again.
func shareImage(t *testing.T, r virtualBuild, dir string) {
	t.Helper()
	shared := r.opt.Build
	shared.Dir = filepath.Join(testBoards, "whole")
	a, err := Build(t.Context(), io.Discard, r.spec, shared)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "build", r.spec.Board)
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range a.Files {
		if err := run.Run(t.Context(), run.Command{Argv: []string{"cp", "--sparse=always", a.Path(f), to}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Save(to); err != nil {
		t.Fatal(err)
	}
}

// The real commands, ended by real signals in the middle of a boot.
func TestSignals(t *testing.T) {
	r := newVirtualBuild(t, "signals") // may skip the test, and changes to the clone's top folder
	clone, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	cache, dir := filepath.Join(clone, r.opt.Build.Cache), linkClone(t, clone)
	if err := os.MkdirAll(filepath.Join(dir, "build"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(cache, filepath.Join(dir, "build", "cache")); err != nil {
		t.Fatal(err)
	}
	shareImage(t, r, dir)
	binary := filepath.Join(dir, "build", "slipway")
	err = run.Run(t.Context(), run.Command{Argv: []string{"go", "tool", "mage", "-compile", binary}})
	if err != nil {
		t.Fatal(err)
	}
	mage := []string{"go", "tool", "mage", "-w", dir}
	tests := []struct {
		name   string
		dir    string
		argv   []string
		signal syscall.Signal
		group  bool // to the process group, as a terminal sends it
	}{
		{"SIGTERM to the binary", dir, []string{binary}, syscall.SIGTERM, false},
		{"SIGINT to the binary", dir, []string{binary}, syscall.SIGINT, false},
		{"Ctrl-C under mage", clone, mage, syscall.SIGINT, true},
		{"SIGTERM to mage", clone, mage, syscall.SIGTERM, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := findLeftovers(t, filepath.Join(dir, "build"))
			cmd := exec.CommandContext(t.Context(), test.argv[0], append(test.argv[1:], "up")...)
			cmd.Dir, cmd.Env = test.dir, append(os.Environ(), "SLIPWAY_PROGRESS=json", "CI=true")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			stderr, held, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer stderr.Close()
			cmd.Stderr = held
			if err := errors.Join(cmd.Start(), held.Close()); err != nil {
				t.Fatal(err)
			}
			booting, ended := waitForStep(t, bufio.NewScanner(stderr), "boot")
			if !booting {
				t.Fatalf("%v ended before its boot: %v", test.argv, cmd.Wait())
			}
			pid := cmd.Process.Pid
			if test.group {
				pid = -pid
			}
			if err := syscall.Kill(pid, test.signal); err != nil {
				t.Fatal(err)
			}
			// Mage itself exits with 0 when it is terminated: not ours to change.
			if err := cmd.Wait(); err == nil && test.name != "SIGTERM to mage" {
				t.Errorf("%v exited with 0 after %v", test.argv, test.signal)
			}
			select { // Mage does not wait for our program, which holds stderr until it ends
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("the program still runs")
			}
			if left := findLeftovers(t, filepath.Join(dir, "build")); len(left) > len(before) {
				t.Errorf("left behind: %q; before: %q", left, before)
			}
		})
	}
}

// waitForStep reads progress until a step begins, and then discards the rest, so that the
// program never waits for its reader. It closes ended at the end of the output.
func waitForStep(t *testing.T, lines *bufio.Scanner, step string) (reached bool, ended chan struct{}) {
	for lines.Scan() {
		var e progress.Event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			t.Log(lines.Text())
			continue
		}
		if e.Step == step {
			ended = make(chan struct{})
			go func() {
				defer close(ended)
				for lines.Scan() {
				}
			}()
			return true, ended
		}
	}
	return false, nil
}
