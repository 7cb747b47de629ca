package layers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"slipway/layers/git"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// moved is a tree r at the first of a server's two commits, whose project then asks for the second.
type moved struct{ url, first, second, dir, r string }

func movedTree(t *testing.T) moved {
	t.Helper()
	m := moved{dir: filepath.Join(t.TempDir(), "a blank")}
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m.url, m.first, m.second = server(t)
	m.r = filepath.Join(m.dir, "r")
	if err := m.checkout(t, t.Context(), m.first); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m moved) checkout(t *testing.T, ctx context.Context, commit string) error {
	t.Helper()
	return Checkout(ctx, load(t, m.dir, repoFile("url: "+m.url+", commit: "+commit)), Workspace{Dir: m.dir})
}

// files are the tree's files without git's own, by path.
func (m moved) files(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(m.r, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == ".git" {
			return filepath.SkipDir
		}
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, m.r+"/")] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A refused checkout is refused the second time too, and changes nothing.
func TestCheckoutMovesOnlyWhatNobodyTouched(t *testing.T) {
	tests := []struct {
		name    string
		touch   func(t *testing.T, r string)
		wantErr string
	}{
		{"untouched", func(*testing.T, string) {}, ""},
		{"an unknown file", func(t *testing.T, r string) { write(t, r, map[string]string{"notes": "mine"}) }, ""},
		{"an edited file", func(t *testing.T, r string) { write(t, r, map[string]string{"conf/layer.conf": "mine"}) }, "has local changes"},
		{"an edited file that goes", func(t *testing.T, r string) {
			write(t, r, map[string]string{"recipes/one.bb": "mine"})
			mustRun(t, r, "git", "add", "-A")
		}, "has local changes"},
		{"an unknown file in the way", func(t *testing.T, r string) { write(t, r, map[string]string{"recipes/two.bb": "mine"}) }, "would be overwritten"},
		{"an ignored file in the way", func(t *testing.T, r string) {
			write(t, r, map[string]string{"recipes/two.bb": "mine", ".git/info/exclude": "*.bb"})
		}, "would be overwritten"},
		{"a folder in a file's way", func(t *testing.T, r string) { write(t, r, map[string]string{"recipes/two.bb/notes": "mine"}) }, "would be overwritten"},
		{"a name with a line break in the way", func(t *testing.T, r string) { write(t, r, map[string]string{"recipes/two.bb/a\nb": "mine"}) }, "status --short --ignored"},
		{"a file in a folder's way", func(t *testing.T, r string) { write(t, r, map[string]string{"new-two": "mine"}) }, "would be overwritten"},
		{"a link in a folder's way", func(t *testing.T, r string) {
			if err := os.Symlink("conf/layer.conf", filepath.Join(r, "new-two")); err != nil {
				t.Fatal(err)
			}
		}, "would be overwritten"},
		{"a commit on no branch", func(t *testing.T, r string) { mustRun(t, r, "git", "commit", "-q", "--allow-empty", "-m", "mine") }, "HEAD, on no branch, holds commits of yours"},
		{"a commit on a branch", func(t *testing.T, r string) {
			mustRun(t, r, "git", "checkout", "-q", "-b", "mine")
			mustRun(t, r, "git", "commit", "-q", "--allow-empty", "-m", "mine")
		}, "branch mine holds commits of yours"},
		{"another git at work", func(t *testing.T, r string) { write(t, r, map[string]string{".git/index.lock": ""}) }, "index.lock"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := movedTree(t)
			tt.touch(t, m.r)
			head, files := headOf(t, m.r), m.files(t)
			for i := range 2 {
				err := m.checkout(t, t.Context(), m.second)
				if tt.wantErr == "" {
					if err != nil || headOf(t, m.r) != m.second {
						t.Fatalf("Checkout, run %d = %v; want HEAD at %s", i+1, err, m.second)
					}
					continue
				}
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) || headOf(t, m.r) != head {
					t.Errorf("Checkout, run %d = %v; want an error with %q and HEAD where it was", i+1, err, tt.wantErr)
				}
				if diff := cmp.Diff(files, m.files(t)); diff != "" {
					t.Errorf("run %d changed files that it refused to (-before +after):\n%s", i+1, diff)
				}
			}
			if !slices.Contains([]string{"", "index.lock", "status --short --ignored"}, tt.wantErr) {
				typeNext(t, m.r, m.checkout(t, t.Context(), m.second))
				if err := m.checkout(t, t.Context(), m.second); err != nil || headOf(t, m.r) != m.second {
					t.Errorf("Checkout after the next line = %v; want HEAD at %s", err, m.second)
				}
			}
		})
	}
}

