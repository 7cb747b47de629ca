package images

import (
	"context"
	"errors"
	"path/filepath"

	"slipway/images/lint"
	"slipway/layers"
	"slipway/layers/progress"
)

// Project reads what a board is built of, and where its layers lie or will lie.
func Project(ctx context.Context, spec Spec, opt Options) (layers.Project, layers.Workspace, error) {
	var err error
	if opt.Dir, err = filepath.Abs(opt.Dir); err != nil {
		return layers.Project{}, layers.Workspace{}, err
	}
	p, err := loadProject(ctx, spec, opt)
	return p, opt.workspace(spec), err
}

// CheckProject reads a board's project file, as far as its files are here. It fetches nothing.
func CheckProject(ctx context.Context, spec Spec, opt Options) error {
	opt.Offline = true
	if _, _, err := Project(ctx, spec, opt); !errors.Is(err, layers.ErrNotHere) {
		return err
	}
	return nil
}

// Lint looks for names in a board's configuration that its layers do not have.
func Lint(p layers.Project, ws layers.Workspace) ([]lint.Finding, error) {
	return lint.Project(p, ws, BitbakeDirOf(ws))
}

// warnOfFindings warns before bitbake begins of what it would stop at minutes later. The
// build goes on: the layers may have what the tables do not know.
func (b *projectBuild) warnOfFindings(ctx context.Context) {
	say := func(text string) { progress.Warn(ctx, text) }
	found, err := Lint(b.project, b.workspace)
	if err != nil {
		say("the configuration was not looked at: " + err.Error())
	}
	for _, f := range found {
		say(f.Where + ": " + f.What + ": " + f.Why + ": " + f.Fix)
	}
}
