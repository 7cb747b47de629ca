package layers

import (
	"cmp"
	"context"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
