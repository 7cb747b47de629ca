//go:build mage

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/flash/target/sudotest"
)

// With -become, a suite checks a board by sudo, whatever the environment says.
func TestBecomeFlag(t *testing.T) {
	s := sudotest.Start(t, sudotest.Rights["NOPASSWD"])
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
	host, yes, no := fmt.Sprintf("%s@127.0.0.1:%d", sudotest.User, s.Port), true, false
	if err := Smoke(t.Context(), "", host, &suite, nil, nil, nil, nil, &yes); err != nil {
		t.Errorf("smoke -become = %v; want the check to pass", err)
	}
	t.Setenv("SLIPWAY_BECOME", "sudo")
	if err := Smoke(t.Context(), "", host, &suite, nil, nil, nil, nil, &no); err == nil {
		t.Error("smoke -become=false = nil; want the check to fail")
	}
}

// Each command that runs programs on a board has the flag and obeys it.
func TestEachCommandBecomes(t *testing.T) {
	known, err := readCommands()
	if err != nil {
		t.Fatal(err)
	}
	flags := 0
	for name, c := range known {
		reaches := slices.ContainsFunc(c.words, func(a argument) bool { return a.name == "host" || a.name == "inventory" })
		if name == "fleet:list" || name == "fleet:pin" { // they run none
			reaches = false
		}
		if becomes := c.flag("become") != nil; becomes != reaches {
			t.Errorf("%s has the flag -become: %v; want %v", name, becomes, reaches)
		} else if becomes {
			flags++
		}
	}
	heeded := 0
	for _, name := range []string{"boards.go", "deploy.go", "fleet.go", "update.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		heeded += strings.Count(string(text), "(asRoot(ctx, become), ")
	}
	if heeded != flags {
		t.Errorf("%d commands heed -become; want %d", heeded, flags)
	}
}
