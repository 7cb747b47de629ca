package soak

import (
	"cmp"
	"context"
	"io"

	"slipway/ci/dev/pipelines"
)

// Pipelines runs the pipelines that init writes to a green end and to red ones.
func Pipelines(ctx context.Context, w io.Writer, dir string, opt Options) error {
	return pipelines.Run(ctx, w, dir, opt.Self[0], cmp.Or(opt.Board, "virt"), opt.Only)
}
