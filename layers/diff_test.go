package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"slipway/layers/git"
	"slipway/layers/localfile"
)

// diffed is a project in a git repository, whose states at work are commits.
type diffed struct {
	dir string
	ws  Workspace
}

func (d diffed) load(t *testing.T, repos string) Project {
	t.Helper()
	return load(t, d.dir, "header: {version: 14}\nrepos:\n"+repos)
}

func (d diffed) diff(t *testing.T, older, newer Project, most int) []Move {
	t.Helper()
	moves, err := Diff(t.Context(), older, newer, d.ws, most)
	if err != nil {
		t.Fatal(err)
	}
	return moves
}

var ownFields = cmpopts.IgnoreUnexported(Move{})

func TestDiff(t *testing.T) {
	url, first, second := server(t)
	mustRun(t, url, "git", "commit", "-q", "--allow-empty", "-m", "three \x1b[31mred")
	third := headOf(t, url)
	mustRun(t, url, "git", "checkout", "-q", "-b", "side", first)
	mustRun(t, url, "git", "commit", "-q", "--allow-empty", "-m", "side")
	side := headOf(t, url)
	r := func(id, commit string) string { return "  " + id + ": {url: " + url + ", commit: " + commit + "}\n" }
	tests := []struct {
		name, older, newer string
		most               int
		want               []Move
	}{
		{"nothing", r("a", first), r("a", first), 9, nil},
		{"forward", r("a", first), r("a", third), 9, []Move{{ID: "a", From: first, To: third, Ahead: 2, Commits: []git.Change{{Commit: third, Subject: "three [31mred"}, {Commit: second, Subject: "two"}}}}},
		{"the newest only", r("a", first), r("a", third), 1, []Move{{ID: "a", From: first, To: third, Ahead: 2, Commits: []git.Change{{Commit: third, Subject: "three [31mred"}}}}},
		{"back", r("a", second), r("a", first), 9, []Move{{ID: "a", From: second, To: first, Behind: 1, Commits: []git.Change{}}}},
		{"aside", r("a", second), r("a", side), 9, []Move{{ID: "a", From: second, To: side, Ahead: 1, Behind: 1, Commits: []git.Change{{Commit: side, Subject: "side"}}}}},
		{"new and gone", r("a", first), r("b", first), 9, []Move{{ID: "b", To: first, Commits: []git.Change{}}, {ID: "a", From: first, Commits: []git.Change{}}}},
		{"pinned", "  a: {url: " + url + ", branch: main}\n", r("a", first), 9, []Move{{ID: "a", Was: "main", To: first, Commits: []git.Change{}}}},
		{"not at the server", r("a", sha), r("a", first), 9, []Move{{ID: "a", From: sha, To: first, Commits: []git.Change{}, Unknown: "not our ref " + sha}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := diffed{t.TempDir(), mirrored(t)}
			for range 2 { // the second time out of the cache // the second time without the server
				got := d.diff(t, d.load(t, tt.older), d.load(t, tt.newer), tt.most)
				for i := range tt.want {
					tt.want[i].URL = url
				}
				if len(got) == 1 && len(tt.want) == 1 && strings.Contains(got[0].Unknown, tt.want[0].Unknown) {
					got[0].Unknown = tt.want[0].Unknown // git's words differ from one transport to another
				}
				if diff := cmp.Diff(tt.want, got, ownFields); diff != "" {
					t.Errorf("Diff (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// Names come without files, and a checkout's mirror stays shallow.
func TestDiffFetchesNoFiles(t *testing.T) {
	url, first, second := server(t)
	mustRun(t, url, "git", "config", "uploadpack.allowFilter", "true")
	d := diffed{t.TempDir(), mirrored(t)}
	newer := d.load(t, "  a: {url: \"file://"+url+"\", commit: "+second+"}\n")
	if err := Checkout(t.Context(), newer, d.ws); err != nil {
		t.Fatal(err)
	}
	d.diff(t, d.load(t, "  a: {url: \"file://"+url+"\", commit: "+first+"}\n"), newer, 9)
	mirror := git.MirrorFor(d.ws.Mirrors, newer.Repos[0].Remote).Dir
	if objects := mustRun(t, strings.TrimSuffix(mirror, ".git")+"-history.git", "git", "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)"); strings.Contains(objects, "tree") || strings.Count(objects, "commit") != 2 {
		t.Errorf("the history holds %q; want two commits and nothing else", objects)
	}
	if !localfile.Exists(filepath.Join(mirror, "shallow")) {
		t.Error("the mirror has more history than the checkout needs")
	}
}

func TestLoadAt(t *testing.T) {
	url, first, second := server(t)
	dir := t.TempDir()
	files := func(commit string) {
		write(t, dir, map[string]string{
			"boards/p.yml":      "header: {version: 14, includes: [boards/base.yml]}\n",
			"boards/base.yml":   "header: {version: 14}\nrepos:\n  r: {url: " + url + ", branch: main}\n",
			"boards/p.lock.yml": "header: {version: 14}\noverrides: {repos: {r: {commit: " + commit + "}}}\n",
			"boards/a:b.yml":    "header: {version: 14, includes: [boards/p.yml]}\n",
		})
	}
	mustRun(t, dir, "git", "init", "-q")
	files(first)
	mustRun(t, dir, "git", "add", "-A")
	mustRun(t, dir, "git", "commit", "-q", "-m", "before")
	files(second)
	t.Chdir(filepath.Join(dir, "boards"))
	now, err := Load(t.Context(), "p.yml", Workspace{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	then, err := LoadAt(t.Context(), now, "HEAD", Workspace{Dir: dir})
	if err != nil || then.Repos[0].Commit != first || now.Repos[0].Commit != second {
		t.Errorf("LoadAt(HEAD) = %+v, %v; want r at %s", then.Repos, err, first)
	}
	now.File = "a:b.yml"
	if then, err := LoadAt(t.Context(), now, "HEAD", Workspace{Dir: dir}); err != nil || then.Repos[0].Commit != first {
		t.Errorf("LoadAt of a file with a colon = %+v, %v; want r at %s", then.Repos, err, first)
	}
	if _, err := LoadAt(t.Context(), Project{File: "p.yml", Root: t.TempDir()}, "HEAD", Workspace{Dir: dir}); err == nil || !strings.Contains(err.Error(), "p.yml is in no git repository") || !strings.Contains(err.Error(), "\nnext: git init .  # or name an older project or lock file with --from") {
		t.Errorf("LoadAt without git = %v; want it to name --from", err)
	}
	if _, err := LoadAt(t.Context(), Project{File: "p.yml", Root: t.TempDir()}, "p.lock.yml.old", Workspace{Dir: dir}); err == nil || !strings.HasSuffix(err.Error(), "\nnext: ls .") {
		t.Errorf("LoadAt(missing file) without git = %v; want ls", err)
	}
	if _, err := LoadAt(t.Context(), now, "none.yml", Workspace{Dir: dir}); err == nil || !strings.HasSuffix(err.Error(), "\nnext: ls .") {
		t.Errorf("LoadAt(missing file) = %v; want ls", err)
	}
	for _, ref := range []string{"none", "v1.0", "--all", ""} {
		if _, err := LoadAt(t.Context(), now, ref, Workspace{Dir: dir}); err == nil || !strings.Contains(err.Error(), "neither a file nor a commit") || !strings.Contains(err.Error(), "\nnext: git -C ") {
			t.Errorf("LoadAt(%q) = %v; want it refused", ref, err)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 2 {
		t.Errorf("the repository holds %v, %v; want boards and .git", names, err)
	}
	lock, err := Load(t.Context(), "p.lock.yml", Workspace{Dir: dir})
	if err != nil || lock.pinnedCommits()["r"] != second {
		t.Errorf("the lock file alone pins %v, %v; want r at %s", lock.pinnedCommits(), err, second)
	}
}
