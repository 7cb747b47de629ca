package source

import (
	"context"
	"path"
	"slices"
	"strings"
)

// findDeadCode finds functions that no program reaches, without those of tests. It skips packages
// with a name that ends in "test", such as conformance suites, which only tests use. With the tag
// deadcode, magefiles have a main function, which otherwise Mage generates.
func findDeadCode(ctx context.Context, t tree) (found []string, err error) {
	for _, dir := range t.modules {
		lines, err := listFindings(ctx, dir, t.tools["deadcode"], "-tags="+tags+",deadcode", "./...")
		lines = slices.DeleteFunc(lines, func(line string) bool {
			file, _, _ := strings.Cut(line, ":")
			return strings.HasSuffix(path.Dir(file), "test")
		})
		found = append(found, t.prefixModule(dir, lines)...)
		if err != nil {
			return found, err
		}
	}
	return found, nil
}
