package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"slipway/images/bitbake"
	"slipway/images/lint"
	"slipway/layers"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// BuildRequest overrides settings of the board's project file for bitbake.
type BuildRequest struct {
	Targets  []string // instead of the file's
	Task     string   // instead of the file's
	Continue bool     // after a failed task, as far as the others do not need it
	DryRun   bool     // say what would run
	Parse    bool     // read all recipes, no more
}

// isAny reports whether the request changes anything.
func (a BuildRequest) isAny() bool {
	if len(a.Targets) == 0 {
		a.Targets = nil // an empty list of a command line is none
	}
	return !reflect.DeepEqual(a, BuildRequest{})
}

// flags returns the request as the flags of build, each after a blank.
func (a BuildRequest) flags() (text string) {
	if len(a.Targets) > 0 {
		text += " --target=" + plaintext.Quote(strings.Join(a.Targets, ","))
	}
	if a.Task != "" {
		text += " --task=" + plaintext.Quote(a.Task)
	}
	for _, f := range []struct {
		name  string
		given bool
	}{{"continue", a.Continue}, {"dry-run", a.DryRun}, {"parse", a.Parse}} {
		if f.given {
			text += " --" + f.name
		}
	}
	return text
}

// ofDebian refuses what boards cannot do that bitbake does not build.
func (a BuildRequest) ofDebian(spec Spec) error {
	switch isBundle := slices.Equal(a.Targets, []string{Bundle}); {
	case !a.isAny():
		return nil
	case isBundle && spec.Debian.Keyring == "":
		return fmt.Errorf("%s: debian.keyring is not set: the board takes no update bundle", spec.BoardFile())
	case isBundle && !(BuildRequest{Task: a.Task, Continue: a.Continue, DryRun: a.DryRun, Parse: a.Parse}).isAny():
		return nil
	}
	return fmt.Errorf("board %s is made of Debian packages: it has no target but %s, and no task, parse or dry run\nnext: doctor %s", spec.Board, Bundle, plaintext.Quote(spec.TypedName()))
}

// buildWithBitbake builds a board's kas.yml. bitbake itself decides what of an
// earlier build still holds, so it runs every time.
func (b Prepared) buildWithBitbake(ctx context.Context) (Artifact, error) {
	if err := Hindrances(ctx, b.spec, b.project.BuildSystem); err != nil {
		return Artifact{}, err
	}
	if b.partial {
		system := b.project.BuildSystem
		var err error
		if b.project, _, err = Project(ctx, b.spec, b.opt); err == nil && system == "" { // a file that was just checked out says it
			err = Hindrances(ctx, b.spec, b.project.BuildSystem)
		}
		if err != nil {
			return Artifact{}, err
		}
	}
	return buildProject(ctx, b.spec, b.project, b.opt)
}

func buildProject(ctx context.Context, spec Spec, project layers.Project, opt Options) (Artifact, error) {
	b, err := newProjectBuild(opt.Request.applyTo(project), spec, opt)
	if err != nil {
		return Artifact{}, err
	}
	if err := layers.Checkout(ctx, project, b.workspace); err != nil {
		return Artifact{}, err
	}
	b.warnOfFindings(ctx)
	before := b.commitOfProject(ctx)
	b.record, err = b.runBitbake(ctx, spec, opt)
	if err == nil && opt.Request.isWhole() {
		err = b.saveInputs(ctx, before)
	}
	if err != nil || !opt.Request.makesImages() {
		return Artifact{}, err
	}
	return b.collectArtifact(ctx, spec, len(opt.Request.Targets) > 0)
}

// projectBuild is the build of a project, from checkouts to an artifact.
type projectBuild struct {
	project   layers.Project
	workspace layers.Workspace
	dir       string // of the board
	build     string // what bitbake calls TOPDIR
	states    []layers.State
	tree      bitbake.Tree
	record    bitbake.Record
}

// commits returns what the checkouts are at.
func (b *projectBuild) commits() (all []bitbake.Commit) {
	for _, s := range b.states {
		all = append(all, commitOf(s))
	}
	return all
}

