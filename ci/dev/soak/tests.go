package soak

import (
	"cmp"
	"context"
	"io"

	"slipway/ci/dev/source"
)

// Tests repeats the tests that depend on a machine's load, under load.
func Tests(ctx context.Context, w io.Writer, _ string, opt Options) error {
	return source.UnderLoad(ctx, w, cmp.Or(opt.Rounds, 200), opt.Each, opt.Only)
}
