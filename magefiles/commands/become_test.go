package commands

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/sshtest"
)

// With --become, a suite checks a board by sudo, whatever the environment says.
func TestBecomeFlag(t *testing.T) {
	s := sshtest.StartSudo(t, sshtest.SudoRights["NOPASSWD"])
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PATH", home) // the real ssh ignores HOME
	t.Setenv("SSH_AUTH_SOCK", "")
	t.Setenv("SLIPWAY_BECOME", "")
	keys := filepath.Join(home, ".ssh")
	suite := filepath.Join(home, "root.yml")
	for _, err := range []error{
		os.Mkdir(keys, 0o700), os.Rename(s.KnownHosts, filepath.Join(keys, "known_hosts")), os.Rename(s.Identity, filepath.Join(keys, "id_ed25519")),
		os.WriteFile(suite, []byte("command:\n  id -u:\n    stdout: [/^0$/]\n"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	host := fmt.Sprintf("%s@127.0.0.1:%d", sshtest.SudoUser, s.Port)
	if err := Run(t.Context(), Root(), []string{"smoke", host, "--suite", suite, "--become"}); err != nil {
		t.Errorf("smoke --become = %v; want the check to pass", err)
	}
	t.Setenv("SLIPWAY_BECOME", "sudo")
	if err := Run(t.Context(), Root(), []string{"smoke", host, "--suite=" + suite, "--become=false"}); err == nil {
		t.Error("smoke --become=false = nil; want the check to fail")
	}
}

// Each command that runs programs on a board has the flag.
func TestEachCommandBecomes(t *testing.T) {
	for _, cmd := range allCommands() {
		path := strings.Join(pathOf(cmd), " ")
		reaches := strings.Contains(cmd.Use, " HOST") || strings.Contains(cmd.Use, " INVENTORY") || path == "audit"
		if path == "fleet list" || path == "fleet pin" { // they run none
			reaches = false
		}
		if becomes := cmd.Flag("become") != nil; becomes != reaches {
			t.Errorf("%s has the flag --become: %v; want %v", path, becomes, reaches)
		}
	}
}

// The work of a command with the flag gets it in its context.
func TestBecomeReachesTheWork(t *testing.T) {
	for flag, want := range map[string]string{"--become": "root", "--become=false": ""} {
		t.Setenv("SLIPWAY_BECOME", map[string]string{"": "sudo"}[want])
		c, got := New("try", "Try it"), "no answer"
		c.become()
		c.Run = func(ctx context.Context, _ []string) (err error) {
			got, err = boardssh.BecomeUser(ctx)
			return err
		}
		if err := Run(t.Context(), Root(c), []string{"try", flag}); err != nil || got != want {
			t.Errorf("try %s = %v, as %q; want %q", flag, err, got, want)
		}
	}
}
