package layers

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Move is the change of one repository between two states of a project.
type Move struct {
	ID      string   `json:"repository"`
	URL     string   `json:"url"`
	From    string   `json:"from,omitempty"` // "" if the repository is new
	Was     string   `json:"was,omitempty"`  // its previous branch or tag, if no commit was pinned
	To      string   `json:"to,omitempty"`   // "" if the repository is gone
	Ahead   int      `json:"ahead"`          // commits that To has and From lacks
	Behind  int      `json:"behind"`         // commits that From has and To lacks
	Commits []Change `json:"commits"`        // the newest of those that To has, up to Diff's limit
	Unknown string   `json:"unknown,omitempty"`

	repo Repo
}

// Change is one commit.
type Change struct {
	Commit  string `json:"commit"`
	Subject string `json:"subject"`
}

// Diff returns the repositories whose commit differs from an older state of the project, with the
// commits between, at most most of each. It fetches only commits, without files, and keeps them
// with the mirrors. A move whose commits cannot be fetched has the reason in Unknown.
func Diff(ctx context.Context, older, newer Project, ws Workspace, most int) ([]Move, error) {
	ws, err := ws.absolutePaths()
	if err != nil {
		return nil, err
	}
	if ws.Mirrors == "" {
		if ws.Mirrors, err = os.MkdirTemp("", "slipway-history-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(ws.Mirrors)
	}
	moves := Moves(older, newer)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for i := range moves {
		if m := &moves[i]; m.From != "" && m.To != "" {
			if !wholeCommit().MatchString(m.From) || !wholeCommit().MatchString(m.To) {
				m.Unknown = "the project pins no whole commit id"
				continue
			}
			group.Go(func() error {
				if err := ws.historyMirror(m.repo).listCommits(ctx, m, most); err != nil {
					m.Unknown = printableLine(run.LastLine(err))
				}
				return ctx.Err()
			})
		}
	}
	return moves, group.Wait()
}

// Moves returns the repositories with a url that are at another commit in newer than in older, or
// only in one of them, without the commits between. It contacts no server.
func Moves(older, newer Project) []Move {
	was := older.pinnedCommits()
	var moves []Move
	for _, r := range newer.Repos {
		from := was[r.ID]
		delete(was, r.ID)
		if r.URL != "" && from != r.Commit {
			moves = append(moves, Move{ID: r.ID, URL: r.URL, From: from, Was: older.floatingRef(r.ID), To: r.Commit, Commits: []Change{}, repo: r})
		}
	}
	for _, r := range older.Repos { // in their order
		if from, gone := was[r.ID]; gone && r.URL != "" {
			moves = append(moves, Move{ID: r.ID, URL: r.URL, From: from, Commits: []Change{}, repo: r})
		}
	}
	return moves
}

// floatingRef returns the branch or tag of a repository without a pinned commit, otherwise "".
func (p Project) floatingRef(id string) string {
	for _, r := range p.Repos {
		if r.ID == id && r.isFloating() {
			return cmp.Or(r.Tag, r.Branch)
		}
	}
	return ""
}

// pinnedCommits returns the commits of repositories by ID, "" for one without, also those of a lock
// file loaded alone.
func (p Project) pinnedCommits() map[string]string {
	all := map[string]string{}
	if locked := p.merged.Get("overrides", "repos"); locked != nil {
		for _, id := range locked.Keys {
			all[id] = locked.Get(id, "commit").TextOr("")
		}
	}
	for _, r := range p.Repos {
		all[r.ID] = r.Commit
	}
	return all
}

// history is a mirror that has commits without their files.
type history struct{ mirror }

func (ws Workspace) historyMirror(r Repo) history {
	dir := strings.TrimSuffix(ws.mirrorFor(r).dir, ".git") + "-history.git"
	return history{mirror{store{dir: dir, gitDir: dir, url: r.URL}}}
}

// listCommits fetches the history between a move's ends, and sets its Ahead, Behind and Commits, at
// most most of these. It locks the mirror, and recreates a damaged one.
func (h history) listCommits(ctx context.Context, m *Move, most int) error {
	lock, err := lockMirror(ctx, h.dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	h.hold = lock
	err = h.withRepair(ctx, m.repo, nil, func() error {
		if err := h.prepareMirror(ctx, m.repo); err != nil {
			return err
		}
		return h.fetchHistory(ctx, m.From, m.To)
	})
	if err != nil {
		return err
	}
	count, err := h.git(ctx, "rev-list", "--left-right", "--count", m.From+"..."+m.To)
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(count, &m.Behind, &m.Ahead); err != nil {
		return err
	}
	lines, err := h.gitList(ctx, "log", "-z", fmt.Sprintf("--max-count=%d", most), "--format=%H %s", m.From+".."+m.To)
	for _, line := range lines {
		commit, subject, _ := strings.Cut(line, " ")
		m.Commits = append(m.Commits, Change{commit, printableLine(subject)})
	}
	return err
}

// fetchHistory fetches the commits that are missing, with their histories. It asks for no files,
// but a server that cannot filter sends them too.
func (h history) fetchHistory(ctx context.Context, commits ...string) error {
	args := []string{"fetch", "-q", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--filter=tree:0", "--", "origin"}
	missing := false
	for _, commit := range commits {
		kept := "refs/slipway/keep/" + commit
		if at, err := h.resolveCommit(ctx, kept); err != nil || at != commit {
			args, missing = append(args, commit+":"+kept), true
		}
	}
	if !missing {
		return ctx.Err()
	}
	return h.runFetch(ctx, args...)
}

// printableLine returns a text from outside as one line of limited length that is safe to print.
func printableLine(text string) string {
	text = plaintext.OneLine(text)
	const most = 200
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// LoadAt loads a project as its files were at a commit, branch or tag of their own repository.
func LoadAt(ctx context.Context, p Project, ref string, ws Workspace) (Project, error) {
	dir, err := os.MkdirTemp("", "slipway-project-")
	if err != nil {
		return Project{}, err
	}
	defer os.RemoveAll(dir)
	if workTree(cmp.Or(p.Root, ".")) == "" {
		return Project{}, fmt.Errorf("%s is in no git repository, so nothing older is known of it\nnext: git init %s  # or name an older project or lock file with --from", p.File, plaintext.Quote(filepath.Dir(p.File)))
	}
	if err := exportFiles(ctx, p.Root, ref, dir); err != nil {
		return Project{}, err
	}
	var files []string
	for _, file := range splitFiles(p.File) {
		abs, err := filepath.Abs(file)
		if err != nil {
			return Project{}, err
		}
		below, err := filepath.Rel(p.Root, abs)
		if err != nil || !filepath.IsLocal(below) {
			return Project{}, fmt.Errorf("%s is not in the repository %s; name a file to compare with", file, p.Root)
		}
		files = append(files, filepath.Join(dir, "project", below))
	}
	then, err := Load(ctx, strings.Join(files, ":"), Workspace{Dir: filepath.Join(dir, "checkouts"), Mirrors: ws.Mirrors})
	if err != nil {
		return Project{}, fmt.Errorf("%s at %s: %w", p.File, ref, err)
	}
	return then, nil
}

// exportFiles writes a commit's YAML and JSON files, and an empty .git folder, into dir/project.
func exportFiles(ctx context.Context, root, ref, dir string) error {
	t := treeIn(root, nil)
	commit, err := t.git(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err != nil {
		return fmt.Errorf("%q is neither a file nor a commit of %s\nnext: git -C %s tag", ref, cmp.Or(root, "."), plaintext.Quote(cmp.Or(root, ".")))
	}
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, "index")}
	run := func(stdin string, args ...string) (string, error) {
		c := t.command(args...)
		c.Env, c.Stdin = append(c.Env, index...), strings.NewReader(stdin)
		out, err := run.Output(ctx, c)
		return string(out), err
	}
	if _, err := run("", "read-tree", commit); err != nil {
		return err
	}
	names, err := run("", "ls-files", "-z", "--", "*.yml", "*.yaml", "*.json")
	if err != nil {
		return err
	}
	// Includes are looked for from the root of a repository, which a .git marks.
	if err := os.MkdirAll(filepath.Join(dir, "project/.git"), 0o755); err != nil {
		return err
	}
	_, err = run(names, "checkout-index", "-q", "-z", "--stdin", "--prefix="+filepath.Join(dir, "project")+"/")
	return err
}
