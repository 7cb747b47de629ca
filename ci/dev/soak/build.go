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

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/cache"
	"slipway/layers/run"
)

// Build kills the build of a small layer under a board's name: from scratch, from shared
// state, and after a change. SLIPWAY_BITBAKE names bitbake's clone.
func Build(ctx context.Context, w io.Writer, dir string, opt Options) error {
	source, err := bitbakeClone()
	if err != nil {
		return err
	}
	clone, err := makeTinyClone(ctx, dir, source)
	if err != nil {
		return err
	}
	// beginRound removes all build results, or all except shared state, or changes a recipe.
	beginRound := func(_ context.Context, round int) error {
		recipe := fmt.Sprintf("SUMMARY = \"a, of round %d\"\nCOMPILE = \"echo %[1]d; sleep 0.2\"\n", round/2)
		err := os.WriteFile(filepath.Join(clone.layer, "recipes/liba.bb"), []byte(recipe), 0o644)
		switch round {
		case 0:
			err = errors.Join(err, os.RemoveAll(filepath.Join(clone.built, "bitbake")), os.RemoveAll(filepath.Join(dir, "build/sstate-cache")))
		case 1:
			err = errors.Join(err, os.RemoveAll(filepath.Join(clone.built, "bitbake/tmp")))
		}
		return err
	}
	return Kill(ctx, w, Job{
		Argv: append(slices.Clone(opt.Self), "build", clone.board), Dir: dir, Env: []string{cache.Environment + "=off"},
		Begin: beginRound, State: func(context.Context) (string, error) { return describeBuild(clone.built) },
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

const tinyLayer = "images/testdata/bitbake/meta-tiny"

// tinyClone is a folder like a clone with one board, which the real bitbake builds in seconds.
type tinyClone struct {
	board string
	layer string // which may be added to
	built string // the board's folder, once it is built
}

// bitbakeClone returns the clone of bitbake that SLIPWAY_BITBAKE names, for a user who may run it.
func bitbakeClone() (string, error) {
	source := os.Getenv("SLIPWAY_BITBAKE")
	if source == "" {
		return "", errors.New("SLIPWAY_BITBAKE is not set: it names a git clone of bitbake, 1.46 or later")
	}
	if os.Geteuid() == 0 {
		return "", errors.New("bitbake does not build as root; run this as a normal user")
	}
	return source, nil
}

// makeTinyClone fills a folder: a board that is built of a small layer, by bitbake at the
// commit that source is at.
func makeTinyClone(ctx context.Context, dir, source string) (tinyClone, error) {
	spec, err := images.WithLayers()
	if err != nil {
		return tinyClone{}, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return tinyClone{}, err
	}
	c := tinyClone{board: spec.Board, layer: filepath.Join(dir, "meta-tiny"), built: images.Options{Dir: filepath.Join(dir, "build")}.BoardDir(spec)}
	if err := os.CopyFS(c.layer, os.DirFS(tinyLayer)); err != nil {
		return tinyClone{}, fmt.Errorf("run this in Slipway's clone: %w", err)
	}
	head, err := run.Output(ctx, run.Command{Argv: []string{"git", "-C", source, "rev-parse", "HEAD"}})
	if err != nil {
		return tinyClone{}, err
	}
	project := filepath.Join(dir, "images/boards", spec.Board, "kas.yml")
	if err := os.MkdirAll(filepath.Dir(project), 0o755); err != nil {
		return tinyClone{}, err
	}
	return c, os.WriteFile(project, fmt.Appendf(nil, `header: {version: 14}
machine: qemuarm64
target: tiny-image
repos:
  meta-tiny: {path: %q}
  bitbake: {url: %q, commit: %s, layers: {}}
`, c.layer, source, strings.TrimSpace(string(head))), 0o644)
}
