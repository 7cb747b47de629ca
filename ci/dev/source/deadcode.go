package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"slipway/layers/lazy"
)

// findDeadCode finds functions that no program reaches, without those of tests, and
// packages that no program imports.
func findDeadCode(ctx context.Context, t tree) ([]string, error) {
	var found []string
	for _, dir := range t.modules {
		more, err := t.deadIn(ctx, dir)
		found = append(found, t.prefixModule(dir, more)...)
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

func (t tree) deadIn(ctx context.Context, dir string) ([]string, error) {
	packages, err := goList(ctx, dir, nil, "./...")
	if err != nil {
		return nil, err
	}
	found, err := unusedPackages(ctx, dir, packages)
	if err != nil {
		return nil, err
	}
	var mains []string
	for _, p := range packages {
		switch {
		case p.Name != "main":
		case filepath.Base(p.Dir) != "magefiles":
			mains = append(mains, p.ImportPath)
		default:
			scratch, err := t.copyMagefiles(ctx, dir, p)
			if err != nil {
				return nil, err
			}
			defer os.RemoveAll(filepath.Join(dir, scratch))
			mains = append(mains, "./"+scratch)
		}
	}
	if len(mains) == 0 {
		return found, nil
	}
	filter := "-filter=^" + regexp.QuoteMeta(packages[0].Module.Path) + "(/|$)"
	lines, err := listFindings(ctx, dir, append([]string{t.tools["deadcode"], "-tags=" + tags, filter}, mains...)...)
	for i, line := range lines {
		lines[i] = copiedMagefiles().ReplaceAllString(line, "magefiles/")
	}
	return append(found, lines...), err
}

var copiedMagefiles = lazy.Regexp(`^build/deadcode-\d+/`)

// unusedPackages returns the packages that no program imports. A package that only tests
// use, such as a conformance suite, has a name that ends in "test".
func unusedPackages(ctx context.Context, dir string, packages []goPackage) ([]string, error) {
	used := map[string]bool{}
	if mains := programs(packages); len(mains) > 0 {
		deps, err := goList(ctx, dir, nil, append([]string{"-deps"}, mains...)...)
		if err != nil {
			return nil, err
		}
		for _, p := range deps {
			used[p.ImportPath] = true
		}
	}
	var found []string
	for _, p := range packages {
		if !used[p.ImportPath] && len(p.GoFiles) > 0 && !strings.HasSuffix(p.Name, "test") {
			found = append(found, p.ImportPath+": no program imports this package")
		}
	}
	return found, nil
}

// copyMagefiles returns a folder below dir with the program that Mage makes of magefiles.
// Its main function exists only while Mage compiles. Mage can keep it, but among the
// magefiles. So Mage gets a copy of them, below build, which go and git both ignore.
func (t tree) copyMagefiles(ctx context.Context, dir string, p goPackage) (string, error) {
	parent := filepath.Join(dir, "build")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp(parent, "deadcode-")
	if err != nil {
		return "", err
	}
	for _, name := range p.GoFiles {
		if err := copyFile(filepath.Join(p.Dir, name), filepath.Join(scratch, name)); err != nil {
			return "", errors.Join(err, os.RemoveAll(scratch))
		}
	}
	if err := runGo(ctx, dir, t.tools["mage"], "-d", scratch, "-keep", "-compile", filepath.Join(scratch, "program")); err != nil {
		return "", errors.Join(fmt.Errorf("compile a copy of the magefiles: %w", err), os.RemoveAll(scratch))
	}
	// Without the tag ignore, the generated file is part of the package.
	generated := filepath.Join(scratch, "mage_output_file.go")
	text, err := os.ReadFile(generated)
	if err == nil {
		err = os.WriteFile(generated, bytes.Replace(text, []byte("//go:build ignore"), []byte("//go:build "+tags), 1), 0o644)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(scratch))
	}
	return filepath.Rel(dir, scratch)
}
