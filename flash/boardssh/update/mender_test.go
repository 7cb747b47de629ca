package update_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/update"
	"slipway/layers/run"
)

func TestMain(m *testing.M) {
	os.Unsetenv("SSH_AUTH_SOCK")
	os.Exit(m.Run())
}

// A Mender Artifact is refused with the next step, also one that is cut off. Another tar is
// no bundle at all.
func TestMenderArtifactRefused(t *testing.T) {
	for first, want := range map[string]string{"version": "next: update --help  # Slipway drives", "versions": "not a bundle for RAUC or SWUpdate"} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: first, Mode: 0o600, Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "new.mender")
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := update.OpenBundle(t.Context(), file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("OpenBundle of a tar with %s = %v; want an error with %q", first, err, want)
		}
	}
}

// A board that has only Mender is told so.
func TestBoardWithMenderAlone(t *testing.T) {
	for program, want := range map[string]string{"mender-update": "the board has Mender, which Slipway does not drive", "mender": "the board has Mender", "mends": "no Mender either"} {
		dir := t.TempDir()
		if err := run.WriteProgram(filepath.Join(dir, program), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		c := boardtest.Connect(t, fmt.Sprintf("SetEnv PATH=%s:/usr/bin:/bin TMPDIR=%[1]s HOME=%[1]s", dir))
		if e, err := update.FindEngine(t.Context(), c, filepath.Join(dir, "bus")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: FindEngine = %v, %v; want an error with %q", program, e, err, want)
		}
	}
}