// typeNext runs the last next line of an error, but not the user's line in it.
func typeNext(t *testing.T, dir string, err error) {
	t.Helper()
	_, next, found := strings.Cut(fmt.Sprint(err), "\nnext: git ")
	if !found {
		t.Fatalf("%v; want a line of git to type", err)
	}
	mustRun(t, dir, "sh", "-ec", strings.ReplaceAll("git "+next, "repeat the line", "true"))
}

// A folder of the old commit that becomes a file of the new one, with a file of the user's in it.
func TestCheckoutKeepsAFileInAFolderThatGoes(t *testing.T) {
	m := movedTree(t)
	mustRun(t, m.url, "git", "rm", "-q", "-r", "conf")
	write(t, m.url, map[string]string{"conf": "a file now"})
	mustRun(t, m.url, "git", "add", "-A")
	mustRun(t, m.url, "git", "commit", "-q", "-m", "three")
	third := headOf(t, m.url)
	write(t, m.r, map[string]string{"conf/notes": "mine"})
	for range 2 {
		err := m.checkout(t, t.Context(), third)
		if err == nil || !strings.Contains(err.Error(), "  | conf/notes\n") || m.files(t)["conf/notes"] != "mine" {
			t.Errorf("Checkout = %v; want it to refuse to delete conf/notes", err)
		}
	}
	if err := os.Rename(filepath.Join(m.r, "conf/notes"), filepath.Join(m.r, "notes")); err != nil {
		t.Fatal(err)
	}
	if err := m.checkout(t, t.Context(), third); err != nil || m.files(t)["conf"] != "a file now" {
		t.Errorf("Checkout = %v; want conf to be a file", err)
	}
}

// A git status that is killed while it rewrites the index leaves index.lock, which slipway
// takes for that of another git.
func TestEditedTakesNoLock(t *testing.T) {
	m := movedTree(t)
	if err := os.Chtimes(filepath.Join(m.r, "conf/layer.conf"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(m.r, ".git/index")
	before, err := os.Stat(index)
	if err != nil {
		t.Fatal(err)
	}
	edited, err := git.TreeIn(m.r, nil).EditedFiles(t.Context())
	if err != nil || len(edited) > 0 {
		t.Errorf("edited = %q, %v; want nothing", edited, err)
	}
	if after, err := os.Stat(index); err != nil || !os.SameFile(before, after) {
		t.Errorf("git status wrote the index anew, under a lock: %v", err)
	}
}

// rescued are the files that slipway put aside in r, by path.
func rescued(t *testing.T, r string) map[string]string {
	t.Helper()
	all := map[string]string{}
	names, err := filepath.Glob(filepath.Join(r, ".git/slipway-rescued/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		for path, content := range (moved{r: name}).files(t) {
			all[path] += content
		}
	}
	for _, ref := range strings.Fields(mustRun(t, r, "git", "for-each-ref", "--format=%(refname)", "refs/slipway/rescued/")) {
		for _, path := range strings.Fields(mustRun(t, r, "git", "diff", "--name-only", "--diff-filter=d", ref+"^", ref)) {
			all[path] += mustRun(t, r, "git", "show", ref+":"+path)
		}
	}
	return all
}

// A checkout that was killed leaves its marker, perhaps some of its files, and
// somebody may have worked there since.
func TestCheckoutAfterAKill(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string // what lies there
		want  map[string]string // what is put aside
	}{
		{"nothing was written", nil, map[string]string{}},
		{"git's locks", map[string]string{".git/index.lock": "", ".git/HEAD.lock": "", ".git/refs/slipway/checkout.lock": ""}, map[string]string{}},
		{"git's whole files", map[string]string{"recipes/two.bb": "two", "new-two/file": "two"}, map[string]string{}},
		{"git's half files", map[string]string{"recipes/two.bb": "t", "conf/layer.conf": "tw"}, map[string]string{"recipes/two.bb": "t", "conf/layer.conf": "tw"}},
		{"an unknown file in the way", map[string]string{"recipes/two.bb": "mine"}, map[string]string{"recipes/two.bb": "mine"}},
		{"an ignored file in the way", map[string]string{"recipes/two.bb": "mine", ".git/info/exclude": "*"}, map[string]string{"recipes/two.bb": "mine"}},
		{"a folder in a file's way", map[string]string{"recipes/two.bb/a/b": "mine"}, map[string]string{"recipes/two.bb/a/b": "mine"}},
		{"a file in a folder's way", map[string]string{"new-two": "mine"}, map[string]string{"new-two": "mine"}},
		{"an unknown file elsewhere", map[string]string{"notes": "mine"}, map[string]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := movedTree(t)
			write(t, m.r, map[string]string{".git/slipway-moving": m.second})
			write(t, m.r, tt.files)
			seen := &progresstest.Recorder{}
			if err := m.checkout(t, progress.With(t.Context(), progress.New(seen)), m.second); err != nil {
				t.Fatal(err)
			}
			if got := mustRun(t, m.r, "git", "status", "--porcelain", "--untracked-files=no"); got != "" || headOf(t, m.r) != m.second {
				t.Errorf("HEAD %s, status %q; want %s and nothing", headOf(t, m.r), got, m.second)
			}
			if diff := cmp.Diff(tt.want, rescued(t, m.r)); diff != "" {
				t.Errorf("files put aside (-want +got):\n%s", diff)
			}
			if said := seen.Last("rescued").Detail; (len(tt.want) > 0) != strings.Contains(said, m.r) {
				t.Errorf("%d files were put aside, and it said %q", len(tt.want), said)
			}
			if tt.files["notes"] != m.files(t)["notes"] {
				t.Error("a file that was in nobody's way is gone")
			}
		})
	}
}

