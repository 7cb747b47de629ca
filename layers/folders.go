package layers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
	"slipway/layers/yaml"
)

// Parts lists the files and folders in its own repository that a project uses, relative to Root.
type Parts struct {
	Files    []string // project files and lock files
	Layers   []string // folders of layers, and of bitbake, that are no checkouts
	Patches  []string // files, or folders with a series
	Outside  []string // such folders that are elsewhere
	Floating []string // repositories of which no pin says the commit
}

// Parts returns the files and folders of its own repository that the project uses, the folders
// elsewhere, and its repositories without a commit.
func (p Project) Parts(ws Workspace) Parts {
	var parts Parts
	for _, file := range p.read {
		if rel, ok := p.below(file); ok {
			parts.Files = append(parts.Files, rel)
		}
	}
	local := map[string]string{}
	for _, r := range p.Repos {
		switch {
		case r.URL == "":
			local[r.ID] = p.ownDir(ws, r)
			p.addLayers(&parts, r, local[r.ID])
		case r.isFloating():
			parts.Floating = append(parts.Floating, r.ID)
		}
	}
	for _, r := range p.Repos {
		for _, patch := range r.Patches {
			dir, known := local[patch.Repo]
			if rel, ok := p.below(filepath.Join(dir, patch.Path)); known && ok {
				parts.Patches = append(parts.Patches, rel)
			}
		}
	}
	return parts
}

// ownDir returns the folder of a repository without a url. It looks below the project's root first:
// kas looks in the current folder, which for a copy of a project is another one.
func (p Project) ownDir(ws Workspace, r Repo) string {
	if dir := filepath.Join(p.Root, r.Path); !filepath.IsAbs(r.Path) && localfile.Exists(dir) {
		return dir
	}
	return p.Dir(ws, r)
}

// addLayers adds a local repository's folder and layers to parts, and the targets of links. Of the
// project's own repository it adds bitbake and scripts, if it has bitbake, in place of the folder.
func (p Project) addLayers(parts *Parts, r Repo, dir string) {
	var folders []string
	if r.Path != "" {
		folders = append(folders, dir) // with bitbake, or what its layers share
	} else if localfile.Exists(filepath.Join(dir, "bitbake/bin/bitbake")) {
		folders = append(folders, filepath.Join(dir, "bitbake"), filepath.Join(dir, "scripts"))
	}
	for _, layer := range r.Layers {
		folders = append(folders, filepath.Join(dir, layer.Name))
	}
	for _, path := range folders {
		for _, end := range slices.Compact([]string{path, withoutLinks(path)}) {
			if rel, ok := p.below(end); ok {
				parts.Layers = append(parts.Layers, rel)
			} else {
				parts.Outside = append(parts.Outside, end)
			}
		}
	}
}

// below returns a path relative to the project's repository, and false if it is outside.
func (p Project) below(path string) (string, bool) {
	for _, root := range []string{p.Root, withoutLinks(p.Root)} {
		if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
			return rel, true
		}
	}
	return "", false
}

// withoutLinks returns a path with its links resolved. The path need not exist.
func withoutLinks(path string) string { return followLinks(path, maxLinks) }

const maxLinks = 40 // as Linux

// followLinks resolves the links of a path that need not exist, in at most most steps.
func followLinks(path string, most int) string {
	if real, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) || most == 0 {
		return cmp.Or(real, path)
	}
	folder := followLinks(filepath.Dir(path), most-1)
	path = filepath.Join(folder, filepath.Base(path))
	link, err := os.Readlink(path)
	switch {
	case err != nil:
		return path
	case filepath.IsAbs(link):
		return followLinks(link, most-1)
	}
	return followLinks(filepath.Join(folder, link), most-1)
}

// Head returns the commit of the git work tree around dir, or "", and whether files differ from it.
func Head(ctx context.Context, dir string) (commit string, edited bool, err error) {
	s := State{Dir: dir}
	err = s.describeLocal(ctx)
	return s.Head, s.Edited, err
}

