package git

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestMirrorNames(t *testing.T) {
	seen := map[string]string{}
	for _, url := range []string{
		"https://a.example/r", "https://a.example/r.git", "https://a.example:r", "git@a.example:r", "/../..", "..", "x" + strings.Repeat("/y", 500),
	} {
		dir := MirrorFor("/m", Remote{URL: url}).Dir
		if filepath.Dir(dir) != "/m" || len(filepath.Base(dir)) > 120 || strings.HasPrefix(filepath.Base(dir), ".") || seen[dir] != "" {
			t.Errorf("mirror of %q is %q, also that of %q; want a folder of its own in /m", url, dir, seen[dir])
		}
		seen[dir] = url
	}
}
