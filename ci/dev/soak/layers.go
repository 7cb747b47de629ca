package soak

import (
	"context"
	_ "embed"
	"io"
	"path/filepath"
	"slices"

	"slipway/images/builder"
)

// layersScript makes git servers, prepares rounds and describes the result.
//
//go:embed layers.sh
var layersScript string

// Layers kills "slipway layers checkout" of a small project with patches, made in dir, in three
// rounds: a first checkout, newer commits with a changed patch, and back to the first ones.
func Layers(ctx context.Context, w io.Writer, dir string, opt Options) error {
	spec, err := builder.WithLayers()
	if err != nil {
		return err
	}
	s := script{layersScript, dir, filepath.Join(dir, "images/boards", spec.Board, "kas.yml")}
	if _, err := s.call(ctx, "servers"); err != nil {
		return err
	}
	return Kill(ctx, w, Job{
		Argv: append(slices.Clone(opt.Self), "layers", "checkout", spec.Board), Dir: dir,
		Begin: s.begin, State: func(ctx context.Context) (string, error) { return s.call(ctx, "state") },
	}, 3, opt)
}
