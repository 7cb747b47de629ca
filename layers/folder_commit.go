package layers

import (
	"cmp"
	"context"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/layers/lazy"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// FolderCommit is what a folder's repository was at.
type FolderCommit struct {
	URL    string `json:"url,omitempty"` // of the remote, without a password
	Commit string `json:"commit"`
	Edited bool   `json:"edited,omitempty"` // files in the folder differ from the commit, or are not in it
	Branch string `json:"branch,omitempty"`
}

// branchVariables are those of GitHub, GitLab and Jenkins. They check out a commit and no
// branch, so git does not know it.
var branchVariables = []string{"GITHUB_REF_NAME", "CI_COMMIT_REF_NAME", "BRANCH_NAME"}

// gitTime is how long git may take to look at a folder.
const gitTime = 20 * time.Second

// CommitOfFolder asks git what a folder is at. It returns nil where git does not know:
// there is no git, no repository, or no commit.
func CommitOfFolder(ctx context.Context, dir string) *FolderCommit {
	ctx, cancel := context.WithTimeout(ctx, gitTime)
	defer cancel()
	git := func(args ...string) (string, error) {
		out, err := run.Output(ctx, gitCommand(dir, append([]string{"git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false"}, args...)))
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
	if err != nil {
		return nil
	}
	changed, err := git("status", "--porcelain", "--", ".")
	if err != nil {
		return nil
	}
	remote, _ := git("remote", "get-url", "origin") // many have none
	branch, _ := git("symbolic-ref", "--short", "--quiet", "HEAD")
	for _, name := range slices.Backward(branchVariables) {
		branch = cmp.Or(os.Getenv(name), branch)
	}
	return &FolderCommit{URL: WithoutPassword(remote), Commit: commit, Edited: changed != "", Branch: branch}
}

// IsCommit reports whether a text is the whole id of a commit.
func IsCommit(text string) bool { return wholeCommit().MatchString(text) }

// Page returns the web page of a commit, or else that of its repository, or "". Both may come
// from a report of elsewhere.
func (c FolderCommit) Page() string {
	repository, commits := webPages(c.URL)
	switch {
	case !IsCommit(c.Commit):
		return ""
	case commits != "":
		return commits + "commit/" + c.Commit
	}
	return repository
}

// ComparePage returns the page that compares an earlier commit, or "".
func (c FolderCommit) ComparePage(before string) string {
	_, commits := webPages(c.URL)
	if commits == "" || before == c.Commit || !IsCommit(before) || !IsCommit(c.Commit) {
		return ""
	}
	return commits + "compare/" + before + "..." + c.Commit
}

var (
	plainPath = lazy.Regexp(`^[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*$`)
	plainHost = lazy.Regexp(`^[a-z0-9.-]+(:[0-9]{1,5})?$`)
)

// webPages returns the page of a repository, and how those of its commits begin on GitHub and
// GitLab. A server of one's own is known by its name.
func webPages(address string) (repository, commits string) {
	scheme, host, name := splitURL(address)
	whole := strings.Trim(name, "/")
	name = strings.TrimSuffix(whole, ".git")
	if !plainHost().MatchString(host) || !plainPath().MatchString(name) || path.Clean(name) != name {
		return "", ""
	}
	site := cmp.Or(scheme, "https") + "://" + host + "/"
	switch server, _, _ := strings.Cut(host, "."); {
	case server == "github" || server == "gitlab":
		if !strings.Contains(name, "/") {
			return "", ""
		}
		return site + name, site + name + plaintext.Either(server == "github", "/", "/-/")
	case scheme == "":
		return "", ""
	}
	return site + whole, ""
}

// splitURL returns the host and the path of a repository, and the scheme of a web server's. The
// port of SSH is not that of the web server.
func splitURL(address string) (scheme, host, name string) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "":
		before, name, _ := strings.Cut(address, ":") // git@host:path
		return "", before[strings.LastIndex(before, "@")+1:], name
	case u.Scheme == "https" || u.Scheme == "http":
		return u.Scheme, u.Host, u.Path
	case u.Scheme == "ssh" || u.Scheme == "git":
		return "", u.Hostname(), u.Path
	}
	return "", "", ""
}

// WithoutPassword removes user names and passwords from a URL. A path says something of the
// machine alone, so it is left out.
func WithoutPassword(address string) string {
	if filepath.IsAbs(address) || strings.HasPrefix(address, ".") || strings.HasPrefix(address, "file:") {
		return ""
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		if _, err := os.Stat(address); err == nil {
			return ""
		}
		return plaintext.HideSecrets(address) // git@host:path
	}
	u.User = nil
	return plaintext.HideSecrets(u.String())
}
