package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"slipway/runtime-hook/internal/elf"
)

// library is the smallest shared library for AArch64: a header, two segments, the
// dynamic section and the names.
func library(soname string) []byte {
	const namesAt, dynamicAt = 64 + 2*56 + 3*16, 64 + 2*56
	size := uint64(namesAt + 1 + len(soname) + 1)
	b := make([]byte, size)
	copy(b, "\x7fELF\x02\x01\x01")
	put := func(at, bytes int, n uint64) {
		for i := 0; i < bytes; i++ {
			b[at+i] = byte(n >> (8 * i))
		}
	}
	put(16, 2, 3)
	put(18, 2, 183)
	put(32, 8, 64)
	put(56, 2, 2)
	put(64, 4, 1)
	put(64+32, 8, size)
	put(120, 4, 2)
	put(120+8, 8, dynamicAt)
	put(120+32, 8, 3*16)
	put(dynamicAt, 8, 5)
	put(dynamicAt+8, 8, namesAt)
	if soname != "" {
		put(dynamicAt+16, 8, 14)
		put(dynamicAt+24, 8, 1)
	}
	copy(b[namesAt+1:], soname)
	return b
}

func TestCompileLibraries(t *testing.T) {
	tests := []struct {
		name  string
		board []string          // as in TestCompile
		libs  map[string]string // the soname by the file's path
		list  string
		want  []string // "NAME PATH" of libraries, "link PATH -> TARGET FROM"
	}{
		{
			"a file by its soname", nil,
			map[string]string{"usr/lib/liba.so.1.2": "liba.so.1"},
			"lib, /usr/lib/liba.so.1.2",
			[]string{"liba.so.1 /usr/lib/liba.so.1.2"},
		},
		{
			"a file by its own name", nil,
			map[string]string{"usr/lib/liba.so": ""},
			"lib, /usr/lib/liba.so",
			[]string{"liba.so /usr/lib/liba.so"},
		},
		{
			"links by theirs",
			[]string{"usr/lib/liba.so -> liba.so.1", "usr/lib/liba.so.1 -> liba.so.1.2", "usr/lib/plugin -> liba.so.1"},
			map[string]string{"usr/lib/liba.so.1.2": "liba.so.1"},
			"sym, /usr/lib/liba.so\nsym, /usr/lib/plugin",
			[]string{
				"liba.so.1 /usr/lib/liba.so.1.2", "liba.so /usr/lib/liba.so", "link /usr/lib/liba.so -> liba.so.1 l.csv:1",
				"link /usr/lib/liba.so.1 -> liba.so.1.2 l.csv:1", "link /usr/lib/plugin -> liba.so.1 l.csv:2",
			},
		},
		{
			"what lies in a folder",
			[]string{"opt/x/liba.so -> liba.so.1.2", "opt/x/libfar.so -> ../libfar.so", "opt/x/libtext.so", "opt/x/sub/"},
			map[string]string{"opt/x/liba.so.1.2": "liba.so.1", "opt/libfar.so": "", "opt/x/sub/libdeep.so": ""},
			"dir, /opt/x\nlib, /opt/x/liba.so.1.2",
			[]string{"liba.so /opt/x/liba.so", "liba.so.1 /opt/x/liba.so.1.2"},
		},
		{"no library", []string{"usr/lib/liba.so", "usr/lib/b"}, map[string]string{"usr/lib/plugin.so": "liba.so"}, "lib, /usr/lib/liba.so\nlib, /usr/lib/b\nlib, /usr/lib/plugin.so", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := board(t, tt.board...)
			for file, soname := range tt.libs {
				must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o755))
				must(t, os.WriteFile(filepath.Join(root, file), library(soname), 0o644))
			}
			entries, _ := listed(t, tt.list)
			p, _ := compile(root, entries)
			var got []string
			for _, l := range p.Libraries {
				got = append(got, l.Name+" "+l.Path)
				if l.Machine != elf.AArch64 {
					t.Errorf("%s is for %s", l.Path, l.Machine)
				}
			}
			for _, l := range p.Links {
				got = append(got, fmt.Sprintf("link %s -> %s %s", l.Path, l.Target, l.From))
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %q; want %q", got, tt.want)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
