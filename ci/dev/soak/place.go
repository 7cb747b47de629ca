package soak

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"slipway/layers/run"
)

// placeVariable tells the test TestPlace the folder, seed, cards and program of a soak.
const placeVariable = "SLIPWAY_SOAK_PLACE"

// Place has a flashing place in a virtual machine write opt.Cards cards. TestPlace does the work and
// prints it, so that the program has no simulated disks. It needs Slipway's clone, as the folder that
// this runs in. dir is an empty folder.
func Place(ctx context.Context, w io.Writer, dir string, opt Options) error {
	test := filepath.Join(dir, "soak.test")
	if err := run.Run(ctx, run.Command{Argv: []string{"go", "test", "-c", "-o", test, "./ci/dev/soak"}}); err != nil {
		return err
	}
	return run.Run(ctx, run.Command{
		Argv: []string{test, "-test.run=^TestPlace$", "-test.timeout=0", "-test.v"},
		Env:  []string{fmt.Sprintf("%s=%s %d %d %s", placeVariable, dir, opt.Seed, opt.Cards, opt.Self[0])},
		Line: func(line string) { fmt.Fprintln(w, line) },
	})
}
