package layers

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"slipway/layers/git"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Move is the change of one repository between two states of a project.
type Move struct {
	ID      string       `json:"repository"`
	URL     string       `json:"url"`
	From    string       `json:"from,omitempty"` // "" if the repository is new
	Was     string       `json:"was,omitempty"`  // its previous branch or tag, if no commit was pinned
	To      string       `json:"to,omitempty"`   // "" if the repository is gone
	Ahead   int          `json:"ahead"`          // commits that To has and From lacks
	Behind  int          `json:"behind"`         // commits that From has and To lacks
	Commits []git.Change `json:"commits"`        // the newest of those that To has, up to Diff's limit
	Unknown string       `json:"unknown,omitempty"`

	repo Repo
}

// Diff returns the repositories whose commit differs from an older state of the project, with the
// newest commits between, at most most of each. It fetches only commits, without files, and keeps
// them in ws.Mirrors, if set. A move whose commits cannot be fetched has the reason in Unknown.
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
			if !git.IsCommit(m.From) || !git.IsCommit(m.To) {
				m.Unknown = "the project pins no whole commit id"
				continue
			}
			group.Go(func() error {
				var err error
				if m.Ahead, m.Behind, m.Commits, err = git.ListCommits(ctx, ws.Mirrors, m.repo.Remote, m.From, m.To, most); err != nil {
					m.Unknown = plaintext.ShortLine(run.LastLine(err))
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
			moves = append(moves, Move{ID: r.ID, URL: r.URL, From: from, Was: older.floatingRef(r.ID), To: r.Commit, Commits: []git.Change{}, repo: r})
		}
	}
	for _, r := range older.Repos { // in their order
		if from, gone := was[r.ID]; gone && r.URL != "" {
			moves = append(moves, Move{ID: r.ID, URL: r.URL, From: from, Commits: []git.Change{}, repo: r})
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

// pinnedCommits returns the commits by repository ID, "" for one without, also of a lone lock file.
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

// LoadAt loads a project as its files were at a commit, branch or tag of their own repository. It
// removes these files, and its checkouts for includes, again. Of ws it uses only Mirrors.
func LoadAt(ctx context.Context, p Project, ref string, ws Workspace) (Project, error) {
	dir, err := os.MkdirTemp("", "slipway-project-")
	if err != nil {
		return Project{}, err
	}
	defer os.RemoveAll(dir)
	if workTree(cmp.Or(p.Root, ".")) == "" && !git.IsFileName(ref) {
		return Project{}, fmt.Errorf("%s is in no git repository, so nothing older is known of it\nnext: git init %s  # or name an older project or lock file with --from", p.File, plaintext.Quote(filepath.Dir(p.File)))
	}
	if err := git.ExportFiles(ctx, p.Root, ref, dir); err != nil {
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
