package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	back, err := os.Getwd()
	must(t, err)
	must(t, os.Chdir(dir))
	t.Cleanup(func() { os.Chdir(back) })
	for _, name := range []string{"here/runc", "a/crun", "b/runc", "b/crun", "c/runc"} {
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must(t, os.WriteFile(name, nil, 0o755))
	}
	must(t, os.Chmod("c/runc", 0o644))
	must(t, os.MkdirAll("d/runc", 0o755))
	must(t, os.MkdirAll("e", 0o755))
	must(t, os.Symlink("/proc/self/exe", "e/runc"))
	tests := []struct {
		name, runtimes, path string
		want                 string // below dir; "" for an error
	}{
		{"the preferred one, wherever it is", "runc crun", "a:b", "b/runc"},
		{"the other", "runc crun", "a", "a/crun"},
		{"the first in the path", "crun", "a:b", "a/crun"},
		{"not a file that does not run, a folder or this program", "runc", "c:d:e:b", "b/runc"},
		{"none", "runc", "a:c:d:e", ""},
		{"by its path", "DIR/here/runc", "b", "here/runc"},
		{"none at its path", "DIR/gone/runc", "b", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := dir + "/" + strings.ReplaceAll(tt.path, ":", ":"+dir+"/")
			got, err := findRuntime(strings.Fields(strings.ReplaceAll(tt.runtimes, "DIR", dir)), path)
			if rest, _ := strings.CutPrefix(got, dir+"/"); rest != tt.want || (err != nil) != (tt.want == "") {
				t.Errorf("find = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
	if got, err := findRuntime([]string{"runc"}, "here:.:"); err == nil {
		t.Errorf("find took %q, which the working folder has", got)
	}
}
