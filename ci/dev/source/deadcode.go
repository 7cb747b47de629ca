package source

import (
	"context"
	"path"
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

// deadIn finds dead functions in one module. It skips packages with a name that ends in "test",
// such as conformance suites, which only tests use. With the tag deadcode, magefiles have a main
// function, which otherwise Mage generates.
func (t tree) deadIn(ctx context.Context, dir string) (found []string, err error) {
	lines, err := listFindings(ctx, dir, t.tools["deadcode"], "-tags="+tags+",deadcode", "./...")
	for _, line := range lines {
		if file, _, _ := strings.Cut(line, ":"); !strings.HasSuffix(path.Dir(file), "test") {
			found = append(found, line)
		}
	}
	return found, err
}
