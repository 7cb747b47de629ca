package ldcache

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/plan"
)

// ldconfig runs the machine's.
func ldconfig(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := os.Stat("/sbin/ldconfig"); err != nil {
		t.Skip("needs ldconfig (Debian package libc-bin)")
	}
	out, err := exec.Command("/sbin/ldconfig", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ldconfig: %v\n%s", err, out)
	}
	return string(out)
}

// listed is what the machine's ldconfig reads in a cache: its lines "name (kind) => path", sorted.
func listed(t *testing.T, data []byte) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ld.so.cache")
	must(t, os.WriteFile(file, data, 0o644))
	var lines []string
	for _, line := range strings.Split(ldconfig(t, "-p", "-C", file), "\n") {
		if strings.Contains(line, "=>") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}

// What the machine's own ldconfig wrote is kept, line by line, and it reads what was added.
func TestLdconfigReads(t *testing.T) {
	data, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		t.Skipf("needs the machine's ld.so.cache (ldconfig writes it): %v", err)
	}
	c, err := parseCache(data)
	must(t, err)
	if len(c.entries) == 0 {
		t.Skip("the machine's ld.so.cache is empty")
	}
	replaced := c.entries[len(c.entries)/2]
	given := []entry{
		{flags: 0x0a03, name: "libslipway.so.1", path: "/opt/board/libslipway.so.1.2"},
		{flags: replaced.flags, name: replaced.name, path: "/opt/board/" + replaced.name},
	}
	want := listed(t, data)
	c.addEntries(given)
	got := listed(t, c.encode())
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%q is lost", line)
		}
	}
	for _, line := range []string{"libslipway.so.1 (libc6,AArch64) => /opt/board/libslipway.so.1.2", " => /opt/board/" + replaced.name} {
		if !slices.ContainsFunc(got, func(l string) bool { return strings.Contains(l, line) }) {
			t.Errorf("%q is not there", line)
		}
	}
	if len(got) != len(want)+2 {
		t.Errorf("%d lines; want %d", len(got), len(want)+2)
	}
}

// A folder of real libraries comes to the names, machines and files that ldconfig
// makes of it, in the same order. What is more are links: the board names them, and
// ldconfig takes only those that end in ".so" or are the soname.
func TestLikeLdconfig(t *testing.T) {
	files, _ := filepath.Glob("/usr/lib/x86_64-linux-gnu/lib*.so*")
	if len(files) == 0 {
		t.Skip("needs libraries in /usr/lib/x86_64-linux-gnu (an x86-64 machine, Debian package libc6)")
	}
	board := t.TempDir()
	for _, file := range files[:min(len(files), 100)] {
		copyLibrary(t, file, board+"/opt/board/"+filepath.Base(file))
	}
	write(t, board+"/etc/ld.so.conf", "/opt/board\n")
	ldconfig(t, "-r", board, "-X")
	data, err := os.ReadFile(board + cachePath)
	must(t, err)
	theirs, err := parseCache(data)
	must(t, err)
	compiled := plan.Compile(board, []csv.Entry{{Kind: csv.Library, Path: "/opt/board/*", File: "l.csv", Line: 1}}, nil)
	for _, p := range compiled.Problems {
		t.Log(p) // links to what was not copied
	}
	ours := &cache{}
	ours.addEntries(newEntries(compiled.Plan.Libraries))
	want := lines(t, board, theirs)
	got := slices.DeleteFunc(lines(t, board, ours), func(line string) bool {
		name, _, _ := strings.Cut(line, " ")
		_, err := os.Readlink(board + "/opt/board/" + name)
		return !slices.Contains(want, line) && err == nil
	})
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("the cache is\n%s\nldconfig made\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// copyLibrary copies a library that is not large, or the link to one in the same folder.
func copyLibrary(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(to), 0o755))
	if text, err := os.Readlink(from); err == nil {
		if !strings.Contains(text, "/") {
			must(t, os.Symlink(text, to))
		}
		return
	}
	if info, err := os.Stat(from); err != nil || info.Size() > 1<<20 {
		return
	}
	data, err := os.ReadFile(from)
	must(t, err)
	writeProgram(t, to, data)
}

// writeProgram holds off other programs' starts, which would have the file open for
// writing for a moment: then it cannot be run.
func writeProgram(t *testing.T, name string, data []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	must(t, os.WriteFile(name, data, 0o755))
}

// lines are the entries of a cache of board, each with the file at the end of its links.
func lines(t *testing.T, board string, c *cache) (out []string) {
	t.Helper()
	for _, e := range c.entries {
		file, err := filepath.EvalSymlinks(board + e.path)
		must(t, err)
		out = append(out, strings.Join([]string{e.name, strings.TrimPrefix(file, board), string(rune('0' + e.flags>>8))}, " "))
	}
	return out
}
