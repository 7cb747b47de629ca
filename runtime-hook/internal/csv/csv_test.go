package csv

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func parse(text, name string) ([]Entry, []Problem) {
	return parseFile(text, name)
}

func TestParse(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	tests := []struct {
		name, input string
		want        []Entry  // File is filled in
		problems    []string // "line cause: part of why"
	}{
		{"kinds", "lib, /a\nsym, /b\ndir, /c\ndev, /d\n", []Entry{{Library, "/a", "", 1}, {Symlink, "/b", "", 2}, {Folder, "/c", "", 3}, {Device, "/d", "", 4}}, nil},
		{"no end of line", "lib,/a", []Entry{{Library, "/a", "", 1}}, nil},
		{"carriage returns and tabs", "lib,\t/a\r\n\r\n \t\r\nlib, /b \r\n", []Entry{{Library, "/a", "", 1}, {Library, "/b", "", 4}}, nil},
		{"commas and spaces", "lib, /a b, c", []Entry{{Library, "/a b, c", "", 1}}, nil},
		{"comments", "# what\n  # indented\nlib, /a#b\n", []Entry{{Library, "/a#b", "", 3}}, nil},
		{"byte order mark", "\uFEFFlib, /a\n", []Entry{{Library, "/a", "", 1}}, nil},
		{"a long line costs only itself", "lib, /a\nlib, /" + long + "\nlib, /b\n", []Entry{{Library, "/a", "", 1}, {Library, "/b", "", 3}}, []string{"2 bad line: the kernel takes 4095"}},
		{"a long comment", "#" + long + "\nlib, /b\n", []Entry{{Library, "/b", "", 2}}, nil},
		{"a path too long", "lib, /" + strings.Repeat("y", 5000), nil, []string{"1 bad line: the kernel takes 4095"}},
		{"cleaned", "lib, /a//b/./c/", []Entry{{Library, "/a/b/c", "", 1}}, nil},
		{"patterns", "dev, /dev/dri/card*\nlib, /a[1\n", []Entry{{Device, "/dev/dri/card*", "", 1}}, []string{"2 bad line: a bracket is open"}},
		{"no comma", "lib /a", nil, []string{"1 bad line: no comma"}},
		{"no comma in a long line", "x" + strings.Repeat("y", 8000), nil, []string{"1 bad line: \"x" + strings.Repeat("y", 79) + "\" has no comma"}},
		{"kinds are lower case", "LIB, /a\nlibs, /a\n, /a", nil, []string{`1 bad line: "LIB"`, `2 bad line: "libs"`, `3 bad line: ""`}},
		{"no path", "lib,\nlib, \n", nil, []string{"1 bad line: no path", "2 bad line: no path"}},
		{"a NUL", "lib, /a\x00b", nil, []string{"1 bad line: no path in UTF-8"}},
		{"not UTF-8", "lib, /\xff.so\nlib, /ä.so", []Entry{{Library, "/ä.so", "", 2}}, []string{`1 bad line: "/\xff.so" is no path in UTF-8`}},
		{"relative", "lib, a\ndev, nvidia0\nlib, ${libdir}/a\nlib, ./a", nil, []string{"1 refused: absolute", "2 refused: absolute", "3 refused: did not fill in", "4 refused: absolute"}},
		{"climbing", "lib, /a/../b\nlib, /..\nlib, /a..b/...", []Entry{{Library, "/a..b/...", "", 3}}, []string{"1 refused: climbs", "2 refused: climbs"}},
		{"folders of the system", "dir, /\ndir, //\ndir, /dev/\ndir, /./proc\ndir, /sys\ndir, /dev/dri\n", []Entry{{Folder, "/dev/dri", "", 6}}, []string{"1 refused: replace", "2 refused: replace", "3 refused: replace", "4 refused: replace", "5 refused: replace"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i := range tt.want {
				tt.want[i].File = "x.csv"
			}
			got, problems := parse(tt.input, "x.csv")
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Parse(%.80q) = %v; want %v", tt.input, got, tt.want)
			}
			sameProblems(t, problems, tt.problems)
		})
	}
}

func sameProblems(t *testing.T, got []Problem, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("problems %v; want %q", got, want)
	}
	for i, p := range got {
		at, why, _ := strings.Cut(want[i], ": ")
		if fmt.Sprintf("%d %s", p.Line, p.Cause) != at || !strings.Contains(p.Why, why) || !p.Unused {
			t.Errorf("problem %+v; want %q, unused", p, want[i])
		}
	}
}

