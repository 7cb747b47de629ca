package host

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/layers/run"
)

func TestMissing(t *testing.T) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		t.Skip("this machine has no dpkg-query: not Debian")
	}
	got, err := Missing(t.Context(), "dpkg", "slipway-no-such-package", "coreutils")
	if want := []string{"slipway-no-such-package"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Missing = %q, %v; want %q", got, err, want)
	}
	if got, err := Missing(t.Context()); err != nil || got != nil {
		t.Errorf("Missing of nothing = %q, %v", got, err)
	}
}

// apt is started again while another program holds one of its locks, and for no other error.
func TestRunUnlocked(t *testing.T) {
	pause, limit := lockedPause, lockedLimit
	t.Cleanup(func() { lockedPause, lockedLimit = pause, limit })
	lockedPause = time.Millisecond
	const held = `echo "E: Could not get lock $lock. It is held by process 7 (unattended-upgr)"; echo "E: Unable to lock directory"; exit 100`
	for _, tt := range []struct {
		name, script string
		limit        time.Duration
		runs         int
		ok           bool
		details      string
	}{
		{"free", "echo Hit", time.Hour, 1, true, "Hit"},
		{"held twice", `[ $(wc -l < runs) -ge 3 ] && exit; lock=/a; ` + held, time.Hour, 3, true, "waiting for /a. It is held by process 7 (unattended-upgr)"},
		{"held for too long", "lock=/a; " + held, 0, 1, false, "waiting for /a. It is held by process 7 (unattended-upgr)"},
		{"another error", `echo "E: Unable to locate package x"; exit 100`, time.Hour, 1, false, "E: Unable to locate package x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lockedLimit = tt.limit
			dir := t.TempDir()
			var last string
			apt := run.Command{Argv: []string{"sh", "-c", `echo "$*" >> runs; ` + tt.script, "apt"}, Dir: dir}
			err := runUnlocked(t.Context(), func(line string) { last = line }, apt, "install", "a")
			runs, readErr := os.ReadFile(filepath.Join(dir, "runs"))
			if want := strings.Repeat("install a\n", tt.runs); (err == nil) != tt.ok || readErr != nil || string(runs) != want {
				t.Errorf("runUnlocked = %v, after %q; want %q", err, runs, want)
			}
			if last != tt.details {
				t.Errorf("it said at last %q; want %q", last, tt.details)
			}
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	lockedPause, lockedLimit = time.Hour, time.Hour
	apt := run.Command{Argv: []string{"sh", "-c", "lock=/a; " + held}}
	if err := runUnlocked(ctx, func(string) { time.AfterFunc(time.Second/10, stop) }, apt); !errors.Is(err, context.Canceled) {
		t.Errorf("runUnlocked of a stopped run = %v", err)
	}
}

func TestAptLine(t *testing.T) {
	if got, want := AptLine([]string{"a", "b"}), "sudo apt-get install -y --no-install-recommends a b"; got != want {
		t.Errorf("AptLine = %q; want %q", got, want)
	}
}
