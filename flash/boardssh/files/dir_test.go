package files

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
	"slipway/layers/progress"
	"slipway/layers/run"
)

var oddTree = map[string]string{
	"a": "1", "sub/b": "22", "sub/deep/er/c": "333", "empty folder": "",
	"-rf": "x", "new\nline": "y", "\n": "z", "not utf-8 \xff\xfe": "w", `back\slash`: "v", "$(id) 'q' \"d\" *": "u",
	"link": "->sub/b", "dangling": "->/nowhere/at all", "odd link\n": "->-x\n\n", "sub/up": "->../a",
	"large": strings.Repeat("0123456789", 300_000),
}

func putDir(t *testing.T, c *boardssh.Conn, local, remote string, o DirOptions) map[string]string {
	t.Helper()
	changes, err := PutDir(t.Context(), c, local, remote, o)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, change := range changes {
		kinds[change.Path] = change.Kind
	}
	if len(kinds) != len(changes) {
		t.Errorf("a name is in the changes more than once: %v", changes)
	}
	return kinds
}

func TestPutDir(t *testing.T) {
	for name, settings := range map[string][]string{"GNU": nil, "busybox": {sshtest.OnlyBusybox(t)}, "shell": shellAlone(t)} {
		t.Run(name, func(t *testing.T) { testPutDir(t, boardtest.Connect(t, settings...)) })
	}
}