// The fixture has the shape of the lists that boards ship: patterns, folders, a
// line twice, a name that some build forgot to fill in.
func TestFixtures(t *testing.T) {
	files, entries, problems, err := ReadDir("testdata/board")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[Kind]int{}
	for _, e := range entries {
		kinds[e.Kind]++
	}
	want := map[Kind]int{Device: 9, Folder: 2, Library: 18, Symlink: 6}
	if !reflect.DeepEqual(kinds, want) {
		t.Errorf("kinds = %v; want %v", kinds, want)
	}
	if len(files) != 3 {
		t.Errorf("files = %v; want the three that end in .csv", files)
	}
	if len(problems) != 1 || problems[0].File != "drivers.csv" || problems[0].Line != 21 {
		t.Errorf("problems = %v; want one at drivers.csv:21", problems)
	}
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("b.csv", "lib, /b\n")
	write("a.csv", "lib, /a\n")
	write("c.csv.bak", "lib, /c\n")
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.csv"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "gone.csv")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "b.csv"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, entries, problems, err := ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Entry{{Library, "/a", "a.csv", 1}, {Library, "/b", "b.csv", 1}}; !reflect.DeepEqual(entries, want) {
		t.Errorf("entries = %v; want %v", entries, want)
	}
	var causes []Cause
	for _, p := range problems {
		causes = append(causes, p.Cause)
	}
	if want := []Cause{Dangerous, Refused, Missing}; !reflect.DeepEqual(causes, want) {
		t.Errorf("problems = %v; want %v", problems, want)
	}
	if _, entries, _, err := ReadDir(filepath.Join(dir, "none")); err != nil || len(entries) != 0 {
		t.Errorf("ReadDir of no folder = %v, %v; want nothing", entries, err)
	}
}

// The files share the limit on their size; one that goes over it is left out.
func TestReadDirTooLarge(t *testing.T) {
	dir := t.TempDir()
	comment := "#" + strings.Repeat("x", maxBytes/2) + "\n"
	for name, text := range map[string]string{"a.csv": comment + "lib, /a\n", "b.csv": comment + "lib, /b\n", "c.csv": "lib, /c\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, entries, problems, err := ReadDir(dir)
	if want := []Entry{{Library, "/a", "a.csv", 2}, {Library, "/c", "c.csv", 1}}; err != nil || !reflect.DeepEqual(entries, want) {
		t.Errorf("entries = %v, %v; want %v", entries, err, want)
	}
	if len(problems) != 1 || problems[0].File != "b.csv" || problems[0].Line != 0 || !problems[0].Unused {
		t.Errorf("problems = %v; want that b.csv is left out", problems)
	}
}

// The limits bound what is kept while it is read, not what is left of it.
func TestParseMemory(t *testing.T) {
	for _, line := range []string{"x\n", "lib,/\n"} {
		text := strings.Repeat(line, (maxBytes-10)/len(line))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		parse(text, "x.csv")
		runtime.ReadMemStats(&after)
		// A line that is kept takes some 400 bytes, most of them for a moment.
		if got := (after.TotalAlloc - before.TotalAlloc) >> 20; got > 128 {
			t.Errorf("%q throughout took %d MiB; want less than 128", line, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "lib, /a\n", "\uFEFFdev,/dev/x*\r\n#\ndir,/\n", "sym, /a/../b", "lib,/[", "lib,/\x00", ",", "\n\n,,\nlib,/a,b", "lib, /\\", "dir, /proc/."} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, problems := parse(string(data), "f")
		lines := strings.Count(string(data), "\n") + 1
		if len(entries)+len(problems) > lines {
			t.Fatalf("%d entries and %d problems in %d lines", len(entries), len(problems), lines)
		}
		for _, e := range entries {
			if !filepath.IsAbs(e.Path) || e.Path != filepath.Clean(e.Path) || !e.Kind.isKnown() || strings.Contains(e.Path+"/", "/../") || strings.ContainsAny(e.Path, "\x00\n") {
				t.Errorf("let through %+v", e)
			}
			if e.Kind == Folder && System(e.Path) {
				t.Errorf("let through the folder %s", e.Path)
			}
		}
	})
}
