package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Many hooks that find the log full at once put it aside once, and lose no line.
func TestLogRotates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hook.log")
	const hooks = 64
	for round := 0; round < 20; round++ {
		full := bytes.Repeat([]byte("an earlier line\n"), maxLogBytes/16+1)
		must(t, os.WriteFile(file, full, 0o640))
		var started, ended sync.WaitGroup
		started.Add(1)
		for i := 0; i < hooks; i++ {
			ended.Add(1)
			go func(i int) {
				defer ended.Done()
				started.Wait()
				log := openLog(file)
				fmt.Fprintf(log, "container %d\n", i)
				log.Close()
			}(i)
		}
		started.Done()
		ended.Wait()
		now, err := os.ReadFile(file)
		must(t, err)
		before, err := os.ReadFile(file + ".1")
		must(t, err)
		if got := strings.Count(string(now)+string(before), "container "); got != hooks || !bytes.HasPrefix(before, full) {
			t.Fatalf("round %d: %d of %d lines are there, and %d of %d bytes put aside", round, got, hooks, len(before), len(full))
		}
	}
}

// A container does not fail where the hook can say nothing.
func TestNobodyListens(t *testing.T) {
	l := newLab(t, "runc")
	write(t, "/opt/board/a.so", "board a")
	l.lists("lib, /opt/board/a.so")
	must(t, os.MkdirAll("/run/slipway/hook.log", 0o755))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	hook := exec.Command(l.hookArgv()[0], "hook")
	hook.Stdin, hook.Stderr = state(t, l.container(), filepath.Join(l.dir, "bundle")), full
	if err := hook.Run(); err != nil {
		t.Errorf("the hook fails: %v", err)
	}
}
