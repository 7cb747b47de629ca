package ci

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"slipway/flash/boardssh/boardtest"
)

// pauseRAUC stops the service with SIGSTOP, so calls get no answer.
func pauseRAUC(t *testing.T, r *boardtest.RAUC) {
	t.Helper()
	if err := r.Service.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

// systemctlOf returns a setting of the board's sshd with which "systemctl stop rauc.service" kills
// this service. Other systemctl commands fail.
func systemctlOf(t *testing.T, r *boardtest.RAUC) string {
	t.Helper()
	r.WriteProgram(t, "systemctl", fmt.Sprintf("#!/bin/sh\n[ \"$*\" = 'stop rauc.service' ] && kill %d && touch %s\n", r.Service.Process.Pid, r.File("stopped")))
	return r.Program()
}

// isStopped reports whether the script of systemctlOf has killed the service.
func isStopped(r *boardtest.RAUC) bool {
	_, err := os.Stat(r.File("stopped"))
	return err == nil
}

// giveUp marks the next slot bad, as a boot loader does that could not start it.
func giveUp(t *testing.T, r *boardtest.RAUC) {
	t.Helper()
	r.Write(t, "state."+r.Next(), "bad\n")
}

// waitingHook returns a hook that runs until releaseHook, for tests that look at an installation.
func waitingHook(r *boardtest.RAUC) string {
	return fmt.Sprintf("touch %[1]s/waits; while [ -d %[1]s ] && [ ! -e %[1]s/go ]; do sleep 0.1; done", string(r.Folder))
}

// awaitHook waits, up to five minutes, until an installation runs the hook of waitingHook.
func awaitHook(t *testing.T, r *boardtest.RAUC) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		if err := os.Remove(r.File("waits")); err == nil { // so that a later installation can be waited for
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal("the installation did not come to its hook")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// releaseHook lets the hook of waitingHook continue.
func releaseHook(t *testing.T, r *boardtest.RAUC) {
	t.Helper()
	r.Write(t, "go", "")
}

// countInstallations asks RAUC how often it has written the slot; 0 for a slot that it does not list.
func countInstallations(t *testing.T, r *boardtest.RAUC, slot string) int {
	t.Helper()
	conn, err := dbus.Connect("unix:path=" + r.Bus)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var slots []struct {
		Name   string
		Fields map[string]dbus.Variant
	}
	if err := conn.Object("de.pengutronix.rauc", "/").Call("de.pengutronix.rauc.Installer.GetSlotStatus", 0).Store(&slots); err != nil {
		t.Fatal(err)
	}
	for _, s := range slots {
		if s.Name == slot {
			n, _ := s.Fields["installed.count"].Value().(uint32)
			return int(n)
		}
	}
	return 0
}