func testPutDir(t *testing.T, c *boardssh.Conn) {
	local, remote := t.TempDir(), filepath.Join(t.TempDir(), "-new", "place")
	sshtest.WriteTree(t, local, oddTree)
	for name, mode := range map[string]fs.FileMode{"a": 0o755, "sub/b": 0o600 | fs.ModeSetuid, "empty folder": 0o700 | fs.ModeSticky, "sub/deep": 0o750} {
		if err := os.Chmod(filepath.Join(local, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	planned := putDir(t, c, local, remote, DirOptions{DryRun: true})
	if _, err := os.Stat(remote); err == nil {
		t.Error("a dry run made the folder")
	}
	if done := putDir(t, c, local, remote, DirOptions{}); len(done) != len(sshtest.ReadTree(t, local)) || !cmp.Equal(planned, done) {
		t.Errorf("%d changes; want %d, as planned:\n%s", len(done), len(sshtest.ReadTree(t, local)), cmp.Diff(planned, done))
	}
	sshtest.CheckTrees(t, local, remote)
	if again := putDir(t, c, local, remote, DirOptions{Delete: true}); len(again) != 0 {
		t.Errorf("the second time there were changes: %v", again)
	}

	// On the board something else has happened, also where this leads out of the folder.
	aside := t.TempDir()
	sshtest.WriteTree(t, aside, map[string]string{"c": "untouched"})
	sshtest.WriteTree(t, remote, map[string]string{"more/x": "only there", "more\n/y": "->x"})
	must(t, run.WriteProgram(filepath.Join(remote, "a"), []byte("9"), 0o755), os.Chmod(filepath.Join(remote, "-rf"), 0o600),
		os.Remove(filepath.Join(remote, "link")), os.Symlink("elsewhere", filepath.Join(remote, "link")),
		os.RemoveAll(filepath.Join(remote, "sub/deep/er")), os.Symlink(aside, filepath.Join(remote, "sub/deep/er")))
	want := map[string]string{"a": Replaced, "-rf": Mode, "link": Replaced, "sub/deep/er": Replaced, "sub/deep/er/c": Added}
	if diff := cmp.Diff(want, putDir(t, c, local, remote, DirOptions{})); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	want = map[string]string{"more": Deleted, "more/x": Deleted, "more\n": Deleted, "more\n/y": Deleted}
	if diff := cmp.Diff(want, putDir(t, c, local, remote, DirOptions{Delete: true})); diff != "" {
		t.Errorf("changes with deletes (-want +got):\n%s", diff)
	}
	sshtest.CheckTrees(t, local, remote)
	sshtest.CheckFile(t, filepath.Join(aside, "c"), []byte("untouched"), 0o644)
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPutDirWithOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	c := boardtest.Connect(t)
	local, remote := t.TempDir(), t.TempDir()
	sshtest.WriteTree(t, local, map[string]string{"f": "x", "d/g": "y", "l": "->f"})
	must(t, os.Chmod(filepath.Join(local, "f"), 0o755|fs.ModeSetuid))
	putDir(t, c, local, remote, DirOptions{Owner: "0:0"})
	got := putDir(t, c, local, remote, DirOptions{Owner: "nobody:12345"})
	if want := map[string]string{"f": Mode, "d": Mode, "d/g": Mode, "l": Mode}; !cmp.Equal(got, want) {
		t.Errorf("changes are %v; want %v", got, want)
	}
	for _, name := range []string{"f", "d", "d/g", "l"} {
		info, err := os.Lstat(filepath.Join(remote, name))
		must(t, err)
		if s := info.Sys().(*syscall.Stat_t); s.Uid != 65534 || s.Gid != 12345 {
			t.Errorf("%s belongs to %d:%d", name, s.Uid, s.Gid)
		}
	}
	sshtest.CheckTrees(t, local, remote)
	if again := putDir(t, c, local, remote, DirOptions{Owner: "65534:12345"}); len(again) != 0 {
		t.Errorf("the same owner by number: %v", again)
	}
}

func TestPutDirRefuses(t *testing.T) {
	c := boardtest.Connect(t)
	local, file := t.TempDir(), sshtest.WriteFile(t, []byte("x"))
	sshtest.WriteTree(t, local, map[string]string{"f": "x"})
	blocked := t.TempDir()
	sshtest.WriteTree(t, blocked, map[string]string{"f/in the way": "x"})
	odd := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(odd, "pipe"), 0o600))
	listens := filepath.Join(t.TempDir(), "s")
	socket, err := net.Listen("unix", listens)
	must(t, err)
	defer socket.Close()
	for name, tt := range map[string]struct {
		local, remote, want string
		o                   DirOptions
	}{
		"a file":              {local: file, remote: t.TempDir(), want: "not a folder"},
		"nothing":             {local: filepath.Join(local, "missing"), remote: t.TempDir(), want: "no such file"},
		"to a file":           {local: local, remote: file, want: "not a folder"},
		"no name":             {local: local, want: "no name for a folder"},
		"a pipe":              {local: odd, remote: t.TempDir(), want: "pipe is a named pipe; Slipway sends only files, folders and symlinks\nnext: find " + odd + " !"},
		"a socket":            {local: filepath.Dir(listens), remote: t.TempDir(), want: "s is a socket; Slipway sends"},
		"a device":            {local: "/dev/pts", remote: t.TempDir(), want: " is a device; Slipway sends"},
		"a folder in the way": {local: local, remote: blocked, want: blocked + "/f on the board is a folder, and " + local + "/f is a file: a file does not replace a folder\nnext: ssh "},
		"which to move":       {local: local, remote: blocked, want: " 'mv " + blocked + "/f " + blocked + "/f.old'  # then repeat the line"},
		"an owner":            {local: local, remote: t.TempDir(), o: DirOptions{Owner: "-R x"}, want: "is no owner"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := PutDir(t.Context(), c, tt.local, tt.remote, tt.o)
			sshtest.CheckError(t, err, tt.want)
		})
	}
}

