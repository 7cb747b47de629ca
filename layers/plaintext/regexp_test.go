package plaintext

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// A wrong pattern would be met by the user who comes first to it.
func TestPatternsOfTheTree(t *testing.T) {
	use, found := regexp.MustCompile("\\b(?:plaintext\\.)?Regexp\\(`([^`]*)`\\)"), 0
	look := func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == "build" {
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
	}
	var err error
	// Not the root and magefiles: each command of this repository changes these folders, and Go
	// would never take this test from its cache.
	for _, dir := range []string{"ci", "flash", "images", "layers", "magefiles/commands", "recipes", "runtime-hook"} {
		err = errors.Join(err, filepath.WalkDir(filepath.Join("../..", dir), look))
	}
	if err != nil || found == 0 {
		t.Errorf("%d patterns, %v", found, err)
	}
}
