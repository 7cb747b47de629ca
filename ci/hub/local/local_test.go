package local

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"slipway/ci/hub/access"
)

// Beside a hub that the user joined and names in the environment, a local one is used, and the user's
// stays the one that was joined last.
func TestRunBesideAnotherHub(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", home)
	t.Setenv(access.Variable, "hub.example.com:8443")
	last := filepath.Join(home, "slipway", "hubs", "last")
	if err := os.MkdirAll(filepath.Dir(last), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(last, []byte("hub.example.com:8443\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), Options{Dir: dir, Program: os.Args[0], Log: t.Output()}, func(_ context.Context, client *access.Client) error {
		registry, err := access.Registry()
		if err == nil && registry.Address != client.Hub {
			t.Errorf("artifacts go to %s; want %s", registry.Address, client.Hub)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(last); err != nil || string(now) != "hub.example.com:8443\n" {
		t.Errorf("the hub that was joined last is %s, %v", now, err)
	}
}
