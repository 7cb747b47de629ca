package soak

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"slipway/layers/host"
	"slipway/layers/run"
)

// hookScript simulates a board in its mount namespace, and starts the containers.
//
//go:embed hook.sh
var hookScript string

// Hook starts containers that get a board's files from slipway-hook: some of them 8 at a time, also
// while the board's list of files changes, and the rest one after another. All must succeed and
// leave nothing behind. It needs root, runs in Slipway's clone, and writes below dir, an empty
// folder. It installs runc and busybox-static.
func Hook(ctx context.Context, w io.Writer, dir string, opt Options) error {
	if os.Getuid() != 0 {
		return errors.New("it mounts and runs containers: it needs root")
	}
	if err := host.Ensure(ctx, w, filepath.Join(dir, "apt.log"), "runc", "busybox-static"); err != nil {
		return err
	}
	hook := filepath.Join(dir, "slipway-hook")
	build := run.Command{Argv: []string{"go", "build", "-C", "runtime-hook", "-trimpath", "-o", hook, "."}, Env: []string{"CGO_ENABLED=0"}}
	if err := run.Run(ctx, build); err != nil {
		return err
	}
	return run.Run(ctx, run.Command{
		Argv: []string{
			"unshare", "--mount", "--propagation=private", "sh", "-eu", "-c", hookScript, "sh",
			filepath.Join(dir, "board"), hook, fmt.Sprintf("slipway-soak-%d-", os.Getpid()), fmt.Sprint(opt.Containers),
		},
		Line:   func(line string) { fmt.Fprintln(w, line) },
		Gentle: true, // the script waits for the containers that run
	})
}
