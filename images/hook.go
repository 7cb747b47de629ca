package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"slipway/layers/run"
)

// compileHook builds slipway-hook from the clone for the board's processor and
// returns the binary.
func compileHook(ctx context.Context, arch, dir string) ([]byte, error) {
	const module = "runtime-hook"
	if _, err := os.Stat(filepath.Join(module, "go.mod")); err != nil {
		return nil, errors.New("building an image needs Slipway's clone and Go, and this folder is no clone\nnext: run the same line in the top folder of a clone")
	}
	out, err := filepath.Abs(filepath.Join(dir, "slipway-hook"))
	if err != nil {
		return nil, err
	}
	err = run.Run(ctx, run.Command{
		Argv: []string{"go", "build", "-C", module, "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, "."},
		Env:  []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS="},
		Log:  filepath.Join(dir, "hook.log"),
	})
	if err != nil {
		return nil, fmt.Errorf("compile slipway-hook: %w", err)
	}
	return os.ReadFile(out)
}