// A user's edited file that became a folder is the user's twice.
func TestCheckoutAfterAKillKeepsAFolderInAnOldFilesPlace(t *testing.T) {
	m := movedTree(t)
	if err := os.Remove(filepath.Join(m.r, "conf/layer.conf")); err != nil {
		t.Fatal(err)
	}
	write(t, m.r, map[string]string{".git/slipway-moving": m.second, "conf/layer.conf/notes": "mine"})
	if err := m.checkout(t, t.Context(), m.second); err != nil || headOf(t, m.r) != m.second {
		t.Fatalf("Checkout = %v; want HEAD at %s", err, m.second)
	}
	if got := rescued(t, m.r); got["conf/layer.conf/notes"] != "mine" {
		t.Errorf("put aside: %v; want the notes", got)
	}
}

// Killed, edited, killed again: the second rescue must not forget the first.
func TestCheckoutAfterTwoKills(t *testing.T) {
	m := movedTree(t)
	for i, commit := range []string{m.second, m.first} {
		mine := []string{"mine", "mine too"}[i]
		write(t, m.r, map[string]string{".git/slipway-moving": commit, "conf/layer.conf": mine, "recipes/" + []string{"two", "one"}[i] + ".bb": mine})
		if err := m.checkout(t, t.Context(), commit); err != nil {
			t.Fatal(err)
		}
	}
	got := rescued(t, m.r)
	for _, path := range []string{"conf/layer.conf", "recipes/two.bb", "recipes/one.bb"} {
		if !strings.Contains(got[path], "mine") {
			t.Errorf("%s is not among what was put aside: %v", path, got)
		}
	}
	if !strings.Contains(got["conf/layer.conf"], "minemine too") && !strings.Contains(got["conf/layer.conf"], "mine toomine") {
		t.Errorf("conf/layer.conf was put aside as %q; want it of both times", got["conf/layer.conf"])
	}
}

// Files of a killed checkout must not stay in the layers of another commit.
func TestCheckoutAfterAKillOfAnotherCommit(t *testing.T) {
	m := movedTree(t)
	mustRun(t, m.r, "git", "fetch", "-q", "--depth=1", "origin", m.second)
	write(t, m.r, map[string]string{".git/slipway-moving": m.second, "recipes/two.bb": "two", "new-two/file": "t"})
	if err := m.checkout(t, t.Context(), m.first); err != nil {
		t.Fatal(err)
	}
	if got := mustRun(t, m.r, "git", "status", "--porcelain"); got != "" || headOf(t, m.r) != m.first {
		t.Errorf("HEAD %s, status %q; want %s and nothing", headOf(t, m.r), got, m.first)
	}
	if diff := cmp.Diff(map[string]string{"new-two/file": "t"}, rescued(t, m.r)); diff != "" {
		t.Errorf("files put aside (-want +got):\n%s", diff)
	}
}

