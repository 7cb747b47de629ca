package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/ci/dev/tinyclone"
	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/cache"
)

// Build kills the build of a small layer under a board's name: from scratch, from shared
// state, and after a change. SLIPWAY_BITBAKE names bitbake's clone.
func Build(ctx context.Context, w io.Writer, dir string, opt Options) error {
	source, err := tinyclone.Source()
	if err != nil {
		return err
	}
	clone, err := tinyclone.Make(ctx, dir, source, "tiny-image")
	if err != nil {
		return err
	}
	// beginRound removes all build results, or all except shared state, or changes a recipe.
	beginRound := func(_ context.Context, round int) error {
		recipe := fmt.Sprintf("SUMMARY = \"a, of round %d\"\nCOMPILE = \"echo %[1]d; sleep 0.2\"\n", round/2)
		err := os.WriteFile(filepath.Join(clone.Layer, "recipes/liba.bb"), []byte(recipe), 0o644)
		switch round {
		case 0:
			err = errors.Join(err, os.RemoveAll(filepath.Join(clone.Built, "bitbake")), os.RemoveAll(filepath.Join(dir, "build/sstate-cache")))
		case 1:
			err = errors.Join(err, os.RemoveAll(filepath.Join(clone.Built, "bitbake/tmp")))
		}
		return err
	}
	return Kill(ctx, w, Job{
		Argv: append(slices.Clone(opt.Self), "build", clone.Board), Dir: dir, Env: []string{cache.Environment + "=off"},
		Begin: beginRound, State: func(context.Context) (string, error) { return describeBuild(clone.Built) },
	}, 3, opt)
}

// describeBuild describes the artifact without its build time, the record of the build, and
// the files.
func describeBuild(folder string) (string, error) {
	a, err := images.OpenArtifact(folder)
	if err != nil {
		return "", err
	}
	rec, err := bitbake.Open(folder)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range a.Files {
		fmt.Fprintf(&b, "%s %s %d %s\n", f.Kind, f.Name, f.SizeBytes, f.SHA256)
	}
	fmt.Fprintf(&b, "%s, exit status %d, %d tasks, %d failures\n", rec.State, rec.Exit, rec.Counts.Total, len(rec.Failures))
	entries, err := filepath.Glob(filepath.Join(folder, "[^.]*")) // those with a dot are incomplete, and the next build replaces them
	return b.String() + strings.Join(entries, "\n"), err
}
