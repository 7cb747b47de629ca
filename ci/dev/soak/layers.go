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
	board := spec.Board
	s := soakedLayers{dir: dir, project: filepath.Join(dir, "images/boards", board, "kas.yml")}
	if err := s.makeServers(ctx); err != nil {
		return err
	}
	job := Job{Argv: append(slices.Clone(opt.Self), "layers", "checkout", board), Dir: dir, Begin: s.beginRound, State: s.describeState}
	return Kill(ctx, w, job, len(s.commits), opt)
}

type soakedLayers struct {
	dir     string
	project string
	commits [3][layerRepos]string // of each round; the last one starts in an empty folder
}

func (s *soakedLayers) serverDir(i int) string {
	return filepath.Join(s.dir, "servers", fmt.Sprintf("r%d", i))
}

func (s *soakedLayers) makeServers(ctx context.Context) error {
	for i := range layerRepos {
		if err := os.MkdirAll(s.serverDir(i), 0o755); err != nil {
			return err
		}
		if _, err := s.runGit(ctx, i, "init", "-q", "-b", "main"); err != nil {
			return err
		}
		for round := range 2 {
			if err := s.makeCommit(ctx, i, round); err != nil {
				return err
			}
		}
		s.commits[2][i] = s.commits[0][i]
	}
	return nil
}

// makeCommit makes a commit in which every other file differs from the last commit, with
// files and folders that come, go and change places.
func (s *soakedLayers) makeCommit(ctx context.Context, i, round int) error {
	dir := s.serverDir(i)
	for n := range filesInLayer {
		name := filepath.Join(dir, fmt.Sprintf("recipes-%d", n/20), fmt.Sprintf("recipe-%d.bb", n))
		if n%7 == 0 {
			name += fmt.Sprintf("-%d", round)
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		content := fmt.Sprintf("SUMMARY = \"recipe %d of %d in %d\"\n", n, i, round*(n%2))
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"add", "-A"},
		{"-c", "user.name=soak", "-c", "user.email=soak@localhost", "commit", "-q", "-m", "commit"},
		{"rm", "-q", "-r", "--cached", "."},
	} {
		if _, err := s.runGit(ctx, i, args...); err != nil {
			return err
		}
	}
	id, err := s.runGit(ctx, i, "rev-parse", "HEAD")
	s.commits[round][i] = strings.TrimSpace(string(id))
	return errors.Join(err, clearFolders(dir))
}

// clearFolders removes the files of a commit, so that the next one's differ.
func clearFolders(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "recipes-*"))
	for _, name := range names {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	return err
}

func (s *soakedLayers) runGit(ctx context.Context, i int, args ...string) ([]byte, error) {
	return run.Output(ctx, run.Command{Argv: append([]string{"git"}, args...), Dir: s.serverDir(i)})
}

// beginRound writes the project of a round.
func (s *soakedLayers) beginRound(_ context.Context, round int) error {
	if round == 2 {
		if err := os.RemoveAll(filepath.Join(s.dir, "build")); err != nil {
			return err
		}
	}
	var b strings.Builder
	b.WriteString("header: {version: 14}\nmachine: m\nrepos:\n  here: {}\n")
	for i := range layerRepos {
		fmt.Fprintf(&b, "  r%d: {url: %q, commit: %s, patches: {fix: {repo: here, path: fix.patch}}}\n", i, s.serverDir(i), s.commits[round][i])
	}
	if err := os.MkdirAll(filepath.Dir(s.project), 0o755); err != nil {
		return err
	}
	patch := fmt.Sprintf("--- /dev/null\n+++ b/recipes-0/fix.bb\n@@ -0,0 +1 @@\n+SUMMARY = \"fixed in %d\"\n", round)
	if err := os.WriteFile(filepath.Join(filepath.Dir(s.project), "fix.patch"), []byte(patch), 0o644); err != nil {
		return err
	}
	return os.WriteFile(s.project, []byte(b.String()), 0o644)
}

// describeState returns every checkout's commit and git's status of its files, and a digest
// of every file except git's and logs.
func (s *soakedLayers) describeState(ctx context.Context, _ int) (string, error) {
	trees, err := filepath.Glob(filepath.Join(s.dir, "build/*/layers/r*"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, tree := range trees {
		for _, args := range [][]string{{"rev-parse", "HEAD"}, {"status", "--porcelain", "--ignored"}, {"fsck", "--connectivity-only", "--no-dangling"}} {
			out, err := run.Output(ctx, run.Command{Argv: append([]string{"git", "-C", tree}, args...)})
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "%s %s: %s\n", filepath.Base(tree), args[0], strings.TrimSpace(string(out)))
		}
	}
	sum, err := sumOf(filepath.Join(s.dir, "build"))
	fmt.Fprintf(&b, "files %s\n", sum)
	return b.String(), err
}

// sumOf returns one digest of all files below dir. It skips git's folders, as times and
// packs differ, and the cache, as its content depends on when it was fetched.
func sumOf(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "cache") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			fmt.Fprintf(h, "%q %x\n", path, sha256.Sum256(data))
			return err
		}
		return nil
	})
	return fmt.Sprintf("%x", h.Sum(nil)), err
}
