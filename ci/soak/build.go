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
	"slipway/layers/engine"
)

const tinyLayer = "images/testdata/bitbake/meta-tiny"

// Build kills build, of a small layer under a board's name, while it builds from
// nothing, from shared state, and what changed. SLIPWAY_BITBAKE names bitbake's
// clone.
func Build(ctx context.Context, w io.Writer, dir string, opt Options) error {
	source := os.Getenv("SLIPWAY_BITBAKE")
	if source == "" {
		return errors.New("SLIPWAY_BITBAKE is not set: it names a git clone of bitbake, 1.46 or later")
	}
	if os.Geteuid() == 0 {
		return errors.New("bitbake does not build as root; run this as a normal user")
	}
	spec, err := images.WithLayers()
	if err != nil {
		return err
	}
	s := soakedBuild{dir: dir, at: filepath.Join(dir, "build", spec.Board)}
	if err := s.make(ctx, spec.Board, source); err != nil {
		return err
	}
	job := Job{Argv: append(slices.Clone(opt.Self), "build", spec.Board), Dir: dir, Env: []string{cache.Environment + "=off"}, Begin: s.begin, State: s.state}
	return Kill(ctx, w, job, 3, opt)
}

type soakedBuild struct {
	dir string
	at  string // the board's folder
}

func (s soakedBuild) make(ctx context.Context, board, source string) error {
	if err := os.CopyFS(filepath.Join(s.dir, "meta-tiny"), os.DirFS(tinyLayer)); err != nil {
		return fmt.Errorf("run this in Slipway's clone: %w", err)
	}
	head, err := engine.Output(ctx, engine.Command{Argv: []string{"git", "-C", source, "rev-parse", "HEAD"}})
	if err != nil {
		return err
	}
	project := filepath.Join(s.dir, "images/boards", board, "kas.yml")
	if err := os.MkdirAll(filepath.Dir(project), 0o755); err != nil {
		return err
	}
	return os.WriteFile(project, fmt.Appendf(nil, `header: {version: 14}
machine: qemuarm64
target: tiny-image
repos:
  meta-tiny: {path: %s}
  bitbake: {url: %q, commit: %s, layers: {}}
`, filepath.Join(s.dir, "meta-tiny"), source, strings.TrimSpace(string(head))), 0o644)
}

// begin takes away all that was built, or all but shared state, or changes a
// recipe.
func (s soakedBuild) begin(_ context.Context, round int) error {
	recipe := fmt.Sprintf("SUMMARY = \"a, of round %d\"\nCOMPILE = \"echo %[1]d; sleep 0.2\"\n", round/2)
	if err := os.WriteFile(filepath.Join(s.dir, "meta-tiny/recipes/liba.bb"), []byte(recipe), 0o644); err != nil {
		return err
	}
	switch round {
	case 0:
		return errors.Join(os.RemoveAll(filepath.Join(s.at, "bitbake")), os.RemoveAll(filepath.Join(s.dir, "build/sstate-cache")))
	case 1:
		return os.RemoveAll(filepath.Join(s.at, "bitbake/tmp"))
	}
	return nil
}

// state is the artifact, without the time that it was built, what was recorded of
// the build, and which files are there.
func (s soakedBuild) state(context.Context, int) (string, error) {
	a, err := images.OpenArtifact(s.at)
	if err != nil {
		return "", err
	}
	rec, err := bitbake.Open(s.at)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range a.Files {
		fmt.Fprintf(&b, "%s %s %d %s\n", f.Kind, f.Name, f.SizeBytes, f.SHA256)
	}
	fmt.Fprintf(&b, "%s, exit status %d, %d tasks, %d failures\n", rec.State, rec.Exit, rec.Counts.Total, len(rec.Failures))
	entries, err := os.ReadDir(s.at)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") { // halves that the next build replaces
			fmt.Fprintln(&b, e.Name())
		}
	}
	return b.String(), err
}
