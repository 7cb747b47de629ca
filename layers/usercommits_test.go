package layers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// commitMine makes a commit in r that no server has.
func commitMine(t *testing.T, r, subject string) {
	t.Helper()
	mustRun(t, r, "git", "commit", "-q", "--allow-empty", "-m", subject)
}

// However a user's commits got to HEAD, the next checkout stops there, says
// which they are, and changes nothing. What it says to type is then enough.
func TestCheckoutStopsAtCommitsOfTheUser(t *testing.T) {
	tests := []struct {
		name  string
		touch func(t *testing.T, m moved)
		want  []string
	}{
		{"on a branch", func(t *testing.T, m moved) {
			mustRun(t, m.r, "git", "checkout", "-q", "-b", "topic/fix")
			commitMine(t, m.r, "my fix")
		}, []string{"branch topic/fix holds", " my fix\n"}},
		{"on a detached HEAD", func(t *testing.T, m moved) { commitMine(t, m.r, "my fix") }, []string{"HEAD, on no branch, holds", " my fix\n"}},
		{"on a detached HEAD that a branch holds", func(t *testing.T, m moved) {
			commitMine(t, m.r, "my fix")
			mustRun(t, m.r, "git", "branch", "mine")
		}, []string{"HEAD, on no branch, holds", " my fix\n"}},
		{"under a tag", func(t *testing.T, m moved) {
			commitMine(t, m.r, "my fix")
			mustRun(t, m.r, "git", "tag", "-m", "mine", "mine")
		}, []string{" my fix\n"}},
		{"the project's commit amended", func(t *testing.T, m moved) {
			mustRun(t, m.r, "git", "commit", "-q", "--amend", "--allow-empty", "-m", "amended")
		}, []string{" amended\n"}},
		{"of a colleague's remote", func(t *testing.T, m moved) {
			theirs := t.TempDir()
			mustRun(t, theirs, "git", "clone", "-q", m.url, ".")
			commitMine(t, theirs, "their fix")
			mustRun(t, m.r, "git", "remote", "add", "colleague", theirs)
			mustRun(t, m.r, "git", "fetch", "-q", "colleague")
			mustRun(t, m.r, "git", "checkout", "-q", "--detach", "colleague/main")
		}, []string{" their fix\n"}},
		{"many", func(t *testing.T, m moved) {
			for range 5 + 2 {
				commitMine(t, m.r, "one of many")
			}
		}, []string{"... and 2 more\n"}},
		{"with packed refs", func(t *testing.T, m moved) {
			mustRun(t, m.r, "git", "checkout", "-q", "-b", "mine")
			commitMine(t, m.r, "my fix")
			mustRun(t, m.r, "git", "pack-refs", "--all")
		}, []string{"branch mine holds", " my fix\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := movedTree(t)
			tt.touch(t, m)
			head := headOf(t, m.r)
			for _, commit := range []string{m.first, m.second, m.second} { // also where the project did not change
				err := m.checkout(t, t.Context(), commit)
				for _, want := range append(tt.want, "next: SLIPWAY_LOCAL=r='"+m.r+"' repeat the line  # to build with them\nnext: git -C '"+m.r+"' ", "git -C '"+m.r+"' checkout --detach "+commit[:12]+"  # to build without them") {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("Checkout = %v; want %q in it", err, want)
					}
				}
			}
			if headOf(t, m.r) != head {
				t.Fatal("HEAD moved")
			}
			mustRun(t, m.r, "git", "checkout", "-q", "--detach", m.second)
			if err := m.checkout(t, t.Context(), m.second); err != nil {
				t.Errorf("Checkout after what it said to type = %v", err)
			}
		})
	}
}

// The line to type works each time, and Slipway does not complain of it, also with patches.
func TestCheckoutNextLineForCommits(t *testing.T) {
	p := patchedProject(t)
	write(t, p.dir, map[string]string{"patches/fix.patch": changeLine("one", "fixed")})
	seen := &progresstest.Recorder{}
	for i := range 3 {
		if err := p.checkout(t, p.first, onePatch...); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			commitMine(t, p.r, fmt.Sprint("my fix ", i))
		} else {
			mustRun(t, p.r, "sh", "-ec", "git checkout -q --detach $(git for-each-ref --count=1 --format='%(refname)' refs/heads)") // which has it already
		}
		typeNext(t, p.r, p.checkout(t, p.first, onePatch...))
		if err := p.checkoutIn(progress.With(t.Context(), progress.New(seen)), t, p.first, onePatch...); err != nil {
			t.Errorf("Checkout after the next line = %v", err)
		}
		if seen.Saw("warning", "by hand") {
			t.Error("warned of what it said to type")
		}
	}
}

