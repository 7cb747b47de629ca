package host

import (
	"os/exec"
	"slices"
	"testing"
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

func TestAptLine(t *testing.T) {
	if got, want := AptLine([]string{"a", "b"}), "sudo apt-get install -y --no-install-recommends a b"; got != want {
		t.Errorf("AptLine = %q; want %q", got, want)
	}
}
