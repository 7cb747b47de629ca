package trends

import (
	"strings"
	"testing"

	"slipway/layers"

	"github.com/google/go-cmp/cmp"
)

var (
	commitA = strings.Repeat("a", 40)
	commitB = strings.Repeat("b", 40)
)

func TestComparePage(t *testing.T) {
	of := "/compare/" + commitA + "..." + commitB
	for _, tt := range []struct{ name, url, before, after, want string }{
		{"GitHub", "https://github.com/o/r.git", commitA, commitB, "https://github.com/o/r" + of},
		{"GitHub by SSH", "git@github.com:o/r.git", commitA, commitB, "https://github.com/o/r" + of},
		{"GitHub of one's own", "https://github.example.com/o/r", commitA, commitB, "https://github.example.com/o/r" + of},
		{"GitLab", "https://gitlab.com/g/s/r.git", commitA, commitB, "https://gitlab.com/g/s/r/-" + of},
		{"GitLab by SSH with a port", "ssh://git@gitlab.example.com:2222/g/r.git", commitA, commitB, "https://gitlab.example.com/g/r/-" + of},
		{"GitLab with a web port", "https://gitlab.example.com:8443/g/r", commitA, commitB, "https://gitlab.example.com:8443/g/r/-" + of},
		{"another server", "https://git.example.com/o/r", commitA, commitB, ""},
		{"a name that only contains one", "https://notgithub.com/o/r", commitA, commitB, ""},
		{"no URL", "", commitA, commitB, ""},
		{"a script", "javascript://github.com/%0aalert(1)/o", commitA, commitB, ""},
		{"a host with a blank", "git@github.com x:o/r", commitA, commitB, ""},
		{"a path that leaves", "https://github.com/o/../r", commitA, commitB, ""},
		{"a query", "https://github.com/o/r?x=y", commitA, commitB, "https://github.com/o/r" + of},
		{"no repository", "https://github.com/o", commitA, commitB, ""},
		{"the same commit", "https://github.com/o/r", commitA, commitA, ""},
		{"no commit", "https://github.com/o/r", "x?y", commitB, ""},
		{"a short commit", "https://github.com/o/r", commitA[:12], commitB, ""},
	} {
		if got := comparePage(tt.url, tt.before, tt.after); got != tt.want {
			t.Errorf("%s: comparePage = %q; want %q", tt.name, got, tt.want)
		}
	}
}

func TestRange(t *testing.T) {
	runs := func(all ...layers.FolderCommit) (list []*Run) {
		for _, s := range all {
			list = append(list, &Run{Source: s})
		}
		return list
	}
	at := func(commit string) layers.FolderCommit {
		return layers.FolderCommit{Commit: commit, URL: "https://github.com/o/r"}
	}
	edited := at(commitB)
	edited.Edited = true
	elsewhere := at(commitB)
	elsewhere.URL = "https://github.com/o/fork"
	none := layers.FolderCommit{}
	page := "https://github.com/o/r/compare/" + commitA + "..." + commitB
	for _, tt := range []struct {
		name  string
		runs  []*Run
		first int
		want  Range
		words string
	}{
		{"neighbours", runs(at("x"), at(commitA), at(commitB), at("y")), 2, Range{Before: commitA, After: commitB, URL: "https://github.com/o/r", Page: page}, "aaaaaaaaaaaa..bbbbbbbbbbbb"},
		{"runs without a commit between", runs(at(commitA), none, none, at(commitB)), 2, Range{Before: commitA, After: commitB, URL: "https://github.com/o/r", Page: page}, "aaaaaaaaaaaa..bbbbbbbbbbbb"},
		{"edits", runs(at(commitA), edited), 1, Range{Before: commitA, After: commitB, URL: "https://github.com/o/r", Page: page, Edited: true}, "aaaaaaaaaaaa..bbbbbbbbbbbb (built with edits)"},
		{"another repository", runs(at(commitA), elsewhere), 1, Range{Before: commitA, After: commitB, URL: elsewhere.URL}, "aaaaaaaaaaaa..bbbbbbbbbbbb"},
		{"the same commit", runs(at(commitA), at(commitA)), 1, Range{Before: commitA, After: commitA, URL: "https://github.com/o/r"}, "aaaaaaaaaaaa before and after: the project's own commits did not do it"},
		{"none before", runs(none, at(commitB)), 1, Range{After: commitB, URL: "https://github.com/o/r"}, "up to bbbbbbbbbbbb"},
		{"none after", runs(at(commitA), none), 1, Range{Before: commitA, URL: "https://github.com/o/r"}, "after aaaaaaaaaaaa"},
		{"none", runs(none, none), 1, Range{}, "no commits are known"},
	} {
		got := rangeOf(tt.runs, tt.first)
		if diff := cmp.Diff(tt.want, got); diff != "" || got.String() != tt.words {
			t.Errorf("%s: rangeOf = %s; want %s\n%s", tt.name, got, tt.words, diff)
		}
	}
}
