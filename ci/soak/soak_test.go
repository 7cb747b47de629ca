package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/ci/tinyboard"
	"slipway/images"
)

// asCommand makes this test binary the program whose commands are killed.
const asCommand = "SLIPWAY_SOAK_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "" {
		os.Exit(m.Run())
	}
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(args []string) error {
	spec, err := images.Load(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "layers:checkout":
		return images.CheckoutLayers(context.Background(), spec, images.Options{Dir: "build"})
	}
	return fmt.Errorf("unknown command %q", args)
}

func options(t *testing.T) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asCommand, "1")
	return Options{Kills: 10, Seed: rand.Uint64(), Self: []string{self}}
}

// lines writes what a soak says into a test's log.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func TestLayers(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed (Debian package git)")
	}
	if err := Layers(t.Context(), lines{t}, t.TempDir(), options(t)); err != nil {
		t.Fatal(err)
	}
}

func TestHook(t *testing.T) {
	t.Chdir("../..") // the hook is built from the clone
	if err := tinyboard.Needs(); err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(tinyboard.HostBusybox); err != nil {
		t.Skip("busybox is not installed (Debian package busybox-static)")
	}
	if err := Hook(t.Context(), lines{t}, t.TempDir(), Options{Containers: 10}); err != nil {
		t.Fatal(err)
	}
}

// A job that leaves what it should not, after a kill alone, must be noticed.
func TestKillNoticesADifference(t *testing.T) {
	dir := t.TempDir()
	script := `[ -e begun ] && echo broken > result; echo x > begun; sleep 0.2; [ -e result ] || echo whole > result; rm begun`
	job := Job{
		Argv: []string{"sh", "-c", script}, Dir: dir,
		Begin: func(context.Context, int) error { return os.RemoveAll(filepath.Join(dir, "result")) },
		State: func(context.Context, int) (string, error) {
			data, err := os.ReadFile(filepath.Join(dir, "result"))
			return string(data), err
		},
	}
	err := Kill(t.Context(), lines{t}, job, 1, Options{Kills: 10, Seed: 1})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("Kill = %v; want it to show the broken result", err)
	}
}
