package trends

import (
	"encoding/hex"
	"net/url"
	"path"
	"strings"

	"slipway/layers/lazy"
)

// Range is where a change came from: commits of the project's own repository.
type Range struct {
	Before string `json:"before,omitempty"` // the last commit before the change
	After  string `json:"after,omitempty"`  // the first commit after it
	URL    string `json:"url,omitempty"`    // of the repository
	Page   string `json:"page,omitempty"`   // that compares both
	Edited bool   `json:"edited,omitempty"` // one of them was built with edits
}

// rangeOf returns the commits around a run. Runs without a commit are passed over, so the
// range may be larger than it has to be.
func rangeOf(runs []*Run, first int) (r Range) {
	for i := first - 1; i >= 0 && r.Before == ""; i-- {
		r.Before, r.URL, r.Edited = runs[i].Source.Commit, runs[i].Source.URL, runs[i].Source.Edited
	}
	for i := first; i < len(runs) && r.After == ""; i++ {
		s := runs[i].Source
		if r.After = s.Commit; s.Commit == "" {
			continue
		}
		if r.Before != "" && r.URL == s.URL {
			r.Page = comparePage(s.URL, r.Before, s.Commit)
		}
		r.URL, r.Edited = s.URL, r.Edited || s.Edited
	}
	return r
}

// shownCommit is the number of digits that a person sees.
const shownCommit = 12

func short(commit string) string { return commit[:min(len(commit), shownCommit)] }

// String returns the range as git takes it, and what else there is to know.
func (r Range) String() string {
	text := short(r.Before) + ".." + short(r.After)
	switch {
	case r.Before == "" && r.After == "":
		return "no commits are known"
	case r.Before == "":
		text = "up to " + short(r.After)
	case r.After == "":
		text = "after " + short(r.Before)
	case r.Before == r.After:
		text = short(r.After) + " before and after: the project's own commits did not do it"
	}
	if r.Edited {
		text += " (built with edits)"
	}
	return text
}

var (
	plainPath = lazy.Regexp(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)+$`)
	plainHost = lazy.Regexp(`^[a-z0-9.-]+(:[0-9]{1,5})?$`)
)

// comparePage returns the page of GitHub or GitLab that compares two commits, or "". A server
// of one's own is known by its name.
func comparePage(repo, before, after string) string {
	if before == after || !isCommit(before) || !isCommit(after) {
		return ""
	}
	host, name := splitURL(repo)
	name = strings.TrimSuffix(strings.Trim(name, "/"), ".git")
	if !plainHost().MatchString(host) || !plainPath().MatchString(name) || path.Clean(name) != name {
		return ""
	}
	switch server, _, _ := strings.Cut(host, "."); server {
	case "github":
		return "https://" + host + "/" + name + "/compare/" + before + "..." + after
	case "gitlab":
		return "https://" + host + "/" + name + "/-/compare/" + before + "..." + after
	}
	return ""
}

func isCommit(text string) bool {
	id, err := hex.DecodeString(text)
	return err == nil && (len(id) == 20 || len(id) == 32)
}

// splitURL returns the host and the path of a repository. The port of SSH is not that of the
// web server.
func splitURL(repo string) (host, name string) {
	if u, err := url.Parse(repo); err == nil && u.Host != "" {
		if u.Scheme == "https" {
			return u.Host, u.Path
		}
		return u.Hostname(), u.Path
	}
	before, name, found := strings.Cut(repo, ":") // git@host:path
	if !found {
		return "", ""
	}
	return before[strings.LastIndex(before, "@")+1:], name
}
