package trends

import "strings"

// Range is the range of the project's commits in which a change began.
type Range struct {
	Before string `json:"before,omitempty"` // the last commit before the change
	After  string `json:"after,omitempty"`  // the first commit after it
	URL    string `json:"url,omitempty"`    // of the repository
	Page   string `json:"page,omitempty"`   // that compares both
	Edited bool   `json:"edited,omitempty"` // one of them was built with edits

	BeforePage, AfterPage string `json:"-"` // of each commit, or of its repository
}

// rangeOf returns the commits of the last run before runs[first] and of the first run from it on,
// and the page that compares them in one repository. Runs without a commit only widen the range.
func rangeOf(runs []*Run, first int) (r Range) {
	for i := first - 1; i >= 0 && r.Before == ""; i-- {
		s := runs[i].Source
		r.Before, r.URL, r.Edited, r.BeforePage = s.Commit, s.URL, s.Edited, s.Page()
	}
	for i := first; i < len(runs) && r.After == ""; i++ {
		s := runs[i].Source
		if r.After = s.Commit; s.Commit == "" {
			continue
		}
		if r.Before != "" && r.URL == s.URL {
			r.Page = s.ComparePage(r.Before)
		}
		r.URL, r.Edited, r.AfterPage = s.URL, r.Edited || s.Edited, s.Page()
	}
	return r
}

// shownCommit is the number of digits of a commit ID that texts show.
const shownCommit = 12

func short(commit string) string { return commit[:min(len(commit), shownCommit)] }

// part is a piece of a text. A piece with a commit has a link to it.
type part struct{ Text, Link string }

// parts returns BEFORE..AFTER, or words unless these are two commits. It adds a note if r.Edited.
func (r Range) parts() (all []part) {
	before, after := part{short(r.Before), r.BeforePage}, part{short(r.After), r.AfterPage}
	switch {
	case r.Before == "" && r.After == "":
		all = []part{{Text: "no commits are known"}}
	case r.Before == "":
		all = []part{{Text: "up to "}, after}
	case r.After == "":
		all = []part{{Text: "after "}, before}
	case r.Before == r.After:
		all = []part{after, {Text: " before and after: the project's own commits did not do it"}}
	default:
		all = []part{before, {Text: ".."}, after}
	}
	if r.Edited {
		all = append(all, part{Text: " (built with edits)"})
	}
	return all
}

// String returns the range as text.
func (r Range) String() string {
	var text strings.Builder
	for _, p := range r.parts() {
		text.WriteString(p.Text)
	}
	return text.String()
}
