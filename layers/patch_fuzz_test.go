package layers

import (
	"os"
	"path/filepath"
	"testing"
)

// Whatever a series says, nothing is read but files of its repository.
func FuzzSeries(f *testing.F) {
	for _, seed := range []string{"", "a.patch\n", "# a\n\nsub/b.patch # why\r\n", "../outside\n", "/etc/passwd", "link\n", "sub\n", "a.patch\x00\n", "./a.patch\n"} {
		f.Add(seed)
	}
	dir := f.TempDir()
	outside := filepath.Join(dir, "outside")
	root := filepath.Join(dir, "root")
	for name, content := range map[string]string{"outside": "outside", "root/p/a.patch": "inside", "root/p/sub/b.patch": "inside", "root/c.patch": "inside"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			f.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(root, "p/link")); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, series string) {
		if err := os.WriteFile(filepath.Join(root, "p/series"), []byte(series), 0o644); err != nil {
			t.Fatal(err)
		}
		files, err := readPatch(root, ".", Patch{ID: "fix", Repo: "r", Path: "p"})
		for _, file := range files {
			if string(file.Content) != "inside" && string(file.Content) != series {
				t.Errorf("readPatch of %q read %q, %v", series, file.Content, err)
			}
		}
	})
}
