package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// findDeadCode finds functions that no program reaches, without those of tests.
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

// deadIn finds them in one module. A package that only tests use, such as a conformance suite,
// has a name that ends in "test".
func (t tree) deadIn(ctx context.Context, dir string) (found []string, err error) {
	packages, err := goList(ctx, dir, nil, "./...")
	if err != nil {
		return nil, err
	}
	var args []string
	scratch := ""
	for _, p := range packages {
		if filepath.Base(p.Dir) != "magefiles" {
			args = append(args, p.ImportPath)
			continue
		}
		if scratch, err = t.copyMagefiles(ctx, dir, p.Dir); err != nil {
			return nil, err
		}
		defer os.RemoveAll(filepath.Join(dir, scratch))
		args = append(args, "./"+scratch)
	}
	lines, err := listFindings(ctx, dir, append([]string{t.tools["deadcode"], "-tags=" + tags}, args...)...)
	for _, line := range lines {
		line = strings.Replace(line, scratch+"/", "magefiles/", 1)
		if file, _, _ := strings.Cut(line, ":"); !strings.HasSuffix(path.Dir(file), "test") {
			found = append(found, line)
		}
	}
	return found, err
}

// copyMagefiles returns a folder below dir with the program that Mage makes of magefiles.
// Its main function exists only while Mage compiles. Mage can keep it, but among the
// magefiles. So Mage gets a copy of them, below build, which go and git both ignore.
func (t tree) copyMagefiles(ctx context.Context, dir, magefiles string) (string, error) {
	parent := filepath.Join(dir, "build")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp(parent, "deadcode-")
	if err != nil {
		return "", err
	}
	err = os.CopyFS(scratch, os.DirFS(magefiles))
	if err == nil {
		err = runGo(ctx, dir, t.tools["mage"], "-d", scratch, "-keep", "-compile", filepath.Join(scratch, "program"))
	}
	// Without the tag ignore, the generated file is part of the package.
	generated := filepath.Join(scratch, "mage_output_file.go")
	text, rerr := os.ReadFile(generated)
	text = bytes.Replace(text, []byte("//go:build ignore"), []byte("//go:build "+tags), 1)
	if err = errors.Join(err, rerr); err == nil {
		err = os.WriteFile(generated, text, 0o644)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("compile a copy of the magefiles: %w", err), os.RemoveAll(scratch))
	}
	return filepath.Rel(dir, scratch)
}