// What the server has, and what Slipway made itself, is in nobody's way.
func TestCheckoutMovesOnFromKnownCommits(t *testing.T) {
	tests := []struct {
		name  string
		touch func(t *testing.T, m moved)
		said  string
	}{
		{"a branch without commits", func(t *testing.T, m moved) { mustRun(t, m.r, "git", "checkout", "-q", "-b", "mine") }, ""},
		{"a commit that was pushed", func(t *testing.T, m moved) {
			mustRun(t, m.r, "git", "checkout", "-q", "-b", "mine")
			commitMine(t, m.r, "my fix")
			mustRun(t, m.r, "git", "push", "-q", "origin", "mine")
		}, "HEAD was moved by hand, to branch mine to "},
		{"an older commit of the project", func(t *testing.T, m moved) {
			if err := m.checkout(t, t.Context(), m.second); err != nil {
				t.Fatal(err)
			}
			mustRun(t, m.r, "git", "checkout", "-q", "--detach", m.first)
		}, "HEAD was moved by hand to "},
		{"a whole clone under another remote's name", func(t *testing.T, m moved) {
			if err := os.RemoveAll(m.r); err != nil {
				t.Fatal(err)
			}
			mustRun(t, m.dir, "git", "clone", "-q", "-o", "upstream", m.url, "r")
			mustRun(t, m.r, "git", "reset", "-q", "--hard", "HEAD~1")
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := movedTree(t)
			tt.touch(t, m)
			seen := &progresstest.Recorder{}
			if err := m.checkout(t, progress.With(t.Context(), progress.New(seen)), m.second); err != nil || headOf(t, m.r) != m.second {
				t.Errorf("Checkout = %v; want HEAD at %s", err, m.second)
			}
			if got := seen.Last("warning").Detail; tt.said != "" && !strings.Contains(got, tt.said) {
				t.Errorf("warned %q; want %q", got, tt.said)
			}
		})
	}
}

// Commits that are not at HEAD stay where they are, and are named each time.
func TestCheckoutNamesCommitsElsewhere(t *testing.T) {
	tests := []struct {
		name  string
		touch func(t *testing.T, r string)
		want  []string
	}{
		{"none", func(*testing.T, string) {}, nil},
		{"a branch at the project's commit", func(t *testing.T, r string) { mustRun(t, r, "git", "branch", "same") }, nil},
		{"two branches", func(t *testing.T, r string) {
			for _, branch := range []string{"one", "deep/two"} {
				mustRun(t, r, "git", "checkout", "-q", "-b", branch)
				commitMine(t, r, "fix of "+branch)
			}
			mustRun(t, r, "git", "checkout", "-q", "--detach", "one~1")
		}, []string{"branch deep/two has ", "branch one has 1 ("}},
		{"a stash", func(t *testing.T, r string) {
			write(t, r, map[string]string{"conf/layer.conf": "mine"})
			mustRun(t, r, "git", "stash", "-q")
		}, []string{"the stash has some"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := movedTree(t)
			tt.touch(t, m.r)
			for _, commit := range []string{m.first, m.second, m.second} {
				seen := &progresstest.Recorder{}
				if err := m.checkout(t, progress.With(t.Context(), progress.New(seen)), commit); err != nil {
					t.Fatal(err)
				}
				got := seen.Last("warning").Detail
				for _, want := range tt.want {
					if !strings.Contains(got, want) {
						t.Errorf("warned %q; want %q", got, want)
					}
				}
				if tt.want == nil && got != "" {
					t.Errorf("warned %q; want nothing", got)
				}
			}
		})
	}
}

// In the middle of a rebase, HEAD may be the very commit that the project pins.
func TestCheckoutStopsWhereGitHasNotFinished(t *testing.T) {
	tests := []struct {
		name  string
		touch func(t *testing.T, r string)
		want  string
	}{
		{"rebase", func(t *testing.T, r string) {
			mustRun(t, r, "git", "checkout", "-q", "-b", "mine")
			commitMine(t, r, "my fix")
			mustRun(t, r, "git", "-c", "sequence.editor=sed -i 1ibreak", "rebase", "-q", "-i", "HEAD~1")
		}, "a git rebase is not finished"},
		{"am", func(t *testing.T, r string) { write(t, r, map[string]string{".git/rebase-apply/applying": ""}) }, "a git am is not finished"},
		{"merge", func(t *testing.T, r string) {
			write(t, r, map[string]string{".git/MERGE_HEAD": headOf(t, r) + "\n"})
		}, "a git merge is not finished"},
		{"cherry-pick", func(t *testing.T, r string) {
			write(t, r, map[string]string{".git/CHERRY_PICK_HEAD": headOf(t, r) + "\n"})
		}, "a git cherry-pick is not finished"},
		{"bisect", func(t *testing.T, r string) { mustRun(t, r, "git", "bisect", "start") }, "bisect reset"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := movedTree(t)
			tt.touch(t, m.r)
			head := headOf(t, m.r)
			for _, commit := range []string{m.first, m.second} {
				if err := m.checkout(t, t.Context(), commit); err == nil || !strings.Contains(err.Error(), tt.want) || headOf(t, m.r) != head {
					t.Errorf("Checkout = %v; want %q and HEAD where it was", err, tt.want)
				}
			}
		})
	}
}

