package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"slipway/layers/run"
)

// hookModule is the folder of the hook's source, in the top folder of a clone.
const hookModule = "runtime-hook"

// checkClone refuses to build the hook where its source is not.
func checkClone() error {
	if _, err := os.Stat(filepath.Join(hookModule, "go.mod")); err != nil {
		return errors.New("building an image needs Slipway's clone and Go, and this folder is no clone\nnext: version  # names the commit to clone; or init makes a board of your own, which needs no clone")
	}
	return nil
}

// compileHook builds slipway-hook from the clone for the board's processor and
// returns the binary.
func compileHook(ctx context.Context, arch, dir string) ([]byte, error) {
	if err := checkClone(); err != nil {
		return nil, err
	}
	out, err := filepath.Abs(filepath.Join(dir, "slipway-hook"))
	if err != nil {
		return nil, err
	}
	err = run.Run(ctx, run.Command{
		Argv: []string{"go", "build", "-C", hookModule, "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, "."},
		Env:  []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS="},
		Log:  filepath.Join(dir, "hook.log"),
	})
	if err != nil {
		return nil, fmt.Errorf("compile slipway-hook: %w", err)
	}
	return os.ReadFile(out)
}
