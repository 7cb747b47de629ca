package host

import (
	"os"
	"strings"
	"testing"
)

// The line for root names the user's state folder and settings, which sudo drops.
func TestRepeatAsRoot(t *testing.T) {
	before := typedLine.Load()
	t.Cleanup(func() { typedLine.Store(before) })
	SetTyped([]string{"flash", "root", "/dev/sdX", "--image=my disk.img"})
	t.Setenv("XDG_STATE_HOME", "")
	for _, setting := range os.Environ() {
		if strings.HasPrefix(setting, "SLIPWAY_") {
			t.Skip("this environment has settings of Slipway")
		}
	}
	line := ProgramName() + " flash root /dev/sdX --image='my disk.img'"
	if got, want := TypedStep("repeat the line as root"), "sudo XDG_STATE_HOME=$HOME/.local/state "+line; got != want {
		t.Errorf("TypedStep = %s; want %s", got, want)
	}
	t.Setenv("XDG_STATE_HOME", "/my state")
	t.Setenv("SLIPWAY_SIGNERS", "keys")
	t.Setenv("SLIPWAY_REGISTRY_TOKEN", "secret") // must not appear
	if got, want := TypedStep("repeat the line as root"), "sudo XDG_STATE_HOME='/my state' SLIPWAY_SIGNERS=keys "+line; got != want {
		t.Errorf("TypedStep = %s; want %s", got, want)
	}
}