// A board without sha256sum proves files with openssl. One with neither, or without another
// program, names it before anything changes.
func TestPutDirWithoutPrograms(t *testing.T) {
	most := []string{"sh", "find", "stat", "cat", "mkdir", "rm", "mv", "ln", "chmod", "readlink", "sync"}
	for name, tt := range map[string]struct {
		programs []string
		want     string
	}{
		"openssl": {[]string{"xargs", "openssl"}, ""},
		"neither": {[]string{"xargs"}, ": the board has neither sha256sum nor openssl\nnext: ssh "},
		"xargs":   {[]string{"sha256sum"}, ": the board has no xargs\nnext: ssh "},
	} {
		t.Run(name, func(t *testing.T) {
			c := boardtest.Connect(t, "SetEnv PATH="+sshtest.LinkPrograms(t, append(tt.programs, most...)...))
			local, remote := t.TempDir(), filepath.Join(t.TempDir(), "new")
			sshtest.WriteTree(t, local, map[string]string{"a": "1", "l": "->a"})
			for _, o := range []DirOptions{{}, {Among: true}} {
				_, err := PutDir(t.Context(), c, local, remote, o)
				sshtest.CheckError(t, err, tt.want)
			}
			if tt.want != "" {
				sshtest.CheckEntries(t, filepath.Dir(remote))
				return
			}
			must(t, os.WriteFile(filepath.Join(remote, "a"), []byte("2"), 0o644), os.Remove(filepath.Join(remote, "l")), os.Symlink("b", filepath.Join(remote, "l")))
			if again := putDir(t, c, local, remote, DirOptions{}); len(again) != 2 {
				t.Errorf("changes %v; want those of a and l", again)
			}
			sshtest.CheckTrees(t, local, remote)
			if again := putDir(t, c, local, remote, DirOptions{}); len(again) > 0 {
				t.Errorf("changes of equal folders: %v", again)
			}
		})
	}
}

// A file that is written to while it is read must not pass for what was asked for.
func TestPutDirOfAFileThatChanges(t *testing.T) {
	c := boardtest.Connect(t)
	local, remote := t.TempDir(), t.TempDir()
	sshtest.WriteTree(t, local, map[string]string{"f": "before", "g": "same"})
	d := &folderUpload{conn: c, local: local, remote: remote}
	must(t, d.planChanges(t.Context(), progress.Start(t.Context(), "test", 0, progress.Bytes)))
	sshtest.WriteTree(t, local, map[string]string{"f": "and after"})
	sshtest.CheckError(t, d.applyChanges(t.Context(), progress.Start(t.Context(), "test", 0, progress.Bytes)), "changed while it was read")
	sshtest.CheckEntries(t, remote)
}

func TestParseList(t *testing.T) {
	const root = "41ed 4096 0 0 root root .\n"
	tests := []struct {
		name, in string
		want     map[string]entry
		wantErr  bool
	}{
		{name: "nothing", in: "", want: map[string]entry{}},
		{name: "an empty folder", in: root, want: map[string]entry{}},
		{
			name: "all kinds", in: root + "81a4 5 0 0 root root ./f\n41c0 4096 1 2 a b ./d\na1ff 3 0 0 root root ./d/l\n11a4 0 0 0 root root ./p\n",
			want: map[string]entry{
				"f": {mode: 0o644, size: 5, owner: [4]string{"0", "0", "root", "root"}},
				"d": {kind: fs.ModeDir, mode: 0o700, owner: [4]string{"1", "2", "a", "b"}}, "d/l": {kind: fs.ModeSymlink, mode: 0o777, owner: [4]string{"0", "0", "root", "root"}},
				"p": {kind: fs.ModeIrregular, mode: 0o644, owner: [4]string{"0", "0", "root", "root"}},
			},
		},
		{
			name: "newlines", in: root + "81a4 5 0 0 root root ./a\nb\n\nc\n81a4 6 0 0 root root ./d\n",
			want: map[string]entry{"a\nb\n\nc": {mode: 0o644, size: 5, owner: [4]string{"0", "0", "root", "root"}}, "d": {mode: 0o644, size: 6, owner: [4]string{"0", "0", "root", "root"}}},
		},
		{name: "out of the folder", in: root + "81a4 5 0 0 root root ./../x\n", wantErr: true},
		{name: "another root", in: root + "81a4 5 0 0 root root .//etc/passwd\n", wantErr: true},
		{name: "a name without an end", in: root + "81a4 5 0 0 root root ./a" + strings.Repeat("\n", 5000), wantErr: true},
		{name: "other words", in: "Welcome to the board\n", wantErr: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseList([]byte(tt.in))
			if (err != nil) != tt.wantErr {
				t.Fatalf("parseList(%q) = %v, %v", tt.in, got, err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(entry{})); err == nil && diff != "" {
				t.Errorf("parseList(%q) (-want +got):\n%s", tt.in, diff)
			}
		})
	}
}

