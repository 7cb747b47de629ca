package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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
