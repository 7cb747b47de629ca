package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/images"
	"slipway/layers"
	"slipway/layers/host"
)

// The line for root in a container names a folder that the new user may enter, and a
// home of its own for Go's caches.
func TestLineForRootInContainer(t *testing.T) {
	open, err := os.MkdirTemp("/var/tmp", "open")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(open) })
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(t.TempDir(), "closed")
	below := filepath.Join(closed, "clone")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ here, build, want, not string }{
		{open, "build", "chown -R builder: . && runuser", "cp -a"},
		{open, filepath.Join(open, "build"), "chown -R builder: . && runuser", "mkdir"},
		{open, "/srv/b c", "mkdir -p '/srv/b c' && chown -R builder: '/srv/b c' && runuser", "cp -a"},
		{below, "build", "cp -a . /home/builder/slipway && chown -R builder: /home/builder/slipway && cd /home/builder/slipway && runuser", "builder: ."},
	} {
		t.Chdir(tt.here)
		line := builderCommands(boardBuild{spec: images.Spec{Board: "b"}, Options: Options{Build: images.Options{Dir: tt.build}}})
		if !strings.Contains(line, tt.want) || strings.Contains(line, tt.not) || !strings.HasSuffix(line, " -- env HOME=/home/builder "+host.ProgramName()+" build b") {
			t.Errorf("in %s: %s", tt.here, line)
		}
	}
	isar := builderCommands(boardBuild{spec: images.Spec{Board: "b"}, project: layers.Project{BuildSystem: "isar-privileged"}})
	if !strings.Contains(isar, " && usermod -aG sbuild builder && ") || !strings.Contains(isar, "NOPASSWD") {
		t.Errorf("for Isar: %s; want the group sbuild and sudo", isar)
	}
}
