package doctor

import (
	"strings"
	"testing"

	"slipway/images"
	"slipway/layers"
	"slipway/layers/host"
)

// The line for root in a container names a folder that the new user may enter, and a
// home of its own for Go's caches.
func TestLineForRootInContainer(t *testing.T) {
	const copied = "cp -a . /home/builder/slipway && chown -R builder: /home/builder/slipway && cd /home/builder/slipway && "
	for build, want := range map[string]string{
		"build":    copied + "runuser",
		"/srv/b c": copied + "mkdir -p '/srv/b c' && chown -R builder: '/srv/b c' && runuser",
	} {
		line := builderCommands(boardBuild{spec: images.Spec{Board: "b"}, Options: Options{Build: images.Options{Dir: build}}})
		if !strings.Contains(line, want) || !strings.HasSuffix(line, " -- env HOME=/home/builder "+host.ProgramName()+" build b") {
			t.Errorf("builderCommands in %s = %s; want %s", build, line, want)
		}
	}
	isar := builderCommands(boardBuild{spec: images.Spec{Board: "b"}, project: layers.Project{BuildSystem: "isar-privileged"}})
	if !strings.Contains(isar, " && usermod -aG sbuild builder && ") || !strings.Contains(isar, "NOPASSWD") {
		t.Errorf("for Isar: %s; want the group sbuild and sudo", isar)
	}
}
