package soak

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/images"
	"slipway/layers/run"
)

//go:embed servers.sh
var serversScript string

// Layers kills layers checkout of a small project under a board's name, while it starts
// again, moves forward and moves back, with patches.
func Layers(ctx context.Context, w io.Writer, dir string, opt Options) error {
	spec, err := images.WithLayers()
	if err != nil {
		return err
	}
	s := soakedLayers{dir: dir, project: filepath.Join(dir, "images/boards", spec.Board, "kas.yml")}
	commits, err := run.Output(ctx, run.Command{Argv: []string{"sh", "-eu", "-c", serversScript, "sh", dir}})
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(s.project), 0o755)); err != nil {
		return err
	}
	s.commits = strings.Fields(string(commits))
	job := Job{Argv: append(slices.Clone(opt.Self), "layers", "checkout", spec.Board), Dir: dir, Begin: s.beginRound, State: s.describeState}
	return Kill(ctx, w, job, 3, opt)
}

type soakedLayers struct {
	dir     string
	project string
	commits []string // two of each server
}

// beginRound writes the project of a round, with a patch. The last round starts in an empty
// folder.
func (s *soakedLayers) beginRound(_ context.Context, round int) (err error) {
	if round == 2 {
		err = os.RemoveAll(filepath.Join(s.dir, "build"))
	}
	project := "header: {version: 14}\nmachine: m\nrepos:\n  here: {}\n"
	for i := range 2 {
		project += fmt.Sprintf("  r%d: {url: %q, commit: %s, patches: {fix: {repo: here, path: fix.patch}}}\n", i, filepath.Join(s.dir, fmt.Sprintf("r%d", i)), s.commits[2*i+round%2])
	}
	patch := fmt.Sprintf("--- /dev/null\n+++ b/recipes-0/fix.bb\n@@ -0,0 +1 @@\n+SUMMARY = \"fixed in %d\"\n", round)
	return errors.Join(err, os.WriteFile(filepath.Join(filepath.Dir(s.project), "fix.patch"), []byte(patch), 0o644), os.WriteFile(s.project, []byte(project), 0o644))
}

// describeState returns every checkout's commit and git's status of its files, and a digest
// of every file. It skips git's folders, as times and packs differ, and the cache, as its
// content depends on when it was fetched.
func (s *soakedLayers) describeState(ctx context.Context) (string, error) {
	var b strings.Builder
	trees, _ := filepath.Glob(filepath.Join(s.dir, "build/*/layers/r*"))
	for _, tree := range trees {
		for _, args := range [][]string{{"rev-parse", "HEAD"}, {"status", "--porcelain", "--ignored"}, {"fsck", "--connectivity-only", "--no-dangling"}} {
			out, err := run.Output(ctx, run.Command{Argv: append([]string{"git", "-C", tree}, args...)})
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "%s %s: %s\n", filepath.Base(tree), args[0], out)
		}
	}
	err := filepath.WalkDir(filepath.Join(s.dir, "build"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "cache") {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%s %x\n", path, sha256.Sum256(data))
		return err
	})
	return b.String(), err
}