// ParseLocal parses the folders that a build uses instead of checkouts, such as
// "oe=/src/oe,meta-x=~/meta-x", into absolute paths by repository. A repository may occur once.
func ParseLocal(text string) (map[string]string, error) {
	folders := map[string]string{}
	for entry := range strings.SplitSeq(text, ",") {
		id, dir, found := strings.Cut(strings.TrimSpace(entry), "=")
		if strings.TrimSpace(entry) == "" {
			continue
		}
		if !found || id == "" || dir == "" {
			return nil, fmt.Errorf("%q is not REPOSITORY=FOLDER", entry)
		}
		if folders[id] != "" {
			return nil, fmt.Errorf("names repository %s twice", id)
		}
		abs, err := filepath.Abs(expandHome(dir))
		if err != nil {
			return nil, err
		}
		folders[id] = abs
	}
	return folders, nil
}

// useLocal makes r a local folder without a url and patches, if the user named one for it. It keeps
// r's commit, which status shows. It refuses a path that is no folder, or that bitbake cannot read.
func (p *Project) useLocal(r *Repo) error {
	dir, ok := p.local[r.ID]
	if !ok {
		return nil
	}
	switch info, err := os.Stat(dir); {
	case err != nil:
		return fmt.Errorf("local folder of repository %s: %w", r.ID, localfile.ExplainUnreadable(dir, err))
	case !info.IsDir():
		return fmt.Errorf("local folder of repository %s: %s is not a folder", r.ID, dir)
	case strings.ContainsAny(dir, " \"\\$") || strings.ContainsFunc(dir, yaml.IsControl):
		return fmt.Errorf("local folder of repository %s: bitbake cannot read %q; use a path without blanks, quotes and $", r.ID, dir)
	}
	r.URL, r.Path, r.Patches, r.Local = "", dir, nil, true
	return nil
}

// checkLocal returns an error for a local folder whose repository the project does not have.
func (p *Project) checkLocal() error {
	for _, id := range slices.Sorted(maps.Keys(p.local)) {
		if !slices.ContainsFunc(p.Repos, func(r Repo) bool { return r.ID == id }) {
			return fmt.Errorf("local folder %s: the project has no repository %q%s (have %s)\nnext: unset SLIPWAY_LOCAL  # or name one of these in it, or in local of board.yml", p.local[id], id, plaintext.DidYouMean(id, p.repoIDs()), strings.Join(p.repoIDs(), ", "))
		}
	}
	return nil
}

func (p Project) repoIDs() []string {
	ids := make([]string, len(p.Repos))
	for i, r := range p.Repos {
		ids[i] = r.ID
	}
	return ids
}

// localWarning returns the warning that a repository is a local folder, with its commit.
func localWarning(ctx context.Context, r Repo) (string, error) {
	s := State{Repo: r, Dir: r.Path}
	if err := s.describeLocal(ctx); err != nil {
		return "", err
	}
	at := "without git"
	switch {
	case s.Head != "":
		at = "at commit " + s.Head[:12]
	case workTree(r.Path) != "":
		at = "in git without a commit"
	}
	if s.Edited {
		at += ", modified"
	}
	return fmt.Sprintf("repository %s is the local folder %s, %s: this build is not of the project's commit", r.ID, r.Path, at), nil
}

// describeLocal sets Head, Branch and Edited from the git work tree of s.Dir, nothing without git.
func (s *State) describeLocal(ctx context.Context) error {
	t := treeIn(cmp.Or(workTree(s.Dir), s.Dir), nil) // the folder may be a part of a work tree
	if !t.isCheckout() {
		return nil
	}
	s.Head, _ = t.resolveCommit(ctx, "HEAD") // a repository without a commit has none
	s.Branch, _ = t.git(ctx, "symbolic-ref", "-q", "--short", "HEAD")
	modified, err := t.modifiedFiles(ctx, s.Dir)
	s.Edited = len(modified) > 0
	return t.explainDamage(err)
}

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

// gitTime limits the time of all git commands of CommitOfFolder together.
const gitTime = 20 * time.Second

// CommitOfFolder returns the commit, remote and branch of git in a folder. At the commit of a CI
// server it returns the server's branch. It returns nil if there is no git, repository or commit.
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
	for _, v := range slices.Backward(branchVariables) {
		if at := os.Getenv(v.commit); at == "" || at == commit {
			branch = cmp.Or(os.Getenv(v.branch), branch)
		}
	}
	return &FolderCommit{URL: WithoutPassword(remote), Commit: commit, Edited: changed != "", Branch: branch}
}

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

// webPages returns the URL of a repository's web page, and on GitHub and GitLab the beginning of
// the URLs of its commits. It recognises both, self-hosted too, by the first part of the host name.
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

// WithoutPassword returns a repository's URL without user name and password, and "" for a local
// path, which has no meaning on another machine.
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
