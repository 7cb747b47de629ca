package suite

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"slipway/ci/report"
	"slipway/images"
)

// waitGone waits until a process whose number is in a file has ended.
func waitGone(t *testing.T, pidFile string) {
	t.Helper()
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("process %d of %s still runs", pid, pidFile)
}

// runProgram runs a script as a check of the section binary, in a folder of the board.
func runProgram(t *testing.T, dir, script, attributes string) (report.CheckResult, error) {
	t.Helper()
	spec := specOf(t, "binary:\n  hostile:\n    path: hostile.sh\n    dir: "+dir+"\n"+attributes)
	if err := os.WriteFile(filepath.Join(filepath.Dir(spec.Suites[0]), "hostile.sh"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	soon := func(s *Session) { s.limits = lostLimits{2 * time.Second, 5 * time.Second} }
	r, err := Run(t.Context(), connect(t), spec, images.Artifact{}, soon)
	if len(r.Suites) != 1 || len(r.Suites[0].Checks) != 1 {
		t.Fatalf("Run = %+v, %v", r, err)
	}
	return r.Suites[0].Checks[0], err
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	for range 100 {
		if left, err := os.ReadDir(dir); err == nil && len(left) == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	left, err := os.ReadDir(dir)
	t.Errorf("left behind in %s: %v, %v", dir, left, err)
}

// A workload that cuts its connection is ended on the board, with its children, and its
// folder is removed.
func TestCutWorkloadEnds(t *testing.T) {
	dir, pids := t.TempDir(), t.TempDir()
	script := "echo $$ >" + pids + "/program; sleep 600 & echo $! >" + pids + "/child; echo >file; kill -9 $PPID; sleep 600"
	c, err := runProgram(t, dir, script, "    timeout: 20000\n")
	if !errors.Is(err, report.ErrUnreachable) || c.Status == report.Passed {
		t.Errorf("Run = %+v, %v; want the board unreachable", c, err)
	}
	waitGone(t, pids+"/program")
	waitGone(t, pids+"/child")
	wantEmpty(t, dir)
}

// The guard ends a program whose time is over, if nobody else does.
func TestGuardEndsPrograms(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "folder")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", guardScript, "sh", "1", folder, "sh", "-c", "echo $$ >"+dir+"/program; sleep 600 & echo $! >"+dir+"/child; sleep 600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	began := time.Now()
	if err := cmd.Run(); err == nil || time.Since(began) < time.Second {
		t.Errorf("the program ended after %v: %v; want it ended by a signal after a second", time.Since(began), err)
	}
	waitGone(t, dir+"/program")
	waitGone(t, dir+"/child")
	for range 100 {
		if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Error("its folder is still there")
}

// A program that ends by itself keeps its status, and its folder is not touched.
func TestGuardLetsProgramsEnd(t *testing.T) {
	cmd := exec.Command("sh", "-c", guardScript, "sh", "60", t.TempDir(), "sh", "-c", "echo out; exit 7")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || string(out) != "out\n" {
		t.Errorf("it printed %q, and ended with %v; want 7", out, err)
	}
}

// Garbage without end is ended, and no character of it reaches a terminal.
func TestGarbageEnds(t *testing.T) {
	dir, pids := t.TempDir(), t.TempDir()
	c, err := runProgram(t, dir, "echo $$ >"+pids+"/program; printf '\\033[2J\\377\\n'; exec cat /dev/urandom", "    timeout: 60000\n")
	if !errors.Is(err, report.ErrFailed) || !strings.Contains(c.Saw, "its output has no end") {
		t.Errorf("Run = %.300q, %v; want an output without end", c.Saw, err)
	}
	if i := strings.IndexFunc(c.Saw, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }); i >= 0 {
		t.Errorf("it holds %q", c.Saw[i])
	}
	waitGone(t, pids+"/program")
	wantEmpty(t, dir)
}

// A workload that fills the disk fails with the board's own words, and leaves it empty. On a
// full disk it is not run.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a small file system is mounted")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	c, err := runProgram(t, dir, "cat /dev/zero >big", "    timeout: 20000\n")
	if !errors.Is(err, report.ErrFailed) || !strings.Contains(c.Saw, "No space left on device") {
		t.Errorf("Run = %+v, %v; want no space", c, err)
	}
	wantEmpty(t, dir)
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, make([]byte, 2<<20), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("it is not full: %v", err)
	}
	c, err = runProgram(t, dir, "echo ran", "    timeout: 20000\n")
	if !errors.Is(err, report.ErrFailed) || !strings.Contains(c.Saw, "no room on the board") {
		t.Errorf("on a full disk: %+v, %v; want no room", c, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
