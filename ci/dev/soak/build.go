package soak

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/builder"
	"slipway/images/cache"
)

// buildScript makes the project, and begins rounds.
//
//go:embed build.sh
var buildScript string

// Build kills "slipway build" of a small layer again and again: a first build, one from shared
// state, and one after a change. dir must be Slipway's clone, SLIPWAY_BITBAKE one of bitbake.
// Root gets an error.
func Build(ctx context.Context, w io.Writer, dir string, opt Options) error {
	source := os.Getenv("SLIPWAY_BITBAKE")
	switch {
	case source == "":
		return errors.New("SLIPWAY_BITBAKE is not set: it names a git clone of bitbake, 1.46 or later")
	case os.Geteuid() == 0:
		return errors.New("bitbake does not build as root; run this as a normal user")
	}
	spec, err := builder.WithLayers()
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	built := images.Options{Dir: filepath.Join(dir, "build")}.BoardDir(spec)
	s := script{buildScript, dir, filepath.Join(dir, "images/boards", spec.Board, "kas.yml"), source, built}
	if _, err := s.call(ctx, "clone"); err != nil {
		return fmt.Errorf("run this in Slipway's clone: %w", err)
	}
	return Kill(ctx, w, Job{
		Argv: append(slices.Clone(opt.Self), "build", spec.Board), Dir: dir, Env: []string{cache.Environment + "=off"},
		Begin: s.begin, State: func(context.Context) (string, error) { return describeBuild(built) },
	}, 3, opt)
}

// describeBuild returns a text with the artifact's files, the result of the build and the folder's
// files, without times, to compare builds.
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
