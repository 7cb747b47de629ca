package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A full log is put aside, once, and what is written later is in the new one.
func TestLogRotates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hook.log")
	full := bytes.Repeat([]byte("an earlier line\n"), maxLogBytes/16+1)
	must(t, os.WriteFile(file, full, 0o640))
	for i := range 2 {
		log := openLog(file)
		fmt.Fprintf(log, "container %d\n", i)
		log.Close()
	}
	now, err := os.ReadFile(file)
	must(t, err)
	before, err := os.ReadFile(file + ".1")
	must(t, err)
	if string(now) != "container 0\ncontainer 1\n" || !bytes.Equal(before, full) {
		t.Errorf("the log holds %.100q, and %d of %d bytes are put aside", now, len(before), len(full))
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
