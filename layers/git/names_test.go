package git

import (
	"slices"
	"strings"
	"testing"
)

// gitNames are spellings that git refuses in a repository, as some file system takes them for .git.
var gitNames = []string{
	".git", ".GIT", ".gIt", "git~1", "GIT~1", ".git.", ".git ", ".git. . ", ".git::$INDEX_ALLOCATION", ".git:x", "git~1:x",
	".g\u200cit", "\ufeff.git", ".gi\u202et", ".git\u206a", "a/.git/hooks", `a\.git\hooks`, `.GIT\x`, "a/./.git/", "a/GIT~1 /b",
}

var otherNames = []string{"", ".", "git", ".gitt", ".github", ".gitignore", "x.git", ".git-x", "git~", "git~12", "a/b.git/c", "..git", "dotgit", ".gït"}

func TestNamesGit(t *testing.T) {
	for _, name := range gitNames {
		if !IsReserved(name) {
			t.Errorf("IsReserved(%q) = false; want true", name)
		}
	}
	for _, name := range otherNames {
		if IsReserved(name) {
			t.Errorf("IsReserved(%q) = true; want false", name)
		}
	}
}

// git itself is the judge: what it refuses as a name in a repository, IsReserved refuses.
func FuzzNamesGit(f *testing.F) {
	for _, name := range slices.Concat(gitNames, otherNames) {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		is := IsReserved(name)
		for _, around := range []string{"a/" + name, name + "/b", `a\` + name} {
			if is && !IsReserved(around) {
				t.Errorf("IsReserved(%q) = false, and %q is one of git's", around, name)
			}
		}
	})
}

func TestGitRefusesTheSameNames(t *testing.T) {
	at := TreeIn(t.TempDir(), nil)
	var blob string
	for _, args := range [][]string{{"init", "-q"}, {"config", "core.protectHFS", "true"}, {"hash-object", "-w", "/dev/null"}} {
		var err error
		if blob, err = at.Run(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Concat(gitNames, otherNames) {
		line := "100644," + blob + "," + strings.TrimSuffix(name, "/")
		_, err := at.Run(t.Context(), "-c", "core.protectNTFS=true", "update-index", "--add", "--cacheinfo", line)
		if err != nil && name != "" && name != "." && !IsReserved(name) {
			t.Errorf("git refuses %q and IsReserved does not: %v", name, err)
		}
	}
}
