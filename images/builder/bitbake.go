package builder

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/lint"
	"slipway/layers"
	"slipway/layers/git"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// changesBuild reports whether the request has a target, task or flag, such as Continue.
func changesBuild(a images.BuildRequest) bool {
	if len(a.Targets) == 0 {
		a.Targets = nil // an empty list of a command line is none
	}
	return !reflect.DeepEqual(a, images.BuildRequest{})
}

// requestFlags returns the request as the flags of build, each after a blank.
func requestFlags(a images.BuildRequest) (text string) {
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

// checkDebianRequest refuses a request that a board made of Debian packages cannot fulfil. Such a
// board has no other target than the update bundle, and that only with debian.keyring.
func checkDebianRequest(a images.BuildRequest, spec images.Spec) error {
	switch isBundle := slices.Equal(a.Targets, []string{images.Bundle}); {
	case !changesBuild(a):
		return nil
	case isBundle && spec.Debian.Keyring == "":
		return fmt.Errorf("%s: debian.keyring is not set: the board takes no update bundle", spec.BoardFile())
	case isBundle && !changesBuild(images.BuildRequest{Task: a.Task, Continue: a.Continue, DryRun: a.DryRun, Parse: a.Parse}):
		return nil
	}
	return fmt.Errorf("board %s is made of Debian packages: it has no target but %s, and no task, parse or dry run\nnext: doctor %s", spec.Board, images.Bundle, plaintext.Quote(spec.TypedName()))
}

// buildWithBitbake checks the machine and builds the board's project with bitbake. If Prepare did
// not find all files of the project, it fetches and loads them first. It runs bitbake every time,
// because only bitbake knows what of an earlier build is still valid.
func (b Prepared) buildWithBitbake(ctx context.Context) (images.Artifact, error) {
	if err := HostErrors(ctx, b.spec, b.project.BuildSystem); err != nil {
		return images.Artifact{}, err
	}
	if b.partial {
		system := b.project.BuildSystem
		var err error
		if b.project, _, err = images.Project(ctx, b.spec, b.opt); err == nil && system == "" { // a file that was just checked out says it
			err = HostErrors(ctx, b.spec, b.project.BuildSystem)
		}
		if err != nil {
			return images.Artifact{}, err
		}
	}
	return buildProject(ctx, b.spec, b.project, b.opt)
}

// buildProject checks out the project's layers, prints Lint's findings, runs bitbake, saves the
// list of files that a whole build read, and returns an artifact, an empty one without images.
func buildProject(ctx context.Context, spec images.Spec, project layers.Project, opt images.Options) (images.Artifact, error) {
	b, err := newProjectBuild(applyRequest(opt.Request, project), spec, opt)
	if err != nil {
		return images.Artifact{}, err
	}
	if err := layers.Checkout(ctx, project, b.workspace); err != nil {
		return images.Artifact{}, err
	}
	b.warnOfFindings(ctx)
	before := b.commitOfProject(ctx)
	b.record, err = b.runBitbake(ctx, spec, opt)
	if err == nil && isWholeBuild(opt.Request) {
		err = b.saveInputs(ctx, before)
	}
	if err != nil || !b.makesImages(opt.Request) {
		return images.Artifact{}, err
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

// commits returns the commit of each repository that the build uses.
func (b *projectBuild) commits() (all []bitbake.Commit) {
	for _, s := range b.states {
		all = append(all, commitOf(s))
	}
	return all
}

// newProjectBuild returns the paths of a project's build, as absolute ones. It runs nothing.
func newProjectBuild(project layers.Project, spec images.Spec, opt images.Options) (*projectBuild, error) {
	var err error
	if opt.Dir, err = filepath.Abs(opt.Dir); err != nil {
		return nil, err
	}
	return &projectBuild{project: project, dir: opt.BoardDir(spec), workspace: opt.Workspace(spec), build: opt.BitbakeDir(spec)}, nil
}

// runBitbake finds the project's bitbake, sets up caches and signing, runs the build and returns
// its record. It keeps the states of the checkouts and the bitbake tree in b.
func (b *projectBuild) runBitbake(ctx context.Context, spec images.Spec, opt images.Options) (bitbake.Record, error) {
	tree, err := bitbake.Find(ctx, b.project, b.workspace, b.dir, b.build)
	if err == nil {
		err = tree.CheckPrograms()
	}
	if err != nil {
		return bitbake.Record{}, err
	}
	if err := useCache(ctx, spec, &tree); err != nil {
		return bitbake.Record{}, err
	}
	if b.states, err = layers.Status(ctx, b.project, b.workspace); err != nil {
		return bitbake.Record{}, err
	}
	if tree.Set, err = signingVariables(ctx, b.project, opt); err != nil {
		return bitbake.Record{}, err
	}
	b.tree = tree
	return tree.Run(ctx, bitbake.Job{
		Board: spec.Board, Machine: b.project.Machine, Commits: b.commits(), Targets: b.project.Targets, Task: b.project.Task,
		Continue: opt.Request.Continue, DryRun: opt.Request.DryRun, Parse: opt.Request.Parse, Now: opt.Now,
	})
}

// commitOf returns the entry of a checkout for a build record, without a password in its URL.
func commitOf(s layers.State) bitbake.Commit {
	c := bitbake.Commit{Repo: s.Repo.ID, URL: git.WithoutPassword(s.Repo.URL), Commit: s.Head, Edited: s.Edited}
	if s.Repo.Local {
		c.Local = s.Dir
	}
	return c
}

// applyRequest returns the project with the targets and the task of the request.
func applyRequest(a images.BuildRequest, p layers.Project) layers.Project {
	if len(a.Targets) > 0 {
		p.Targets = a.Targets
	}
	if a.Task != "" {
		p.Task = a.Task
	}
	return p
}

// makesImages reports whether the build makes images, so that the deploy folder belongs to this
// run. After a task such as fetch it still holds the images of an earlier build.
func (b *projectBuild) makesImages(a images.BuildRequest) bool {
	return !a.DryRun && !a.Parse && slices.Contains([]string{"", "build"}, b.project.Task)
}

// isWholeBuild reports whether bitbake builds all targets of the project, without another task of
// the request, and stops at the first failure.
func isWholeBuild(a images.BuildRequest) bool {
	return !a.DryRun && !a.Parse && !a.Continue && len(a.Targets) == 0 && (a.Task == "" || a.Task == "build")
}

// commitOfProject returns the commit of the git repository that holds the project file. Without a
// commit, or if git fails, it returns an edited commit: the build itself does not need that git.
func (b *projectBuild) commitOfProject(ctx context.Context) bitbake.Commit {
	commit, edited, err := layers.FolderHead(ctx, b.project.Root)
	return bitbake.Commit{Commit: commit, Edited: edited || commit == "" || err != nil}
}

// saveInputs writes inputs.json with the files that the build read of the project's own repository,
// for ci plan. If it cannot, it only warns: it returns only ctx's error. It marks them as edited if
// the repository changed since before, a local folder replaced a layer, or a KAS_ variable is set.
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

// warnOfFindings prints Lint's findings as warnings, before bitbake spends minutes until it fails
// at them. The build continues, because the layers may define names that Lint does not know.
func (b *projectBuild) warnOfFindings(ctx context.Context) {
	say := func(text string) { progress.Warn(ctx, text) }
	found, err := lint.Project(b.project, b.workspace, images.BitbakeDirOf(b.workspace))
	if err != nil {
		say("the configuration was not looked at: " + err.Error())
	}
	for _, f := range found {
		say(f.Where + ": " + f.What + ": " + f.Why + ": " + f.Fix)
	}
}
