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
	s := soakedBuild{dir: dir, clone: clone}
	job := Job{Argv: append(slices.Clone(opt.Self), "build", clone.Board), Dir: dir, Env: []string{cache.Environment + "=off"}, Begin: s.beginRound, State: s.describeState}
	return Kill(ctx, w, job, 3, opt)
}

type soakedBuild struct {
	dir   string
	clone tinyclone.Clone
}

// beginRound removes all build results, or all except shared state, or changes a recipe.
func (s soakedBuild) beginRound(_ context.Context, round int) error {
	recipe := fmt.Sprintf("SUMMARY = \"a, of round %d\"\nCOMPILE = \"echo %[1]d; sleep 0.2\"\n", round/2)
	if err := os.WriteFile(filepath.Join(s.clone.Layer, "recipes/liba.bb"), []byte(recipe), 0o644); err != nil {
		return err
	}
	switch round {
	case 0:
		return errors.Join(os.RemoveAll(filepath.Join(s.clone.Built, "bitbake")), os.RemoveAll(filepath.Join(s.dir, "build/sstate-cache")))
	case 1:
		return os.RemoveAll(filepath.Join(s.clone.Built, "bitbake/tmp"))
	}
	return nil
}

// describeState describes the artifact without its build time, the record of the build, and
// the files.
func (s soakedBuild) describeState(context.Context, int) (string, error) {
	a, err := images.OpenArtifact(s.clone.Built)
	if err != nil {
		return "", err
	}
	rec, err := bitbake.Open(s.clone.Built)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range a.Files {
		fmt.Fprintf(&b, "%s %s %d %s\n", f.Kind, f.Name, f.SizeBytes, f.SHA256)
	}
	fmt.Fprintf(&b, "%s, exit status %d, %d tasks, %d failures\n", rec.State, rec.Exit, rec.Counts.Total, len(rec.Failures))
	entries, err := os.ReadDir(s.clone.Built)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") { // incomplete files that the next build replaces
			fmt.Fprintln(&b, e.Name())
		}
	}
	return b.String(), err
}
