package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// Project loads a board's project file, and returns it with the folders where its layers are or
// will be checked out. It prints the project's warnings, and checks out repositories that files are
// included from, unless opt.Offline is set. The project file of one of Slipway's own boards is in
// the clone and not in this binary, because it names layers and recipes of the clone.
func Project(ctx context.Context, spec Spec, opt Options) (layers.Project, layers.Workspace, error) {
	if spec.Debian != nil {
		return layers.Project{}, layers.Workspace{}, fmt.Errorf("board %s is made of Debian packages: it has no layers\nnext: boards", spec.Board)
	}
	if spec.Project == "" {
		return layers.Project{}, layers.Workspace{}, spec.noProjectError()
	}
	var err error
	if opt.Dir, err = filepath.Abs(opt.Dir); err != nil {
		return layers.Project{}, layers.Workspace{}, err
	}
	ws := opt.Workspace(spec)
	with := ws
	if with.Local, err = localFolders(spec); err != nil {
		return layers.Project{}, ws, err
	}
	p, err := layers.Load(ctx, spec.Project, with)
	for _, w := range p.Warnings {
		progress.Warn(ctx, w)
	}
	if lost := (*layers.UnknownLocal)(nil); errors.As(err, &lost) {
		err = spec.explainLocal(lost)
	}
	if ctx.Err() == nil && !errors.Is(err, layers.ErrNotHere) && !errors.As(err, new(*run.Failure)) { // a server is no mistake in a file
		err = asBoardFile(err)
	}
	return p, ws, err
}

// LocalLayers returns the repositories of a board's build that are folders of this machine: no commit
// names what is in them. A board that Slipway has itself is built in a clone of its own.
func LocalLayers(ctx context.Context, spec Spec, opt Options) (ids []string, err error) {
	local, err := localFolders(spec)
	if spec.Debian != nil || !spec.ownProject || err != nil {
		return slices.Sorted(maps.Keys(local)), err
	}
	p, _, err := Project(ctx, spec, opt)
	for _, r := range p.Repos {
		if r.Local || r.URL == "" && len(r.Layers) > 0 {
			ids = append(ids, r.ID)
		}
	}
	return ids, err
}

// CheckProject reads a board's project file and all included files that are on this machine. It
// fetches nothing, and a file of a repository that is not checked out yet is no error.
func CheckProject(ctx context.Context, spec Spec, opt Options) error {
	opt.Offline = true
	if _, _, err := Project(ctx, spec, opt); !errors.Is(err, layers.ErrNotHere) {
		return err
	}
	return nil
}

// localEnvironment names local folders instead of checkouts, and overrides board.yml.
const localEnvironment = "SLIPWAY_LOCAL"

// localFolders returns a board's local folders by repository. Those of SLIPWAY_LOCAL override those
// of board.yml. SLIPWAY_LOCAL=off gives none.
func localFolders(spec Spec) (map[string]string, error) {
	text := os.Getenv(localEnvironment)
	if text == "off" {
		return nil, nil
	}
	over, err := layers.ParseLocal(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w\nnext: unset %[1]s  # or write it as REPOSITORY=FOLDER", localEnvironment, err)
	}
	folders := map[string]string{}
	maps.Copy(folders, spec.Local)
	maps.Copy(folders, over)
	return folders, nil
}

// explainLocal returns lost with the line of board.yml, or the variable and a next step.
func (s Spec) explainLocal(lost *layers.UnknownLocal) error {
	if over, _ := layers.ParseLocal(os.Getenv(localEnvironment)); over[lost.ID] != "" {
		return fmt.Errorf("%s: %w\nnext: unset %[1]s  # or name one of these in it", localEnvironment, lost)
	}
	return fmt.Errorf("%s: local.%s: %w", s.PlaceOf("local."+lost.ID), lost.ID, lost)
}

// projectFiles are the names of a board's project file: kas's or bitbake-setup's.
var projectFiles = []string{"kas.yml", "setup.conf.json"}

// findProject sets s.Project to the project file of the board or of one that it extends. It looks
// in the user's boards, and sets s.ownProject, then in images/boards of the current folder and of
// those above. It may find none.
func (s *Spec) findProject() error {
	for _, board := range slices.Backward(s.lineage) {
		if board.own && s.findProjectIn(board.folder) {
			s.ownProject = true
			return nil
		}
	}
	at, err := os.Getwd()
	for ; err == nil; at = filepath.Dir(at) {
		for _, board := range slices.Backward(s.lineage) {
			if s.findProjectIn(filepath.Join(at, "images/boards", board.name)) {
				return nil
			}
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
	return err
}

// findProjectIn sets s.Project to the project file in a folder, and reports whether it has one.
func (s *Spec) findProjectIn(folder string) bool {
	for _, name := range projectFiles {
		if path := filepath.Join(folder, name); localfile.Exists(path) {
			s.Project = path
			return true
		}
	}
	return false
}

// noProjectError returns the error for a board built by bitbake whose project file was not found.
func (s Spec) noProjectError() error {
	if p := s.place(); p.own {
		return fmt.Errorf("%s: no project file beside it (%s), which names the layers\nnext: init /tmp/%s --like=%[4]s  # then copy its kas.yml to %s", s.BoardFile(), strings.Join(projectFiles, " or "), plaintext.Quote(s.Board), plaintext.Quote(s.Extends), plaintext.Quote(p.folder))
	}
	return fmt.Errorf("board %s is built from layers and recipes in Slipway's clone, and this folder is in none\nnext: version  # names the commit to clone; repeat the line in the top folder of a clone", s.Board)
}
