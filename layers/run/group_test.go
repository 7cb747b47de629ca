package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stopped runs a shell script whose $0 is a file, and ends the context once the file is there. It
// returns the pid that the file holds, and how long the script took to end after that.
func stopped(t *testing.T, script string) (pid int, took time.Duration) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancelCause(t.Context())
	pressed := errors.New("interrupt")
	asked := make(chan time.Time, 1)
	go func() {
		for ctx.Err() == nil {
			if data, _ := os.ReadFile(file); strings.HasSuffix(string(data), "\n") {
				asked <- time.Now()
				cancel(pressed)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	if err := Run(ctx, Command{Argv: []string{"sh", "-c", script, file}}); !errors.Is(err, pressed) {
		t.Errorf("Run = %v; want %v", err, pressed)
	}
	took = time.Since(<-asked)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if runs(pid) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	return pid, took
}

func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// shortGrace is for scripts that do not end when they are asked to.
func shortGrace(t *testing.T, d time.Duration) {
	long := grace
	grace = d
	t.Cleanup(func() { grace = long })
}

// A program's children must not outlive a Ctrl-C: they have ended when Run returns.
func TestRunStopsTheWholeGroup(t *testing.T) {
	tests := []struct{ name, script string }{
		{"a child", `sleep 300 & echo $! >"$0"; wait`},
		{"a child that ignores it", `(trap '' TERM; exec sleep 300) & sleep 0.2; echo $! >"$0"; wait`},
		{"a child that ignores it and has closed its output", `(trap '' TERM; exec sleep 300) >/dev/null 2>&1 & sleep 0.2; echo $! >"$0"; wait`},
		{"both ignore it", `trap '' TERM; sleep 300 & echo $! >"$0"; wait`},
		{"a child of one that ended before", `(trap '' TERM; sleep 300 >/dev/null 2>&1 & echo $! >"$0"); exec sleep 300`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			shortGrace(t, 300*time.Millisecond)
			pid, took := stopped(t, tt.script)
			if runs(pid) {
				t.Errorf("the child %d outlived its parent", pid)
			}
			if took > 5*time.Second {
				t.Errorf("ended after %v; want about %v", took, grace)
			}
		})
	}
}

// A child may take its time to clean up, as long as a program may.
func TestRunLetsChildrenCleanUp(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	_, took := stopped(t, `(trap 'sleep 0.5; touch '"`+done+`"'; exit' TERM; while :; do sleep 0.05; done) & sleep 0.2; echo $! >"$0"; wait`)
	if _, err := os.Stat(done); err != nil {
		t.Errorf("the child was cut off: %v", err)
	}
	if took > grace/2 {
		t.Errorf("Run returned %v after the end was asked for; want as soon as the child had ended", took)
	}
}

// What is not asked to end, because the context lives on, is left alone.
func TestRunLeavesWhatAProgramLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	if err := Run(t.Context(), Command{Argv: []string{"sh", "-c", `sleep 300 >/dev/null 2>&1 & echo $! >"$0"`, file}}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	if !runs(pid) {
		t.Errorf("the program %d in the background was ended", pid)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// Gentle programs are asked themselves, and nothing else is done.
func TestRunGentle(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ready := filepath.Join(dir, "ready")
	go func() {
		for {
			if _, err := os.Stat(ready); err == nil {
				cancel()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	script := `trap '' INT; (sleep 0.5; echo whole >"$0/child") & touch "$0/ready"; wait; echo whole >"$0/leader"`
	if err := Run(ctx, Command{Argv: []string{"sh", "-c", script, dir}, Gentle: true}); err == nil {
		t.Log("it ended with success, which is its own to decide")
	}
	for _, name := range []string{"child", "leader"} {
		if data, _ := os.ReadFile(filepath.Join(dir, name)); string(data) != "whole\n" {
			t.Errorf("the %s was cut off", name)
		}
	}
}