func TestCheckoutAfterAKillKeepsACommitOnNoBranch(t *testing.T) {
	m := movedTree(t)
	write(t, m.r, map[string]string{".git/slipway-moving": m.second})
	mustRun(t, m.r, "git", "commit", "-q", "--allow-empty", "-m", "mine")
	mine := headOf(t, m.r)
	for range 2 {
		if err := m.checkout(t, t.Context(), m.second); err == nil || !strings.Contains(err.Error(), "commits of yours") || headOf(t, m.r) != mine {
			t.Errorf("Checkout = %v; want it to leave the commit %s", err, mine)
		}
	}
}

// Killed when git was done and slipway had not noted it: the commit is on no
// branch, and nobody's own.
func TestCheckoutAfterAKillAtTheEnd(t *testing.T) {
	m := movedTree(t)
	if err := m.checkout(t, t.Context(), m.second); err != nil {
		t.Fatal(err)
	}
	mustRun(t, m.r, "git", "update-ref", "refs/slipway/checkout", m.first)
	write(t, m.r, map[string]string{".git/slipway-moving": m.second})
	if err := m.checkout(t, t.Context(), m.first); err != nil || headOf(t, m.r) != m.first {
		t.Errorf("Checkout = %v; want HEAD at %s", err, m.first)
	}
}

// Git says that it could not write a file, and exits with 0.
func TestCheckoutNoticesAFileThatCannotBeWritten(t *testing.T) {
	m := movedTree(t)
	open := makeReadOnly(t, filepath.Join(m.r, "new-two"))
	for range 2 {
		if err := m.checkout(t, t.Context(), m.second); err == nil || !strings.Contains(err.Error(), "unable to create file new-two/file") {
			t.Errorf("Checkout = %v; want what git could not write", err)
		}
	}
	open()
	if err := m.checkout(t, t.Context(), m.second); err != nil || m.files(t)["new-two/file"] != "two" {
		t.Errorf("Checkout after that = %v; want the file to be there", err)
	}
}

// makeReadOnly makes a folder where nobody can make a file, root neither.
func makeReadOnly(t *testing.T, dir string) (undo func()) {
	t.Helper()
	if err := os.Mkdir(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		return func() { os.Chmod(dir, 0o755) }
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Skipf("cannot mount a tmpfs (needs CAP_SYS_ADMIN): %v", err)
	}
	undo = sync.OnceFunc(func() { unix.Unmount(dir, 0) })
	t.Cleanup(undo)
	return undo
}

// Nothing outside of the tree may be looked at or put aside, whatever a commit names.
func TestCheckoutRefusesPathsThatLeadOut(t *testing.T) {
	m := movedTree(t)
	write(t, m.dir, map[string]string{"outside": "mine"})
	blob := mustRun(t, m.url, "git", "rev-parse", "HEAD:conf/layer.conf")
	for _, folder := range []string{"..", ".git", ".GIT"} {
		inner := mktree(t, m.url, "100644 blob "+blob+"\toutside\n")
		tree := mktree(t, m.url, "040000 tree "+inner+"\t"+folder+"\n")
		commit := mustRun(t, m.url, "git", "commit-tree", "-m", "bad", tree)
		mustRun(t, m.url, "git", "update-ref", "refs/heads/bad", commit)
		write(t, m.r, map[string]string{".git/slipway-moving": commit})
		err := m.checkout(t, t.Context(), commit)
		if err == nil || !strings.Contains(err.Error(), "which no checkout may write") {
			t.Errorf("Checkout of a commit with %s/outside = %v; want it refused", folder, err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(m.dir, "outside")); err != nil || string(data) != "mine" {
		t.Errorf("the file outside is %q, %v; want it as it was", data, err)
	}
}

func mktree(t *testing.T, dir, entries string) string {
	t.Helper()
	return feed(t, dir, entries, "git", "mktree")
}
