package git

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

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// FolderCommit is the git commit of a folder.
type FolderCommit struct {
	URL    string `json:"url,omitempty"` // of the remote, without a password
	Commit string `json:"commit"`
	Edited bool   `json:"edited,omitempty"` // files in the folder differ from the commit, or are not in it
	Branch string `json:"branch,omitempty"`
}

// branchVariables name the branch on GitHub, GitLab and Jenkins, whose checkouts are on none, and
// the commit of that branch: other repositories in the same job are on other branches.
var branchVariables = []struct{ branch, commit string }{
	{"GITHUB_REF_NAME", "GITHUB_SHA"}, {"CI_COMMIT_REF_NAME", "CI_COMMIT_SHA"}, {"BRANCH_NAME", "GIT_COMMIT"},
}

// folderTime limits the time of all git commands of CommitOfFolder together.
const folderTime = 20 * time.Second

// CommitOfFolder returns the commit, remote and branch of git in a folder, and whether files in it
// differ. At the commit of a CI server it returns the server's branch. It returns nil if there is
// no git, repository or commit, or if git does not answer within folderTime.
func CommitOfFolder(ctx context.Context, dir string) *FolderCommit {
	ctx, cancel := context.WithTimeout(ctx, folderTime)
	defer cancel()
	git := func(args ...string) (string, error) {
		out, err := run.Output(ctx, Command(dir, append([]string{"--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false"}, args...)...))
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
	for _, v := range slices.Backward(branchVariables) {
		if at := os.Getenv(v.commit); at == "" || at == commit {
			branch = cmp.Or(os.Getenv(v.branch), branch)
		}
	}
	return &FolderCommit{URL: WithoutPassword(remote), Commit: commit, Edited: changed != "", Branch: branch}
}

var wholeCommit = plaintext.Regexp(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// IsCommit reports whether a text is a complete commit ID.
func IsCommit(text string) bool { return wholeCommit().MatchString(text) }

// Page returns the URL of the web page of the commit, or else of the repository, or "". Both values
// may come from another machine's report, so it checks them.
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

// ComparePage returns the URL of the page that compares an earlier commit with this one, or "".
func (c FolderCommit) ComparePage(before string) string {
	_, commits := webPages(c.URL)
	if commits == "" || before == c.Commit || !IsCommit(before) || !IsCommit(c.Commit) {
		return ""
	}
	return commits + "compare/" + before + "..." + c.Commit
}

var (
	plainPath = plaintext.Regexp(`^[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*$`)
	plainHost = plaintext.Regexp(`^[a-z0-9.-]+(:[0-9]{1,5})?$`)
)

// webPages returns the URL of a repository's web page, and on GitHub and GitLab its URLs' beginning
// before commit/ID. It recognises both, self-hosted too, by the first part of the host name.
// For an SSH address of another host it returns "".
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

// splitURL returns the scheme ("" for SSH and git), host and path of a repository's address, all ""
// for another scheme. It drops the port of SSH, which is not the web server's.
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

// WithoutPassword returns a repository's URL without user name and password, but git@host:path with
// the name, and "" for a local path, which has no meaning on another machine.
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
