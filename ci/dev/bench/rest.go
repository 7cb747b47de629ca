package bench

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"slipway/layers/run"
)

// Rest measures slipway-rest's null requests beside an empty handler of net/http, with 1, 8
// and 64 connections. The program measures both itself, in turns.
func Rest(ctx context.Context, w io.Writer) error {
	return keepOnFailure(ctx, "bench-rest-", func(dir string) error {
		program := filepath.Join(dir, "slipway-rest")
		if err := run.Run(ctx, run.Command{Argv: []string{"go", "build", "-o", program, "./recipes/slipway-rest/files/slipway-rest"}}); err != nil {
			return err
		}
		cmd := run.Prepare(ctx, run.Command{Argv: []string{program, "bench"}})
		cmd.Stdout, cmd.Stderr = w, os.Stderr
		return cmd.Run()
	})
}
