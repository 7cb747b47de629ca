package git

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommitOfFolder(t *testing.T) {
	dir := t.TempDir()
	if got := CommitOfFolder(t.Context(), dir); got != nil {
		t.Errorf("without a repository: %+v", got)
	}
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return string(out[:max(len(out)-1, 0)])
	}
	for _, v := range branchVariables {
		t.Setenv(v.branch, "")
		t.Setenv(v.commit, "")
	}
	git("init", "-q", "--initial-branch=next")
	if got := CommitOfFolder(t.Context(), dir); got != nil {
		t.Errorf("without a commit: %+v", got)
	}
	for _, name := range []string{"boards/a", "other/b"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("add", ".")
	git("commit", "-qm", "first")
	head := git("rev-parse", "HEAD")
	for _, tt := range []struct {
		name, remote, write string
		want                FolderCommit
	}{
		{"committed", "", "", FolderCommit{Commit: head}},
		{"a remote with a password", "https://me:secret@git.example.com/team/boards.git", "", FolderCommit{URL: "https://git.example.com/team/boards.git", Commit: head}},
		{"a remote of ssh", "git@git.example.com:team/boards.git", "", FolderCommit{URL: "git@git.example.com:team/boards.git", Commit: head}},
		{"a remote here", dir, "", FolderCommit{Commit: head}},
		{"an edit elsewhere", "", "other/b", FolderCommit{Commit: head}},
		{"an edit", "", "boards/a", FolderCommit{Commit: head, Edited: true}},
	} {
		_ = exec.Command("git", "-C", dir, "remote", "remove", "origin").Run() // there may be none
		if tt.remote != "" {
			git("remote", "add", "origin", tt.remote)
		}
		if tt.write != "" {
			if err := os.WriteFile(filepath.Join(dir, tt.write), []byte("2\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		tt.want.Branch = "next"
		if diff := cmp.Diff(&tt.want, CommitOfFolder(t.Context(), filepath.Join(dir, "boards"))); diff != "" {
			t.Errorf("%s:\n%s", tt.name, diff)
		}
	}
	git("checkout", "-q", "--detach")
	for i, v := range slices.Backward(branchVariables) { // the first counts
		want := fmt.Sprint("branch", i)
		t.Setenv(v.branch, want)
		if got := CommitOfFolder(t.Context(), dir).Branch; got != want {
			t.Errorf("with %s the branch is %q; want %q", v.branch, got, want)
		}
		t.Setenv(v.commit, head)
		if got := CommitOfFolder(t.Context(), dir).Branch; got != want {
			t.Errorf("with %s and its commit the branch is %q; want %q", v.branch, got, want)
		}
	}
	for _, v := range branchVariables {
		t.Setenv(v.commit, strings.Repeat("0", 40))
	}
	if got := CommitOfFolder(t.Context(), dir).Branch; got != "" {
		t.Errorf("at another commit than the server's, the branch is %q; want none", got)
	}
}

// A link leads to a web server, whatever a report of elsewhere calls its repository.
func TestPagesOfCommits(t *testing.T) {
	commitA, commitB := strings.Repeat("a", 40), strings.Repeat("b", 40)
	of, page := "/compare/"+commitA+"..."+commitB, "/commit/"+commitB
	for _, tt := range []struct{ name, url, before, after, compare, page string }{
		{"GitHub", "https://github.com/o/r.git", commitA, commitB, "https://github.com/o/r" + of, "https://github.com/o/r" + page},
		{"GitHub by SSH", "git@github.com:o/r.git", commitA, commitB, "https://github.com/o/r" + of, "https://github.com/o/r" + page},
		{"GitHub of one's own", "https://github.example.com/o/r", commitA, commitB, "https://github.example.com/o/r" + of, "https://github.example.com/o/r" + page},
		{"GitLab", "https://gitlab.com/g/s/r.git", commitA, commitB, "https://gitlab.com/g/s/r/-" + of, "https://gitlab.com/g/s/r/-" + page},
		{"GitLab by SSH with a port", "ssh://git@gitlab.example.com:2222/g/r.git", commitA, commitB, "https://gitlab.example.com/g/r/-" + of, "https://gitlab.example.com/g/r/-" + page},
		{"GitLab with a web port", "https://gitlab.example.com:8443/g/r", commitA, commitB, "https://gitlab.example.com:8443/g/r/-" + of, "https://gitlab.example.com:8443/g/r/-" + page},
		{"another server", "https://git.example.com/o/r", commitA, commitB, "", "https://git.example.com/o/r"},
		{"another server with one name", "https://git.example.com/boards.git", commitA, commitB, "", "https://git.example.com/boards.git"},
		{"another server without TLS", "http://git.lab:3000/o/r.git", commitA, commitB, "", "http://git.lab:3000/o/r.git"},
		{"GitLab without TLS", "http://gitlab.lab/o/r.git", commitA, commitB, "http://gitlab.lab/o/r/-" + of, "http://gitlab.lab/o/r/-" + page},
		{"another server by SSH", "git@git.example.com:o/r.git", commitA, commitB, "", ""},
		{"a password", "https://user:secret@git.example.com/o/r", commitA, commitB, "", "https://git.example.com/o/r"},
		{"a script of GitHub", "javascript://github.com/o/r", commitA, commitB, "", ""},
		{"a script without a host", "javascript:alert(1)", commitA, commitB, "", ""},
		{"a file", "file://git.example.com/etc/passwd", commitA, commitB, "", ""},
		{"another scheme", "ftp://github.com/o/r", commitA, commitB, "", ""},
		{"an attribute", `https://git.example.com/o/r"onmouseover="x`, commitA, commitB, "", ""},
		{"an element", "https://git.example.com/<script>/r", commitA, commitB, "", ""},
		{"an encoded way out", "https://git.example.com/o/%2e%2e/r", commitA, commitB, "", ""},
		{"a folder", "/srv/git/r", commitA, commitB, "", ""},
		{"a name that only contains one", "https://notgithub.com/o/r", commitA, commitB, "", "https://notgithub.com/o/r"},
		{"no URL", "", commitA, commitB, "", ""},
		{"a script", "javascript://github.com/%0aalert(1)/o", commitA, commitB, "", ""},
		{"a host with a blank", "git@github.com x:o/r", commitA, commitB, "", ""},
		{"a path that leaves", "https://github.com/o/../r", commitA, commitB, "", ""},
		{"a query", "https://github.com/o/r?x=y", commitA, commitB, "https://github.com/o/r" + of, "https://github.com/o/r" + page},
		{"no repository", "https://github.com/o", commitA, commitB, "", ""},
		{"the same commit", "https://github.com/o/r", commitA, commitA, "", "https://github.com/o/r/commit/" + commitA},
		{"no commit", "https://github.com/o/r", commitA, "x?y", "", ""},
		{"no commit before", "https://github.com/o/r", "x?y", commitB, "", "https://github.com/o/r" + page},
		{"a short commit", "https://github.com/o/r", commitA, commitB[:12], "", ""},
	} {
		c := FolderCommit{URL: tt.url, Commit: tt.after}
		if compare, page := c.ComparePage(tt.before), c.Page(); compare != tt.compare || page != tt.page {
			t.Errorf("%s: ComparePage = %q, Page = %q; want %q, %q", tt.name, compare, page, tt.compare, tt.page)
		}
	}
}

func FuzzPageOfCommit(f *testing.F) {
	for _, address := range []string{"https://u:p@github.com:1/o/r.git", "git@gitlab.lab:o/r", "http://git.lab/~o/r", "javascript://x/o/r"} {
		f.Add(address)
	}
	f.Fuzz(func(t *testing.T, address string) {
		page := FolderCommit{URL: address, Commit: strings.Repeat("a", 40)}.Page()
		u, err := url.Parse(page)
		if page == "" && err == nil {
			return
		}
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery+u.Fragment != "" || strings.ContainsAny(page, " \"'<>\\\n%") {
			t.Errorf("the page of %q is %q, %v; want one of a web server", address, page, err)
		}
	})
}
