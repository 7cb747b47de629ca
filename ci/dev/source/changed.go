package source

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/run"
)

// changedFiles lists the files of the clone that differ from a commit, below root. Files
// that git does not know yet are among them.
func changedFiles(ctx context.Context, root, commit string) ([]string, error) {
	if strings.HasPrefix(commit, "-") {
		return nil, fmt.Errorf("--changed: %q is no commit; name one, such as HEAD or main", commit)
	}
	var all []string
	for _, argv := range [][]string{
		{"git", "diff", "--name-only", "--no-renames", "-z", commit, "--"},
		{"git", "ls-files", "--others", "--exclude-standard", "-z"},
	} {
		out, err := run.Output(ctx, command(root, argv...))
		if err != nil {
			return nil, fmt.Errorf("find what changed since %s: %w\nnext: name a commit or branch that git log knows", commit, err)
		}
		for _, name := range strings.Split(string(out), "\x00") {
			if name != "" {
				all = append(all, filepath.Join(root, name))
			}
		}
	}
	return all, nil
}

// reachedPackages returns the packages whose tests a change can reach: those that hold a
// changed file, those that import them, and so on. A file belongs to the nearest package
// above it. All are returned where a file has none, such as go.mod, a recipe, or a file of
// another module.
func reachedPackages(packages []goPackage, changed []string) []goPackage {
	byDir, importers := map[string]string{}, map[string][]string{}
	for _, p := range packages {
		byDir[p.Dir] = p.ImportPath
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			importers[path] = append(importers[path], p.ImportPath)
		}
	}
	seen := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		if !seen[path] {
			seen[path] = true
			for _, p := range importers[path] {
				visit(p)
			}
		}
	}
	for _, file := range changed {
		path, ok := packageOf(byDir, file)
		if !ok {
			return packages
		}
		visit(path)
	}
	var reached []goPackage
	for _, p := range packages {
		if seen[p.ImportPath] {
			reached = append(reached, p)
		}
	}
	return reached
}

// packageOf returns the import path of the nearest package at or above a file.
func packageOf(byDir map[string]string, file string) (string, bool) {
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		if path, ok := byDir[dir]; ok {
			return path, true
		}
		if dir == filepath.Dir(dir) {
			return "", false
		}
	}
}
