// Package tinyclone makes what looks like a clone with one board, which the real
// bitbake builds in seconds: for commands that run build again and again.
package tinyclone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"slipway/images"
	"slipway/layers/run"
)

const tinyLayer = "images/testdata/bitbake/meta-tiny"

// Clone is such a folder.
type Clone struct {
	Dir   string
	Board string
	Layer string // which may be added to
	Built string // the board's folder, once it is built
}

// Source is the clone of bitbake that SLIPWAY_BITBAKE names, for a user who may run it.
func Source() (string, error) {
	source := os.Getenv("SLIPWAY_BITBAKE")
	if source == "" {
		return "", errors.New("SLIPWAY_BITBAKE is not set: it names a git clone of bitbake, 1.46 or later")
	}
	if os.Geteuid() == 0 {
		return "", errors.New("bitbake does not build as root; run this as a normal user")
	}
	return source, nil
}

// Make fills a folder: a board that is built of a small layer, by bitbake at the
// commit that source is at, with a target.
func Make(ctx context.Context, dir, source, target string) (Clone, error) {
	spec, err := images.WithLayers()
	if err != nil {
		return Clone{}, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return Clone{}, err
	}
	c := Clone{Dir: dir, Board: spec.Board, Layer: filepath.Join(dir, "meta-tiny"), Built: images.Options{Dir: filepath.Join(dir, "build")}.BoardDir(spec)}
	if err := os.CopyFS(c.Layer, os.DirFS(tinyLayer)); err != nil {
		return Clone{}, fmt.Errorf("run this in Slipway's clone: %w", err)
	}
	head, err := run.Output(ctx, run.Command{Argv: []string{"git", "-C", source, "rev-parse", "HEAD"}})
	if err != nil {
		return Clone{}, err
	}
	project := filepath.Join(dir, "images/boards", spec.Board, "kas.yml")
	if err := os.MkdirAll(filepath.Dir(project), 0o755); err != nil {
		return Clone{}, err
	}
	return c, os.WriteFile(project, fmt.Appendf(nil, `header: {version: 14}
machine: qemuarm64
target: %s
repos:
  meta-tiny: {path: %q}
  bitbake: {url: %q, commit: %s, layers: {}}
`, target, c.Layer, source, strings.TrimSpace(string(head))), 0o644)
}
