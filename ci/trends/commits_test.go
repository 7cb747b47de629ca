package trends

import (
	"strings"
	"testing"

	"slipway/layers/git"

	"github.com/google/go-cmp/cmp"
)

var (
	commitA = strings.Repeat("a", 40)
	commitB = strings.Repeat("b", 40)
)

func TestRange(t *testing.T) {
	runs := func(all ...git.FolderCommit) (list []*Run) {
		for _, s := range all {
			list = append(list, &Run{Source: s})
		}
		return list
	}
	at := func(commit string) git.FolderCommit {
		return git.FolderCommit{Commit: commit, URL: "https://github.com/o/r"}
	}
	edited := at(commitB)
	edited.Edited = true
	elsewhere := at(commitB)
	elsewhere.URL = "https://github.com/o/fork"
	none := git.FolderCommit{}
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
		pageOf := func(url, commit string) string { return git.FolderCommit{URL: url, Commit: commit}.Page() }
		if before, after := pageOf(at("").URL, got.Before), pageOf(got.URL, got.After); got.BeforePage != before || got.AfterPage != after {
			t.Errorf("%s: the commits link %q and %q; want %q and %q", tt.name, got.BeforePage, got.AfterPage, before, after)
		}
		got.BeforePage, got.AfterPage = "", ""
		if diff := cmp.Diff(tt.want, got); diff != "" || got.String() != tt.words {
			t.Errorf("%s: rangeOf = %s; want %s\n%s", tt.name, got, tt.words, diff)
		}
	}
}