// The branches of a linked work tree lie with the repository that it is linked to.
func TestCheckoutStopsInALinkedWorkTree(t *testing.T) {
	m := movedTree(t)
	whole := filepath.Join(t.TempDir(), "whole")
	mustRun(t, m.dir, "git", "clone", "-q", m.url, whole)
	if err := os.RemoveAll(m.r); err != nil {
		t.Fatal(err)
	}
	mustRun(t, whole, "git", "worktree", "add", "-q", "-b", "mine", m.r, m.first)
	if err := m.checkout(t, t.Context(), m.second); err != nil {
		t.Fatalf("Checkout of a work tree without commits = %v", err)
	}
	mustRun(t, m.r, "git", "checkout", "-q", "mine")
	commitMine(t, m.r, "my fix")
	if err := m.checkout(t, t.Context(), m.second); err == nil || !strings.Contains(err.Error(), "branch mine holds") {
		t.Errorf("Checkout = %v; want it to stop", err)
	}
	mustRun(t, m.r, "git", "checkout", "-q", "--detach", m.second)
	seen := &progresstest.Recorder{}
	if err := m.checkout(t, progress.With(t.Context(), progress.New(seen)), m.second); err != nil || !strings.Contains(seen.Last("warning").Detail, "branch mine has 1 (") {
		t.Errorf("Checkout = %v, and warned %q; want the branch named", err, seen.Last("warning").Detail)
	}
}

// A commit of the server's that no branch of it holds is not the user's.
func TestCheckoutKnowsItsOwnCommits(t *testing.T) {
	m := movedTree(t)
	mustRun(t, m.url, "git", "checkout", "-q", "--detach")
	commitMine(t, m.url, "of a tag")
	mustRun(t, m.url, "git", "tag", "only")
	if err := os.RemoveAll(m.r); err != nil {
		t.Fatal(err)
	}
	mustRun(t, m.dir, "git", "clone", "-q", "--no-tags", "--branch=main", m.url, "r")
	if err := m.checkout(t, t.Context(), headOf(t, m.url)); err != nil {
		t.Fatal(err)
	}
	commitMine(t, m.r, "my fix")
	err := m.checkout(t, t.Context(), m.first)
	if err == nil || !strings.Contains(err.Error(), " my fix\n") || strings.Contains(err.Error(), "of a tag") {
		t.Errorf("Checkout = %v; want it to stop at the user's commit alone", err)
	}
}

// Patches that Slipway applied are its own commits, also when they change.
func TestCheckoutReplacesItsOwnPatches(t *testing.T) {
	url, first, second := server(t)
	dir := t.TempDir()
	patch := func(to string) string {
		return "--- a/conf/layer.conf\n+++ b/conf/layer.conf\n@@ -1 +1 @@\n-one\n\\ No newline at end of file\n+" + to + "\n"
	}
	project := func(commit string) Project {
		return load(t, dir, "header: {version: 14}\nrepos:\n  here:\n  r: {url: "+url+", commit: "+commit+", patches: {p: {repo: here, path: p.patch}}}\n")
	}
	ws, r := Workspace{Dir: filepath.Join(dir, "w")}, filepath.Join(dir, "w/r")
	for i, to := range []string{"patched", "patched anew", "patched anew"} {
		write(t, dir, map[string]string{"p.patch": patch(to)})
		seen := &progresstest.Recorder{}
		if err := Checkout(progress.With(t.Context(), progress.New(seen)), project(first), ws); err != nil {
			t.Fatal(err)
		}
		if shown := seen.Last("layers").Step != ""; shown != (i < 2) {
			t.Errorf("checkout %d shows its progress: %t; want that of a changed patch only", i, shown)
		}
	}
	patched := headOf(t, r)
	plain := load(t, t.TempDir(), repoFile("url: "+url+", commit: "+second))
	if err := Checkout(t.Context(), plain, ws); err != nil {
		t.Fatal(err)
	}
	mustRun(t, r, "git", "checkout", "-q", "--detach", patched)
	if err := Checkout(t.Context(), plain, ws); err != nil || headOf(t, r) != second {
		t.Errorf("Checkout from an older patched commit = %v; want HEAD at %s", err, second)
	}
	mustRun(t, r, "git", "checkout", "-q", "-b", "mine", patched)
	commitMine(t, r, "my fix")
	err := Checkout(t.Context(), plain, ws)
	if err == nil || !strings.Contains(err.Error(), " my fix\n") || strings.Contains(err.Error(), "p.patch of repository") {
		t.Errorf("Checkout = %v; want it to stop at the user's commit alone", err)
	}
	mustRun(t, r, "git", "checkout", "-q", "--detach", patched)
	mustRun(t, r, "git", "commit", "-q", "--amend", "-m", "amended by me") // which keeps the author
	if err := Checkout(t.Context(), plain, ws); err == nil || !strings.Contains(err.Error(), " amended by me\n") {
		t.Errorf("Checkout = %v; want it to stop at the patch that the user amended", err)
	}
}
