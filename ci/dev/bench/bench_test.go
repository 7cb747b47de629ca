package bench

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The folder that an error names must still exist. A fresh clone has no build folder.
func TestKeepOnFailure(t *testing.T) {
	failed := errors.New("failed")
	for _, tt := range []struct {
		name     string
		err      error
		stop     bool
		wantLeft bool
	}{{"success", nil, false, false}, {"failure", failed, false, true}, {"stopped", failed, true, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var dir string
			err := keepOnFailure(ctx, "bench-x-", func(d string) error {
				dir = d
				if tt.stop {
					cancel()
				}
				return errors.Join(tt.err, os.WriteFile(filepath.Join(d, "report"), nil, 0o644))
			})
			if !errors.Is(err, tt.err) || filepath.Dir(dir) != "build" {
				t.Errorf("keepOnFailure in %s = %v; want %v, in build", dir, err, tt.err)
			}
			if _, err := os.Stat(filepath.Join(dir, "report")); (err == nil) != tt.wantLeft {
				t.Errorf("the folder's report: %v; want it left: %v", err, tt.wantLeft)
			}
		})
	}
}

// A pattern that matches nothing is an error with the names, before anything is installed or made.
func TestOnlyNothing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for pattern, want := range map[string]string{
		"nothing": "--only=nothing matches none of: plain ours; plain ",
		"[":       "--only: error parsing regexp",
	} {
		var out strings.Builder
		err := Run(t.Context(), &out, "deploy", Options{Only: pattern})
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("bench deploy --only=%s = %v, %q; want %s", pattern, err, out.String(), want)
		}
	}
	names := deployNames()
	for _, name := range []string{"plain ours", "far " + libraryName, "delta"} {
		if _, err := compileOnly("^"+name+"$", names); err != nil {
			t.Error(err)
		}
	}
}

// What bench hook and bench layers need is installed, and not only named.
func TestPackagesAreEnsured(t *testing.T) {
	t.Chdir("../../..")
	t.Setenv("PATH", t.TempDir()) // no dpkg, so that nothing is installed
	for area, want := range map[string]string{"hook": "runc busybox-static", "layers": "python3-distro python3-git"} {
		if err := Run(t.Context(), io.Discard, area, Options{}); err == nil || !strings.Contains(err.Error(), "these Debian packages hold: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("bench %s = %v; want a look for the packages %s", area, err, want)
		}
	}
}
