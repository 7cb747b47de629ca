package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"slipway/ci/report"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
	"slipway/images"
)

// A program of the board that prints nothing and ends with status 0 proves nothing, also where a
// check wants something to be absent.
func TestSilentPrograms(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"systemctl", "dpkg-query", "grep", "cat", "stat", "journalctl", "dmesg", "getent", "id", "readlink", "head", "date"} {
		sshtest.PlaceFile(t, filepath.Join(dir, name), "#!/bin/sh\nexit 0\n", 0o755)
	}
	c := boardtest.Connect(t, "SetEnv HOME="+dir+" PATH="+dir+":/usr/bin:/bin") // login scripts would run them too
	file := filepath.Join(t.TempDir(), "silent.yml")
	for check, text := range map[string]string{
		"service":   "service: {none: {running: false, enabled: false}}",
		"units":     "units: {all: {}}",
		"dmesg":     "dmesg: {clean: {never: [panic]}}",
		"mount":     "mount: {/none: {exists: false}}",
		"user":      "user: {none: {exists: false}}",
		"group":     "group: {none: {exists: false}}",
		"interface": "interface: {none0: {exists: false}}",
		"port":      "port: {'tcp:9': {listening: false}}",
		"process":   "process: {none: {running: false}}",
		"file":      "file: {/etc/passwd: {exists: true}}",
		"package":   "package: {none: {installed: false}}",
		"clock":     "clock: {right: {within: 10}}",
	} {
		if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		spec := images.Spec{Board: "toy", Suites: []string{file}}
		r, err := Run(t.Context(), c, spec, images.NoArtifact(spec, t.TempDir()))
		if n := r.Counts(); n.Checks[report.Passed] > 0 || n.TotalChecks() != 1 || err == nil {
			t.Errorf("%s: %s, %v; want that it does not pass", check, fmt.Sprint(n.Checks), err)
		}
	}
}
