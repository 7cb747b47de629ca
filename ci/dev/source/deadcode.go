package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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
	var programs []program
	for _, p := range packages {
		if p.Name != "main" {
			continue
		}
		one, err := t.deadCodeOf(ctx, dir, p)
		if err != nil {
			return nil, err
		}
		programs = append(programs, one)
	}
	return append(found, deadInAll(programs)...), nil
}

// program is a main package, with the functions of its packages that it does not reach.
type program struct {
	folders map[string]bool // of its packages
	lines   []string        // in order, one for each function
	dead    map[string]bool // the same
}

func (t tree) deadCodeOf(ctx context.Context, dir string, p goPackage) (program, error) {
	one := program{folders: map[string]bool{}, dead: map[string]bool{}}
	look := t.deadInProgram
	if filepath.Base(p.Dir) == "magefiles" {
		look = t.deadInMagefiles
	}
	lines, err := look(ctx, dir, p)
	if err != nil {
		return one, err
	}
	one.lines = lines
	for _, line := range lines {
		one.dead[line] = true
	}
	deps, err := goList(ctx, dir, nil, "-deps", p.ImportPath)
	for _, d := range deps {
		if rel, err := filepath.Rel(dir, d.Dir); err == nil {
			one.folders[rel] = true
		}
	}
	return one, err
}

// deadInAll returns the functions that none of the programs reaches.
func deadInAll(programs []program) []string {
	var dead []string
	said := map[string]bool{}
	for _, p := range programs {
		for _, line := range p.lines {
			file, _, _ := strings.Cut(line, ":")
			reached := slices.ContainsFunc(programs, func(q program) bool {
				return q.folders[filepath.Dir(file)] && !q.dead[line]
			})
			if !reached && !said[line] {
				said[line] = true
				dead = append(dead, line)
			}
		}
	}
	return dead
}

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

func (t tree) deadInProgram(ctx context.Context, dir string, p goPackage) ([]string, error) {
	return listFindings(ctx, dir, t.tools["deadcode"], "-tags="+tags, "-filter="+modulePattern(p.Module.Path), p.ImportPath)
}

func modulePattern(module string) string { return "^" + regexp.QuoteMeta(module) + "(/|$)" }

// deadInMagefiles checks the program that Mage makes of magefiles. Its main function exists
// only while Mage compiles. Mage can keep it, but among the magefiles. So Mage gets a copy
// of them, below build, which go and git both ignore.
func (t tree) deadInMagefiles(ctx context.Context, dir string, p goPackage) ([]string, error) {
	parent := filepath.Join(dir, "build")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp(parent, "deadcode-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	for _, name := range p.GoFiles {
		if err := copyFile(filepath.Join(p.Dir, name), filepath.Join(scratch, name)); err != nil {
			return nil, err
		}
	}
	if err := runGo(ctx, dir, t.tools["mage"], "-d", scratch, "-keep", "-compile", filepath.Join(scratch, "program")); err != nil {
		return nil, fmt.Errorf("compile a copy of the magefiles: %w", err)
	}
	return t.deadInCopy(ctx, dir, scratch, p)
}

func (t tree) deadInCopy(ctx context.Context, dir, scratch string, p goPackage) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(scratch, "*.go"))
	if err != nil {
		return nil, err
	}
	filter := "-filter=^command-line-arguments$|" + modulePattern(p.Module.Path)
	lines, err := listFindings(ctx, dir, append([]string{t.tools["deadcode"], "-tags=" + tags, filter}, files...)...)
	if err != nil {
		return nil, err
	}
	at, err := filepath.Rel(dir, scratch)
	if err != nil {
		return nil, err
	}
	for i, line := range lines {
		lines[i] = strings.Replace(line, at, filepath.Base(p.Dir), 1)
	}
	return lines, nil
}
