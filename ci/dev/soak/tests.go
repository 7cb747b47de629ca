package soak

import (
	"cmp"
	"context"
	"io"

	"slipway/ci/dev/source"
)

// Tests repeats the tests of packages under load.
func Tests(ctx context.Context, w io.Writer, _ string, opt Options) error {
	return source.UnderLoad(ctx, w, cmp.Or(opt.Rounds, 20), opt.Each, opt.Only)
}
