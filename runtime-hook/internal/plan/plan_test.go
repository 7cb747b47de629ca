package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"slipway/runtime-hook/internal/csv"
)

// board makes a file tree from lines such as "usr/lib/a", "usr/lib/d/" and "usr/lib/l -> a".
func board(t *testing.T, lines ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, line := range lines {
		name, target, link := strings.Cut(line, " -> ")
		at := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch {
		case err != nil:
		case link:
			err = os.Symlink(target, at)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		default:
			err = os.WriteFile(at, []byte(name), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// listed reads a list as the board does.
func listed(t *testing.T, list string) ([]csv.Entry, []csv.Problem) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "l.csv"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	_, entries, problems, err := csv.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return entries, problems
}

func compile(root string, entries []csv.Entry) (Plan, []csv.Problem) {
	c := Compile(root, entries, nil)
	return c.Plan, c.Problems
}

// compiled is the plan for a list in short: "file PATH" (or "file PATH from
// SOURCE" where that differs), "link PATH -> TARGET", "problem LINE CAUSE".
func compiled(t *testing.T, root, list string) []string {
	t.Helper()
	entries, problems := listed(t, list)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	p, problems := compile(root, entries)
	var out []string
	for _, m := range p.Mounts {
		kind := "file"
		if m.Folder {
			kind = "folder"
		}
		line := kind + " " + m.Path
		if source := strings.TrimPrefix(m.Source, root); source != m.Path {
			line += " from " + source
		}
		if m.Listed != "" {
			line += " and " + m.Listed
		}
		out = append(out, line)
	}
	for _, l := range p.Links {
		out = append(out, fmt.Sprintf("link %s -> %s", l.Path, l.Target))
	}
	for _, d := range p.Devices {
		out = append(out, fmt.Sprintf("device %s %d:%d", d.Path, d.Major, d.Minor))
	}
	for _, p := range problems {
		line := fmt.Sprintf("problem %d %s", p.Line, p.Cause)
		if !p.Unused {
			line += ", used"
		}
		out = append(out, line)
	}
	return out
}

func TestCompile(t *testing.T) {
	tests := []struct {
		name  string
		board []string
		list  string
		want  []string
	}{
		{"a file", []string{"usr/lib/a.so"}, "lib, /usr/lib/a.so", []string{"file /usr/lib/a.so"}},
		{
			"a chain of links",
			[]string{"usr/lib/a.so -> a.so.1", "usr/lib/a.so.1 -> board/a.so.1.2", "usr/lib/board/a.so.1.2"},
			"sym, /usr/lib/a.so",
			[]string{"file /usr/lib/board/a.so.1.2", "link /usr/lib/a.so -> a.so.1", "link /usr/lib/a.so.1 -> board/a.so.1.2"},
		},
		{
			"a lib that is a link keeps its name",
			[]string{"usr/lib/a.so.1 -> a.so.1.2", "usr/lib/a.so.1.2"},
			"lib, /usr/lib/a.so.1",
			[]string{"file /usr/lib/a.so.1.2", "link /usr/lib/a.so.1 -> a.so.1.2"},
		},
		{
			"the file and its link listed both",
			[]string{"usr/lib/a.so -> a.so.1", "usr/lib/a.so.1"},
			"lib, /usr/lib/a.so.1\nsym, /usr/lib/a.so",
			[]string{"file /usr/lib/a.so.1", "link /usr/lib/a.so -> a.so.1"},
		},
		{
			"absolute links and links with ..",
			[]string{"usr/lib/a.so -> /etc/alternatives/a", "etc/alternatives/a -> ../../opt/a.so", "opt/a.so"},
			"sym, /usr/lib/a.so",
			[]string{"file /opt/a.so", "link /usr/lib/a.so -> /etc/alternatives/a", "link /etc/alternatives/a -> ../../opt/a.so"},
		},
		{
			"folders that are links are followed, and not relied upon",
			[]string{"lib -> usr/lib", "usr/lib/a.so -> /lib/b.so", "usr/lib/b.so"},
			"sym, /lib/a.so",
			[]string{"file /usr/lib/b.so", "link /usr/lib/a.so -> /usr/lib/b.so"},
		},
		{
			"a folder behind a link keeps its listed path",
			[]string{"lib -> usr/lib", "usr/lib/fw1/", "usr/lib/fw2/", "opt/fw -> /usr/lib/fw1"},
			"dir, /lib/fw1\ndir, /usr/lib/fw2\ndir, /lib/fw*\ndir, /opt/fw",
			[]string{"folder /opt/fw from /usr/lib/fw1", "folder /usr/lib/fw1 and /lib/fw1", "folder /usr/lib/fw2 and /lib/fw2"},
		},
		{
			".. after a link climbs from where that leads",
			[]string{"usr/lib/l -> ../../opt/deep/dir", "opt/deep/dir/", "opt/deep/a.so", "usr/lib/a.so -> l/../a.so"},
			"sym, /usr/lib/a.so",
			[]string{"file /opt/deep/a.so", "link /usr/lib/a.so -> /opt/deep/a.so"},
		},
		{"links cannot climb out", []string{"a -> ../../../../../b", "b"}, "sym, /a", []string{"file /b", "link /a -> ../../../../../b"}},
		{"a link to a folder is made", []string{"usr/share/a -> b", "usr/share/b/"}, "sym, /usr/share/a", []string{"link /usr/share/a -> b", "problem 1 note, used"}},
		{"a link to nothing", []string{"a -> b"}, "sym, /a", []string{"problem 1 missing"}},
		{"links in a circle", []string{"a -> b", "b -> a", "c/d -> d", "e -> c/d/x"}, "sym, /a\nlib, /c/d\nlib, /c/d/x\nsym, /e", []string{"problem 1 loop", "problem 2 loop", "problem 3 missing", "problem 4 loop"}},
		{"missing", nil, "lib, /a\ndev, /dev/b\ndir, /c\nlib, /d*", []string{"problem 1 missing", "problem 2 missing, used", "problem 3 missing", "problem 4 missing"}},
		{"the rest goes on", []string{"b"}, "lib, /a\nlib, /b", []string{"file /b", "problem 1 missing"}},
		{"duplicates", []string{"a"}, "lib, /a\nlib, /a\nlib, //a/", []string{"file /a", "problem 2 duplicate, used", "problem 3 duplicate, used"}},
		{
			"patterns",
			[]string{"usr/lib/b.so", "usr/lib/a.so", "usr/lib/c.txt", "lib -> usr/lib", "opt/x/n", "opt/y/m"},
			"lib, /lib/*.so\nlib, /opt/*/n",
			[]string{"file /usr/lib/a.so", "file /usr/lib/b.so", "file /opt/x/n"},
		},
		{"a name with brackets is itself", []string{"a[1].so", "a1.so"}, "lib, /a[1].so", []string{"file /a[1].so"}},
		{
			"folders come first, outer ones before, with what is in them",
			[]string{"opt/b/c/f", "opt/b/l -> c/f", "etc/x"},
			"lib, /etc/x\nlib, /opt/b/c/f\nsym, /opt/b/l\ndir, /opt/b/c\ndir, /opt/b",
			[]string{"folder /opt/b", "file /etc/x"},
		},
		{"a folder at its link", []string{"opt/a -> b", "opt/b/"}, "dir, /opt/a", []string{"folder /opt/a from /opt/b"}},
		{"folders of the system through a link", []string{"opt/a -> /", "opt/b -> ../proc", "proc/"}, "dir, /opt/a\ndir, /opt/b", []string{"problem 1 refused", "problem 2 refused"}},
		{"folders that hide the image", []string{"usr/lib/x", "opt/x"}, "dir, /usr/lib\ndir, /opt", []string{"folder /opt", "folder /usr/lib", "problem 1 dangerous, used", "problem 2 dangerous, used"}},
		{"the wrong kind", []string{"a/", "b"}, "lib, /a\ndir, /b\ndev, /b", []string{"problem 1 refused", "problem 2 refused", "problem 3 duplicate, used", "problem 3 refused"}},
		{"the release file is always given", []string{"etc/nv_tegra_release"}, "", []string{"file /etc/nv_tegra_release"}},
		{
			"the second tree",
			[]string{AltRoot[1:] + "/usr/lib/aarch64-linux-gnu/a.so -> b.so", AltRoot[1:] + "/usr/lib/aarch64-linux-gnu/b.so", "usr/lib/c.so", AltRoot[1:] + "/usr/lib/c.so"},
			"lib, /usr/lib/aarch64-linux-gnu/a.so\nlib, /usr/lib/c.so",
			[]string{"file /usr/lib/aarch64-linux-gnu/b.so from " + AltRoot + "/usr/lib/aarch64-linux-gnu/b.so", "file /usr/lib/c.so", "link /usr/lib/aarch64-linux-gnu/a.so -> b.so"},
		},
		{
			"what a given folder lacks cannot be made in it",
			[]string{"opt/egl/one", AltRoot[1:] + "/opt/egl/two", AltRoot[1:] + "/opt/egl/l -> two", AltRoot[1:] + "/opt/egl/d/", AltRoot[1:] + "/usr/lib/a -> /opt/egl/three", AltRoot[1:] + "/opt/egl/three"},
			"dir, /opt/egl\nlib, /opt/egl/two\nsym, /opt/egl/l\ndir, /opt/egl/d\nsym, /usr/lib/a",
			[]string{"folder /opt/egl", "link /usr/lib/a -> /opt/egl/three", "problem 4 refused", "problem 2 refused", "problem 5 refused", "problem 3 refused"},
		},
		{
			"what a given folder has can be covered in it",
			[]string{"opt/egl/one", "opt/egl/d/", "opt/egl/l", AltRoot[1:] + "/opt/egl/one", AltRoot[1:] + "/usr/lib/a -> /opt/egl/one", AltRoot[1:] + "/usr/lib/b -> /opt/egl/l", AltRoot[1:] + "/opt/egl/l -> one"},
			"dir, /opt/egl\nsym, /usr/lib/a\nsym, /usr/lib/b",
			[]string{"folder /opt/egl", "file /opt/egl/one from " + AltRoot + "/opt/egl/one", "link /usr/lib/a -> /opt/egl/one", "link /usr/lib/b -> /opt/egl/l", "link /opt/egl/l -> one"},
		},
		{
			"a link in a given folder is no place for a file",
			[]string{"opt/egl/one -> elsewhere", "opt/egl/d -> /opt/f", "opt/f/two", AltRoot[1:] + "/opt/egl/one", AltRoot[1:] + "/usr/lib/a -> /opt/egl/one", AltRoot[1:] + "/opt/egl/d/two", AltRoot[1:] + "/usr/lib/b -> /opt/egl/d/two"},
			"dir, /opt/egl\nsym, /usr/lib/a\nsym, /usr/lib/b",
			[]string{"folder /opt/egl", "link /usr/lib/a -> /opt/egl/one", "link /usr/lib/b -> /opt/egl/d/two", "problem 2 refused", "problem 3 refused"},
		},
		{
			"the inner folder is the one that counts",
			[]string{"opt/a/b -> ../c", "opt/c/x", "opt/a/x", AltRoot[1:] + "/opt/a/b/x", AltRoot[1:] + "/usr/lib/x -> /opt/a/b/x"},
			"dir, /opt/a\ndir, /opt/a/b\nsym, /usr/lib/x",
			[]string{"folder /opt/a", "folder /opt/a/b from /opt/c", "file /opt/a/b/x from " + AltRoot + "/opt/a/b/x", "link /usr/lib/x -> /opt/a/b/x"},
		},
		{"a link in a given folder is brought as it is", []string{"opt/a/l -> /lib/x", "lib -> usr/lib", "usr/lib/x"}, "dir, /opt/a\nsym, /opt/a/l", []string{"folder /opt/a", "file /usr/lib/x"}},
		{"a file below a file", []string{"a"}, "lib, /a/b", []string{"problem 1 missing"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := compiled(t, board(t, tt.board...), tt.list)
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
			}
		})
	}
}

func TestCompileSpecialFiles(t *testing.T) {
	root := board(t, "open", "secret")
	for name, mode := range map[string]os.FileMode{"open": 0o666, "secret": 0o600} {
		if err := os.Chmod(filepath.Join(root, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(root, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := compiled(t, root, "lib, /fifo\nlib, /open\nlib, /secret\ndev, /fifo")
	want := []string{"file /open", "file /secret", "problem 1 refused", "problem 2 dangerous, used", "problem 3 dangerous, used", "problem 4 duplicate, used", "problem 4 refused"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q; want %q", got, want)
	}
}

// Each thing that is listed as another kind is named, with what to do.
func TestCompileOtherKinds(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make a block device")
	}
	root := board(t, "file", "folder/")
	at := func(name string) string { return filepath.Join(root, name) }
	for _, err := range []error{
		syscall.Mkfifo(at("fifo"), 0o644),
		syscall.Mknod(at("socket"), syscall.S_IFSOCK|0o644, 0),
		syscall.Mknod(at("disk"), syscall.S_IFBLK|0o644, 7<<8),
		syscall.Mknod(at("node"), syscall.S_IFCHR|0o644, 1<<8|3),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]string{
		"lib, /fifo":   "/fifo is a FIFO, a socket or a block device",
		"sym, /socket": "/socket is a FIFO, a socket or a block device",
		"lib, /disk":   "/disk is a FIFO, a socket or a block device",
		"dev, /disk":   "/disk is a FIFO, a socket or a block device",
		"lib, /node":   "/node is a device; list it as dev",
		"lib, /folder": "/folder is a folder; list it as dir",
		"dev, /folder": "/folder is a folder; list it as dir",
		"dir, /node":   "/node is a device; list it as dev",
		"dev, /file":   "/file is a file; list it as lib",
		"dir, /fifo":   "/fifo is a FIFO, a socket or a block device",
	}
	for list, want := range tests {
		entries, _ := listed(t, list)
		p, problems := compile(root, entries)
		if len(p.Mounts)+len(p.Devices) > 0 || len(problems) != 1 || !problems[0].Unused || !strings.Contains(problems[0].Why, want) {
			t.Errorf("%s: %v; want %q", list, problems, want)
		}
	}
}

// The machine that runs the tests has the devices that every Linux has.
func TestCompileDevices(t *testing.T) {
	entries, _ := listed(t, "dev, /dev/null\nlib, /dev/full\ndev, /dev/zer[o]")
	p, problems := compile("/", entries)
	var got []string
	for _, d := range p.Devices {
		got = append(got, fmt.Sprintf("%s %d:%d", d.Path, d.Major, d.Minor))
	}
	if want := []string{"/dev/null 1:3", "/dev/zero 1:5"}; !reflect.DeepEqual(got, want) {
		t.Errorf("devices %q; want %q", got, want)
	}
	if len(problems) != 1 || !strings.Contains(problems[0].Why, "list it as dev") {
		t.Errorf("problems %v; want /dev/full refused as a lib", problems)
	}
}

// 65 names for a folder of 65 files are more matches than a pattern may have.
func TestCompileManyMatches(t *testing.T) {
	var lines []string
	for i := 0; i < 65; i++ {
		lines = append(lines, fmt.Sprintf("d/f%d", i), fmt.Sprintf("l%d -> d", i))
	}
	got := compiled(t, board(t, lines...), "lib, /l*/f*")
	if want := []string{"problem 1 refused"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %d lines, the first %q; want %q", len(got), got[0], want)
	}
}

// Whatever links a board has, nothing outside of its tree is given and the walk ends.
func FuzzLinks(f *testing.F) {
	f.Add("b", "../b", "/a/../c", "/a")
	f.Add("../../../etc/passwd", "a/x", "b/../a", "/c/d")
	f.Add("b/b", "c/c", "a/a", "/a/*")
	f.Fuzz(func(t *testing.T, a, b, c, list string) {
		root := t.TempDir()
		for name, target := range map[string]string{"a": a, "b": b, "c": c} {
			if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
				t.Skip()
			}
		}
		if err := os.WriteFile(filepath.Join(root, "d"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		entries, _ := listed(t, "lib, "+list+"\nsym, "+list+"x\nlib, /a\nlib, /b\nlib, /c")
		p, _ := compile(root, entries)
		for _, m := range p.Mounts {
			if m.Source != root+m.Path && !strings.HasPrefix(m.Source, root+AltRoot) {
				t.Errorf("%+v is outside of the board's tree", m)
			}
		}
	})
}
