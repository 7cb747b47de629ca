package images

import (
	"context"
	"os"
	"slices"

	"slipway/images/bitbake"
	"slipway/layers"
	"slipway/layers/progress"
)

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
