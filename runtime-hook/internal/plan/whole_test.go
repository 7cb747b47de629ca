package plan

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A folder is whole where the lists give all of it as it is, and only then.
func TestWholes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: only root's folders are given whole")
	}
	tests := []struct {
		name   string
		change func(root string) error
		list   string // more than the libraries and the link
		want   []string
	}{
		{"all is listed", func(string) error { return nil }, "", []string{"/opt/lib 18"}},
		{"one is not", func(root string) error { return os.WriteFile(root+"/opt/lib/b", nil, 0o644) }, "", nil},
		{"one is hidden", func(root string) error { return os.WriteFile(root+"/opt/lib/.b", nil, 0o644) }, "", nil},
		{"a link is not", func(root string) error { return os.Symlink("lib1.so", root+"/opt/lib/b") }, "", nil},
		{"a link says more than the container's", func(root string) error {
			if err := os.Symlink("lib", root+"/opt/way"); err != nil {
				return err
			}
			return os.Symlink("../way/lib1.so", root+"/opt/lib/b")
		}, "sym, /opt/lib/b\n", nil},
		{"an empty folder in it", func(root string) error { return os.Mkdir(root+"/opt/lib/sub", 0o755) }, "", []string{"/opt/lib 18"}},
		{"a folder in it that is listed", func(root string) error {
			if err := os.Mkdir(root+"/opt/lib/sub", 0o755); err != nil {
				return err
			}
			return os.WriteFile(root+"/opt/lib/sub/b", nil, 0o644)
		}, "lib, /opt/lib/sub/b\n", []string{"/opt/lib 19"}},
		{"one beside it, between it and one in it", func(root string) error {
			for i := 0; i < 16; i++ {
				for _, d := range []string{"/opt/lib-2", "/opt/lib/sub"} {
					if err := os.MkdirAll(root+d, 0o755); err != nil {
						return err
					}
					if err := os.WriteFile(fmt.Sprint(root, d, "/", i), nil, 0o644); err != nil {
						return err
					}
				}
			}
			return nil
		}, "lib, /opt/lib-2/*\nlib, /opt/lib/sub/*\n", []string{"/opt/lib 34", "/opt/lib-2 16", "/opt/lib/sub 16"}},
		{"a folder in it that is not", func(root string) error {
			if err := os.Mkdir(root+"/opt/lib/sub", 0o755); err != nil {
				return err
			}
			return os.WriteFile(root+"/opt/lib/sub/b", nil, 0o644)
		}, "", nil},
		{"one comes from elsewhere", func(root string) error {
			if err := os.MkdirAll(root+AltRoot+"/opt/lib", 0o755); err != nil {
				return err
			}
			return os.WriteFile(root+AltRoot+"/opt/lib/b", nil, 0o644)
		}, "lib, /opt/lib/b\n", nil},
		{"a FIFO", func(root string) error { return unix.Mkfifo(root+"/opt/lib/b", 0o644) }, "", nil},
		{"others may write to it", func(root string) error { return os.Chmod(root+"/opt/lib", 0o775) }, "", nil},
		{"others may not look into it", func(root string) error { return os.Chmod(root+"/opt/lib", 0o711) }, "", nil},
		{"it is another's", func(root string) error { return os.Chown(root+"/opt/lib", 5, 5) }, "", nil},
		{"few files", func(root string) error {
			if err := os.Mkdir(root+"/opt/few", 0o755); err != nil {
				return err
			}
			return os.WriteFile(root+"/opt/few/a", nil, 0o644)
		}, "lib, /opt/few/a\n", []string{"/opt/lib 18"}},
		{"a folder in it comes from elsewhere", func(root string) error {
			return os.MkdirAll(root+AltRoot+"/opt/lib/sub", 0o755)
		}, "dir, /opt/lib/sub\n", nil},
		{"a device in it comes from elsewhere", func(root string) error {
			if err := os.MkdirAll(root+AltRoot+"/opt/lib", 0o755); err != nil {
				return err
			}
			return unix.Mknod(root+AltRoot+"/opt/lib/gpu", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7)))
		}, "dev, /opt/lib/gpu\n", nil},
		{"it is given as a folder", func(string) error { return nil }, "dir, /opt/lib\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(root+"/opt/lib", 0o755); err != nil {
				t.Fatal(err)
			}
			var list strings.Builder
			for i := 0; i < 17; i++ {
				name := fmt.Sprintf("/opt/lib/lib%d.so", i)
				if err := os.WriteFile(root+name, nil, 0o644); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&list, "lib, %s\n", name)
			}
			if err := os.Symlink("lib0.so", root+"/opt/lib/link"); err != nil {
				t.Fatal(err)
			}
			if err := tt.change(root); err != nil {
				t.Fatal(err)
			}
			entries, problems := listed(t, list.String()+"sym, /opt/lib/link\n"+tt.list)
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			p, _ := Compile(root, entries, Options{Wholes: true})
			var got []string
			for _, w := range p.Wholes {
				got = append(got, fmt.Sprint(w.Path, " ", w.Entries))
				if w.Source != root+w.Path {
					t.Errorf("%s comes from %s", w.Path, w.Source)
				}
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("wholes %q; want %q", got, tt.want)
			}
		})
	}
}

// A name that appears in such a folder is noticed.
func TestWholeIsWatched(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: only root's folders are given whole")
	}
	root := t.TempDir()
	if err := os.MkdirAll(root+"/opt/lib/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	var list strings.Builder
	for i := 0; i < 16; i++ {
		name := fmt.Sprintf("/opt/lib/lib%d.so", i)
		if err := os.WriteFile(root+name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&list, "lib, %s\n", name)
	}
	entries, _ := listed(t, list.String())
	p, _, w := Watched(root, entries, Options{Wholes: true})
	if len(p.Wholes) != 1 || !w.Holds() {
		t.Fatalf("wholes %v; want one, and that the watch holds", p.Wholes)
	}
	if err := os.WriteFile(root+"/opt/lib/sub/secret", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if w.Holds() {
		t.Error("the watch holds with one more file in the folder")
	}
}
