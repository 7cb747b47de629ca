package layers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	for _, name := range branchVariables {
		t.Setenv(name, "")
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
	for i, name := range slices.Backward(append([]string{""}, branchVariables...)) { // the first counts
		want := ""
		if name != "" {
			want = fmt.Sprint("branch", i)
			t.Setenv(name, want)
		}
		if got := CommitOfFolder(t.Context(), dir).Branch; i > 0 && got != want {
			t.Errorf("with %s the branch is %q; want %q", name, got, want)
		}
	}
}
