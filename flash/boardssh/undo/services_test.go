package undo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
	"slipway/layers/run"
)

// These scripts simulate systemctl and journalctl of systemd 252. The file NAME.state holds a
// unit's state. "restart" copies NAME.next over it.
const (
	fakeSystemctl = `#!/bin/sh
cd "$(dirname "$0")" && echo "$*" >>calls
case $1 in
restart) cat "$2.next" >"$2.state"; [ ! -e "$2.fails" ] || { echo "Job for $2 failed because the control process exited with error code." >&2; exit 1; } ;;
show) cat "$3.state" ;;
esac
`
	fakeJournalctl = "#!/bin/sh\nprintf 'app: cannot open \\033[31m/dev/x\\n'\n"
	running        = "LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nNRestarts=0\nType=simple\n"
)

func fakeSystemd(t *testing.T) (*boardssh.Conn, string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"systemctl": fakeSystemctl, "journalctl": fakeJournalctl} {
		if err := run.WriteProgram(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return boardtest.Connect(t, "SetEnv PATH="+dir+":/usr/bin:/bin"), dir
}

func TestRestart(t *testing.T) {
	c, dir := fakeSystemd(t)
	change := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(running) }
	tests := []struct {
		name, before, after string
		fails               bool
		want                string
	}{
		{"runs", running, running, false, ""},
		{"ran to its end", running, change("=active", "=inactive", "simple", "oneshot", "running", "dead"), false, ""},
		{"not found", change("=loaded", "=not-found"), running, false, "not-found"},
		{"bad setting", change("=loaded", "=bad-setting"), running, false, "bad-setting"},
		{"fails", running, change("=active", "=failed", "running", "failed", "=success", "=exit-code"), true, "result exit-code"},
		{"is over", running, change("=active", "=inactive"), false, "inactive"},
		{"again and again", running, change("=active", "=activating", "running", "auto-restart", "NRestarts=0", "NRestarts=2"), false, "auto-restart"},
		{"says nothing", running, "", false, "does not run"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			unit := strings.ReplaceAll(tt.name, " ", "-") + ".service"
			for ending, text := range map[string]string{".state": tt.before, ".next": tt.after} {
				if err := os.WriteFile(filepath.Join(dir, unit+ending), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if tt.fails {
				if err := os.WriteFile(filepath.Join(dir, unit+".fails"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			err := RestartUnits(t.Context(), c, []string{unit}, 0)
			sshtest.CheckError(t, err, tt.want)
			if err != nil && (!errors.Is(err, ErrUnit) || !strings.Contains(err.Error(), `cannot open \x1b[31m/dev/x`)) {
				t.Errorf("error %v; want the journal in it", err)
			}
			calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
			restarted := strings.Contains(string(calls), "restart "+unit)
			if loads := !strings.Contains(tt.before, "not-found") && !strings.Contains(tt.before, "bad"); restarted != loads {
				t.Errorf("restarted: %t; want %t", restarted, loads)
			}
		})
	}
}

// RestartUnits notices a unit that starts and then restarts by itself.
func TestRestartWatches(t *testing.T) {
	c, dir := fakeSystemd(t)
	for name, text := range map[string]string{"a.state": running, "a.next": running} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script := fakeSystemctl + `
[ "$(grep -c show calls)" -lt 4 ] || sed -i s/NRestarts=0/NRestarts=1/ a.state
`
	if err := run.WriteProgram(filepath.Join(dir, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	err := RestartUnits(t.Context(), c, []string{"a"}, time.Hour)
	sshtest.CheckError(t, err, "does not run: a: loaded, active")
}

// Undo stops a unit that the deploy had added, and restarts the others.
func TestRestoreUnits(t *testing.T) {
	c, dir := fakeSystemd(t)
	removed := strings.Replace(running, "=loaded", "=not-found", 1)
	for name, text := range map[string]string{
		"old.state": running, "old.next": running,
		"new.state":    removed,
		"broken.state": strings.Replace(removed, "=active", "=failed", 1),
		"never.state":  strings.Replace(removed, "=active", "=inactive", 1),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := RestoreUnits(t.Context(), c, []string{"new", "old", "broken", "never"}); err != nil {
		t.Error(err)
	}
	calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
	var changes []string
	for line := range strings.Lines(string(calls)) {
		if !strings.HasPrefix(line, "show ") && line != "daemon-reload\n" {
			changes = append(changes, strings.TrimSpace(line))
		}
	}
	if got, want := strings.Join(changes, ", "), "stop new, reset-failed broken, restart old"; got != want {
		t.Errorf("systemctl %s; want %s", got, want)
	}
}