// No name of the board's leads out of the folder.
func FuzzParseList(f *testing.F) {
	f.Add("41ed 4096 0 0 root root .\n81a4 5 0 0 root root ./a\nb\n")
	f.Add("81a4 5 0 0 root root ./../x\n")
	f.Add("81a4 5 0 0 root root ./a\n/../../b\n")
	f.Fuzz(func(t *testing.T, out string) {
		entries, err := parseList([]byte(out))
		if err != nil {
			return
		}
		for name := range entries {
			if name == "" || filepath.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../") || strings.Contains(name, "/../") || strings.HasSuffix(name, "/..") {
				t.Errorf("parseList(%q) has the name %q", out, name)
			}
		}
	})
}

// A file that another program removes while the folder is listed ends nothing.
func TestPutDirWhereFilesVanish(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	c := boardtest.Connect(t, sshtest.BeforeProgram(t, "stat", "case $* in *gone*) rm -f "+remote+"/gone ;; esac"))
	sshtest.WriteTree(t, local, map[string]string{"kept": "1", "added": "a"})
	sshtest.WriteTree(t, remote, map[string]string{"kept": "1", "gone": "g"})
	changes, err := PutDir(t.Context(), c, local, remote, DirOptions{Delete: true})
	if err != nil || !cmp.Equal(changes, []Change{{"added", Added, 1}}) {
		t.Errorf("PutDir = %v, %v; want one file added", changes, err)
	}
}

// Without --delete, a deploy into a large folder, such as /, lists only the names that it sends.
func TestPutDirListsOnlyItsNames(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	c := boardtest.Connect(t, sshtest.BeforeProgram(t, "find", "exit 1"), sshtest.BeforeProgram(t, "stat", "case $* in *other*) exit 1 ;; esac"))
	sshtest.WriteTree(t, local, map[string]string{"a": "1", "d/new": "n", "d/same": "s", "l/in": "i"})
	sshtest.WriteTree(t, remote, map[string]string{"a": "2", "d/same": "s", "d/other": "o", "l": "->d"})
	want := map[string]string{"a": Replaced, "d/new": Added, "l": Replaced, "l/in": Added}
	if diff := cmp.Diff(want, putDir(t, c, local, remote, DirOptions{})); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// What is reported as done has its name on the board's disk.
func TestNamesAreSynced(t *testing.T) {
	remote, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	c := boardtest.Connect(t, sshtest.BeforeProgram(t, "sync", "[ $# -gt 0 ] || ls -A "+remote+" >"+log))
	local := t.TempDir()
	sshtest.WriteTree(t, local, map[string]string{"small": "1", "large": strings.Repeat("l", 2<<20)})
	if _, err := PutDir(t.Context(), c, local, remote, DirOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSource(t.Context(), filepath.Join(local, "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, want := range []string{"large\nsmall\n", "alone\nlarge\nsmall\n"} {
		if seen, err := os.ReadFile(log); err != nil || string(seen) != want {
			t.Errorf("the last sync had %q, %v; want %q", seen, err, want)
		}
		if _, err := Send(t.Context(), c, s, filepath.Join(remote, "alone"), Rights{Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
	}
}

// A name that ends with a newline does not hide the same name without it, in either order.
func TestParseListOfNamesWithNewlines(t *testing.T) {
	const plain, broken = "41ed 0 0 0 root root ./more\n", "41ed 0 0 0 root root ./more\n\n"
	for _, list := range []string{plain + broken, broken + plain} {
		got, err := parseList([]byte(list))
		_, one := got["more"]
		_, two := got["more\n"]
		if err != nil || len(got) != 2 || !one || !two {
			t.Errorf("parseList(%q) = %v, %v; want both names", list, got, err)
		}
	}
}
