package layers

import (
	"context"
)

// State is how one repository's checkout compares with the project.
type State struct {
	Repo   Repo
	Dir    string
	Head   string // "" where there is no checkout
	Wanted string // "" where it is not known before a checkout
	Edited bool
}

// Status looks at the checkouts in the workspace, without asking any server.
func Status(ctx context.Context, p Project, ws Workspace) ([]State, error) {
	ws, err := ws.absolute()
	if err != nil {
		return nil, err
	}
	var states []State
	for _, r := range p.Repos {
		s := State{Repo: r, Dir: p.Dir(ws, r), Wanted: r.Commit}
		if t := treeIn(s.Dir, nil); t.there() {
			if err := t.describe(ctx, &s); err != nil {
				return nil, err
			}
		}
		states = append(states, s)
	}
	return states, nil
}

func (t tree) describe(ctx context.Context, s *State) error {
	s.Head, _ = t.commitOf(ctx, "HEAD") // a repository without a commit has none
	if s.Repo.URL != "" {
		s.Wanted, _ = t.wanted(ctx, s.Repo)
	}
	edited, err := t.edited(ctx)
	s.Edited = len(edited) > 0
	return err
}

// Word says in a word how the checkout stands.
func (s State) Word() string {
	switch {
	case s.Head == "" && s.Repo.URL != "":
		return "missing"
	case s.Edited:
		return "edited"
	case s.Repo.URL == "":
		return "local"
	case s.Head != s.Wanted:
		return "differs"
	}
	return "ok"
}
