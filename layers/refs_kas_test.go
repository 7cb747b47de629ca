package layers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/git"
	"slipway/layers/kastest"
)

// refsServer has one name for a branch and a tag, a tag with the name of the server's
// own branch, tags of both kinds, and a ref that is neither.
func refsServer(t *testing.T) (url, first, tagObject string) {
	t.Helper()
	url, first, second := server(t)
	write(t, url, map[string]string{"oe-init-build-env": "export BUILDDIR=\"$1\"\n"})
	mustRun(t, url, "git", "add", "-A")
	mustRun(t, url, "git", "commit", "-q", "-m", "three")
	for _, args := range []string{
		"branch next " + second, "branch both " + second, "branch deep/next " + second, "tag both " + first, "tag -m b signed-both " + first, "branch signed-both " + second,
		"tag main " + first, "tag light " + first, "update-ref refs/pull/1/head " + second, "tag deep/tag " + first,
	} {
		mustRun(t, url, append([]string{"git"}, strings.Fields(args)...)...)
	}
	return url, first, mustRun(t, url, "git", "rev-parse", "v1")
}

// Whatever a project names a commit by, it is the commit that kas checks out.
func TestRefsAsKas(t *testing.T) {
	kas := mustFind(t, kastest.Testing)
	url, first, tagObject := refsServer(t)
	taken := []string{
		"refspec: both", "refspec: signed-both", "refspec: main", "refspec: next", "refspec: light", "refspec: v1", "refspec: deep/tag",
		"refspec: refs/heads/next", "refspec: refs/heads/deep/next", "refspec: refs/tags/v1", "refspec: tags/light", "refspec: refs/pull/1/head",
		"refspec: " + tagObject, "refspec: " + first,
		"branch: both", "branch: refs/heads/next", "branch: refs/tags/light", "branch: refs/tags/v1", "branch: refs/pull/1/head",
		"tag: both", "tag: refs/tags/light", "tag: tags/light", "tag: refs/tags/deep/tag",
		"tag: v1, commit: " + tagObject, "tag: refs/tags/v1, commit: " + tagObject, "tag: v1, commit: " + first, "branch: main, commit: " + first,
	}
	refused := []string{
		"commit: next", "commit: refs/tags/light", "commit: main", "commit: origin/next", "tag: light, commit: " + tagObject,
		"branch: light", "branch: heads/next", "refspec: none", "tag: refs/heads/next",
	}
	dir := realPath(t, t.TempDir())
	file := func(name string, keys ...string) string {
		text := "header: {version: 14}\nrepos:\n"
		for i, k := range keys {
			text += fmt.Sprintf("  r%02d: {url: %s, %s}\n", i, url, k)
		}
		write(t, dir, map[string]string{name + ".yml": text})
		return filepath.Join(dir, name+".yml")
	}
	runs := []kasRun{{Dir: filepath.Join(dir, "theirs"), Args: []string{"checkout", file("taken", taken...)}}}
	for i, keys := range refused {
		name := fmt.Sprintf("refused-%d", i)
		runs = append(runs, kasRun{Dir: filepath.Join(dir, name), Args: []string{"checkout", file(name, keys)}})
	}
	for _, r := range runs {
		if err := os.Mkdir(r.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	done := runKas(t, kas, runs)
	for _, mirrors := range []string{"", filepath.Join(dir, "mirrors")} {
		ws := Workspace{Dir: filepath.Join(dir, "ours"+filepath.Base(mirrors)), Mirrors: mirrors}
		p, err := Load(t.Context(), file("taken", taken...), ws)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := Checkout(t.Context(), p, ws); err != nil || done[0].err != nil {
				t.Fatalf("Checkout = %v, kas: %v; want both to take all", err, done[0].err)
			}
		}
		for i, keys := range taken {
			repo := fmt.Sprintf("r%02d", i)
			if theirs, ours := headOf(t, filepath.Join(runs[0].Dir, repo)), headOf(t, filepath.Join(ws.Dir, repo)); theirs != ours {
				t.Errorf("%s is %s; kas has %s", keys, ours, theirs)
			}
			if s := git.TreeIn(filepath.Join(ws.Dir, repo), nil); !s.IsCurrent(p.Repos[i].Remote) {
				t.Errorf("%s: a second checkout would ask git again", keys)
			}
		}
	}
	for i, keys := range refused {
		p, err := Load(t.Context(), runs[i+1].Args[1], Workspace{Dir: filepath.Join(runs[i+1].Dir, "ours")})
		if err == nil {
			err = Checkout(t.Context(), p, Workspace{Dir: filepath.Join(runs[i+1].Dir, "ours")})
		}
		if err == nil || done[i+1].err == nil {
			t.Errorf("%s: Checkout = %v, kas: %v; want both to refuse it", keys, err, done[i+1].err)
		}
	}
}

// What is no commit id never reaches git, which would take it for an option or a branch.
func TestCommitsThatAreNone(t *testing.T) {
	url, _, second := server(t)
	for _, commit := range []string{"1d54d1c473", "main", "--upload-pack=x", "HEAD", strings.ToUpper(second)} {
		dir := t.TempDir()
		p := load(t, dir, repoFile("url: "+url+", commit: '"+commit+"'"))
		if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "is not a whole commit id") {
			t.Errorf("Load of commit %s warns %q; want that it is no id", commit, p.Warnings)
		}
		ws := Workspace{Dir: dir, Mirrors: filepath.Join(dir, "m")}
		mustRun(t, dir, "git", "clone", "-q", url, "r")
		if err := Checkout(t.Context(), p, ws); err == nil || !strings.Contains(err.Error(), "p.yml:3:6: repos.r: commit ") || !strings.Contains(err.Error(), "\nnext: git ls-remote "+url) {
			t.Errorf("Checkout of commit %s = %v; want it refused", commit, err)
		}
		if s, err := Status(t.Context(), p, ws); err != nil || s[0].Word() != "differs" {
			t.Errorf("Status of commit %s = %+v, %v; want it to differ", commit, s, err)
		}
		if r, err := Reach(t.Context(), p, ws, 1<<40); err != nil || r[0].Here {
			t.Errorf("Reach of commit %s = %+v, %v; want it not here", commit, r, err)
		}
		older := load(t, t.TempDir(), repoFile("url: "+url+", commit: "+second))
		if moves, err := Diff(t.Context(), older, p, ws, 5); err != nil || len(moves) != 1 || moves[0].Unknown == "" {
			t.Errorf("Diff with commit %s = %+v, %v; want a move without names", commit, moves, err)
		}
	}
}