func newProjectBuild(project layers.Project, spec Spec, opt Options) (*projectBuild, error) {
	var err error
	if opt.Dir, err = filepath.Abs(opt.Dir); err != nil {
		return nil, err
	}
	return &projectBuild{project: project, dir: opt.BoardDir(spec), workspace: opt.workspace(spec), build: opt.BitbakeDir(spec)}, nil
}

// runBitbake runs bitbake, and keeps what the checkouts are at.
func (b *projectBuild) runBitbake(ctx context.Context, spec Spec, opt Options) (bitbake.Record, error) {
	tree, err := bitbake.Find(ctx, b.project, b.workspace, b.dir, b.build)
	if err == nil {
		err = tree.CheckPrograms()
	}
	if err != nil {
		return bitbake.Record{}, err
	}
	given, err := cacheFor(ctx, spec, b.project, tree.Programs, b.dir, b.build)
	if err != nil {
		return bitbake.Record{}, err
	}
	tree.Post, tree.Set = given.Post, given.Set
	if b.states, err = layers.Status(ctx, b.project, b.workspace); err != nil {
		return bitbake.Record{}, err
	}
	signed, err := signingVariables(ctx, b.project, opt)
	if err != nil {
		return bitbake.Record{}, err
	}
	tree.Set = append(tree.Set, signed...)
	b.tree = tree
	return tree.Run(ctx, bitbake.Job{
		Board: spec.Board, Machine: b.project.Machine, Commits: b.commits(), Targets: b.project.Targets, Task: b.project.Task,
		Continue: opt.Request.Continue, DryRun: opt.Request.DryRun, Parse: opt.Request.Parse, Now: opt.Now,
	})
}

// commitOf is a checkout in the words of a record.
func commitOf(s layers.State) bitbake.Commit {
	c := bitbake.Commit{Repo: s.Repo.ID, URL: layers.WithoutPassword(s.Repo.URL), Commit: s.Head, Edited: s.Edited}
	if s.Repo.Local {
		c.Local = s.Dir
	}
	return c
}

// applyTo returns the project with the targets and the task of the request.
func (a BuildRequest) applyTo(p layers.Project) layers.Project {
	if len(a.Targets) > 0 {
		p.Targets = a.Targets
	}
	if a.Task != "" {
		p.Task = a.Task
	}
	return p
}

// makesImages says whether what bitbake deployed is now made of what was requested: a
// task such as fetch leaves the images of an earlier build.
func (a BuildRequest) makesImages() bool {
	return !a.DryRun && !a.Parse && (a.Task == "" || a.Task == "build")
}

func onDisk(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// isWhole reports whether bitbake builds all that the project file names.
func (a BuildRequest) isWhole() bool {
	return a.makesImages() && len(a.Targets) == 0 && !a.Continue
}

// commitOfProject returns the state of the repository that the project file is in. A build
// needs no git there: where git refuses, the state is that of no commit.
func (b *projectBuild) commitOfProject(ctx context.Context) bitbake.Commit {
	commit, edited, err := layers.Head(ctx, b.project.Root)
	return bitbake.Commit{Commit: commit, Edited: edited || commit == "" || err != nil}
}

// saveInputs writes what the build read of the project's own repository, for ci plan. A
// build of other layers than the project's says nothing of it.
func (b *projectBuild) saveInputs(ctx context.Context, before bitbake.Commit) error {
	after := b.commitOfProject(ctx)
	local := slices.ContainsFunc(b.project.Repos, func(r layers.Repo) bool { return r.Local })
	kas := slices.ContainsFunc([]string{"KAS_MACHINE", "KAS_DISTRO", "KAS_TARGET", "KAS_TASK"}, func(name string) bool {
		_, set := os.LookupEnv(name)
		return set
	})
	after.Edited = after.Edited || before != after || local || kas
	if err := bitbake.SaveInputs(b.record, b.dir, b.project.Root, after); err != nil {
		progress.Warn(ctx, err.Error()) // ci plan then takes every change of a layer
	}
	return ctx.Err()
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
// build continues, as the layers may have what the tables do not know.
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
