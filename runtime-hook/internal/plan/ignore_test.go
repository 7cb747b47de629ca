package plan

import (
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// What a pattern names is left out: lines, what a line's own pattern meets, and links.
func TestIgnore(t *testing.T) {
	const list = "sym, /lib/a.so\nlib, /lib/b.so\ndir, /opt/share\nlib, /conf/*\n"
	tests := []struct {
		ignore []string
		want   []string
	}{
		{nil, []string{"/opt/share", "/lib/a.so.1", "/lib/b.so", "/conf/x", "/conf/y", "-> /lib/a.so"}},
		{[]string{"/lib/b.so", "/conf/[y]", "/opt/share"}, []string{"/lib/a.so.1", "/conf/x", "-> /lib/a.so"}},
		{[]string{"**/*.so"}, []string{"/opt/share", "/conf/x", "/conf/y"}},
		{[]string{"/lib/*"}, []string{"/opt/share", "/conf/x", "/conf/y"}},
		{[]string{"/opt/*"}, []string{"/lib/a.so.1", "/lib/b.so", "/conf/x", "/conf/y", "-> /lib/a.so"}},
		{[]string{"/conf/*"}, []string{"/opt/share", "/lib/a.so.1", "/lib/b.so", "-> /lib/a.so"}},
		{[]string{"**/*"}, nil},
	}
	root := t.TempDir()
	for _, f := range []string{"lib/a.so.1", "lib/b.so", "conf/x", "conf/y", "opt/share/z"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, f)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, f), nil, 0o644))
	}
	must(t, os.Symlink("a.so.1", root+"/lib/a.so"))
	entries, _ := listed(t, list)
	for _, tt := range tests {
		c := Compile(root, entries, tt.ignore)
		p, problems := c.Plan, c.Problems
		var got []string
		for _, m := range p.Mounts {
			got = append(got, m.Path)
		}
		for _, l := range p.Links {
			got = append(got, "-> "+l.Path)
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("with %q the plan has %q; want %q", tt.ignore, got, tt.want)
		}
		if len(problems) == 0 != (tt.ignore == nil) {
			t.Errorf("with %q: problems %v; want a note of each that is left out", tt.ignore, problems)
		}
		for _, p := range problems {
			if p.Unused {
				t.Errorf("with %q: %v; want a note", tt.ignore, p)
			}
		}
	}
}

// A pattern that is taken can be compared with any path.
func FuzzGoodPattern(f *testing.F) {
	for _, p := range []string{"**/a*", "/a[", "", "**/", "a", "/*/[a-z]\\*", "/a[]a]", "**/[^", "/\\"} {
		f.Add(p, "/a/b")
	}
	f.Fuzz(func(t *testing.T, pattern, at string) {
		if !GoodPattern(pattern) {
			return
		}
		if _, err := path.Match(strings.TrimPrefix(pattern, anyFolder), at); err != nil {
			t.Errorf("%q is taken, and with %q: %v", pattern, at, err)
		}
	})
}
