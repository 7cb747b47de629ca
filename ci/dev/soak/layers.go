package soak

import (
	"context"
	"crypto/sha256"
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

// The size of the checkout: enough files that a kill falls between them.
const (
	layerRepos   = 2
	filesInLayer = 100
)

// Layers kills layers checkout of a small project under a board's name, while it starts
// anew, moves forward and moves back, with patches.
func Layers(ctx context.Context, w io.Writer, dir string, opt Options) error {
	spec, err := images.WithLayers()
	if err != nil {
		return err
	}
	s := soakedLayers{dir: dir, project: filepath.Join(dir, "images/boards", spec.Board, "kas.yml")}
	if err := errors.Join(s.makeServers(ctx), os.MkdirAll(filepath.Dir(s.project), 0o755)); err != nil {
		return err
	}
	job := Job{Argv: append(slices.Clone(opt.Self), "layers", "checkout", spec.Board), Dir: dir, Begin: s.beginRound, State: s.describeState}
	return Kill(ctx, w, job, len(s.commits), opt)
}

type soakedLayers struct {
	dir     string
	project string
	commits [3][layerRepos]string // of each round; the last one starts in an empty folder
}

func (s *soakedLayers) server(i int) string {
	return filepath.Join(s.dir, fmt.Sprintf("servers/r%d", i))
}

func runGit(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := run.Output(ctx, run.Command{Argv: append([]string{"git", "-C", dir, "-c", "user.name=soak", "-c", "user.email=soak@localhost"}, args...)})
	return strings.TrimSpace(string(out)), err
}

// makeServers makes two commits of each server. In the second one every other file differs,
// and files and folders come, go and change places.
func (s *soakedLayers) makeServers(ctx context.Context) error {
	for i := range layerRepos {
		for round := range 2 {
			if err := errors.Join(os.RemoveAll(s.server(i)+"/recipes-0"), os.RemoveAll(s.server(i)+"/recipes-1")); err != nil {
				return err
			}
			for n := range filesInLayer {
				name := fmt.Sprintf("%s/recipes-%d/%d/recipe-%d.bb", s.server(i), n%2, n/20, n)
				if n%7 == 0 {
					name += fmt.Sprintf("-%d", round)
				}
				content := fmt.Sprintf("SUMMARY = \"recipe %d of %d in %d\"\n", n, i, round*(n%2))
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644)); err != nil {
					return err
				}
			}
			for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"commit", "-q", "-m", "commit"}} {
				if _, err := runGit(ctx, s.server(i), args...); err != nil {
					return err
				}
			}
			id, err := runGit(ctx, s.server(i), "rev-parse", "HEAD")
			if err != nil {
				return err
			}
			s.commits[round][i] = id
		}
		s.commits[2][i] = s.commits[0][i]
	}
	return nil
}

// beginRound writes the project of a round, with a patch.
func (s *soakedLayers) beginRound(_ context.Context, round int) (err error) {
	if round == 2 {
		err = os.RemoveAll(filepath.Join(s.dir, "build"))
	}
	project := "header: {version: 14}\nmachine: m\nrepos:\n  here: {}\n"
	for i := range layerRepos {
		project += fmt.Sprintf("  r%d: {url: %q, commit: %s, patches: {fix: {repo: here, path: fix.patch}}}\n", i, s.server(i), s.commits[round][i])
	}
	patch := fmt.Sprintf("--- /dev/null\n+++ b/recipes-0/fix.bb\n@@ -0,0 +1 @@\n+SUMMARY = \"fixed in %d\"\n", round)
	return errors.Join(err, os.WriteFile(filepath.Join(filepath.Dir(s.project), "fix.patch"), []byte(patch), 0o644), os.WriteFile(s.project, []byte(project), 0o644))
}

// describeState returns every checkout's commit and git's status of its files, and a digest
// of every file. It skips git's folders, as times and packs differ, and the cache, as its
// content depends on when it was fetched.
func (s *soakedLayers) describeState(ctx context.Context, _ int) (string, error) {
	var b strings.Builder
	trees, _ := filepath.Glob(filepath.Join(s.dir, "build/*/layers/r*"))
	for _, tree := range trees {
		for _, args := range [][]string{{"rev-parse", "HEAD"}, {"status", "--porcelain", "--ignored"}, {"fsck", "--connectivity-only", "--no-dangling"}} {
			out, err := runGit(ctx, tree, args...)
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
