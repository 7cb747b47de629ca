package plaintext

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// A wrong pattern would be met by the user who comes first to it.
func TestPatternsOfTheTree(t *testing.T) {
	use, found := regexp.MustCompile("\\b(?:plaintext\\.)?Regexp\\(`([^`]*)`\\)"), 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "build" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range use.FindAllSubmatch(text, -1) {
			found++
			if _, err := regexp.Compile(string(m[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%d patterns, %v", found, err)
	}
}
