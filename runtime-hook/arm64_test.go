package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The boards are arm64. qemu-user runs the hook that they get, called by this machine's runtimes.
// It knows neither open_tree nor openat2, so the hook uses mount(2) there.
func TestARM64Hook(t *testing.T) {
	qemu := needARM64(t)
	hook := filepath.Join(filepath.Dir(hookBinary(t)), "slipway-hook-arm64")
	build := exec.Command("go", "build", "-o", hook, ".")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	somewhere(t, newLab, func(t *testing.T, l *lab, stage string) {
		l.hook = []string{qemu, hook, "hook"}
		everythingArrives(t, l, stage)
	})
}
