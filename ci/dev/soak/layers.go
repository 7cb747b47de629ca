package soak

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"slipway/images"
	"slipway/layers/run"
)

// layersScript makes servers, begins rounds and describes the result.
//
//go:embed layers.sh
var layersScript string

// Layers kills layers checkout of a small project under a board's name, while it starts
// again, moves forward and moves back, with patches.
func Layers(ctx context.Context, w io.Writer, dir string, opt Options) error {
	spec, err := images.WithLayers()
	if err != nil {
		return err
	}
	project := filepath.Join(dir, "images/boards", spec.Board, "kas.yml")
	call := func(ctx context.Context, args ...string) (string, error) {
		out, err := run.Output(ctx, run.Command{Argv: append([]string{"sh", "-eu", "-c", layersScript, "sh", dir, project}, args...)})
		return string(out), err
	}
	if _, err := call(ctx, "servers"); err != nil {
		return err
	}
	return Kill(ctx, w, Job{
		Argv: append(slices.Clone(opt.Self), "layers", "checkout", spec.Board), Dir: dir,
		Begin: func(ctx context.Context, round int) error {
			_, err := call(ctx, "begin", fmt.Sprint(round))
			return err
		},
		State: func(ctx context.Context) (string, error) { return call(ctx, "state") },
	}, 3, opt)
}
