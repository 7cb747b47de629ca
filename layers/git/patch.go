package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"slipway/layers/run"
)

// PatchFile is a patch with its content.
type PatchFile struct {
	ID      string // in the project
	Repo    string // the id of its repository
	Name    string // its path in that repository
	Content []byte
}

// ApplyPatches commits patches on the tree's recorded commit, checks out the last, and records it
// with the digest. Without patches it checks out the recorded commit.
func (t Tree) ApplyPatches(ctx context.Context, r Remote, files []PatchFile, digest string) (err error) {
	now := t.Record()
	now.Patches, now.Count = digest, len(files)
	if err := t.removeLocks(ctx); err != nil {
		return err
	}
	if now.Head, err = t.commitPatches(ctx, r, now.Commit, files); err != nil {
		return err
	}
	if err := t.moveTo(ctx, r, now.Head); err != nil {
		return err
	}
	return t.writeRecord(now)
}

// commitPatches makes a commit of each patch, the first on top of base, and returns the last, or
// base without patches. It uses an index of its own, so files and HEAD do not change.
func (t Tree) commitPatches(ctx context.Context, r Remote, base string, files []PatchFile) (string, error) {
	if len(files) == 0 {
		return base, nil
	}
	index := filepath.Join(t.gitDir, patchIndex)
	defer os.Remove(index)
	b := patchTree{Tree: t, env: []string{"GIT_INDEX_FILE=" + index}}
	seconds, err := b.runWith(ctx, b.env, nil, "show", "-s", "--format=%ct", base)
	if err != nil {
		return "", err
	}
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		b.env = append(b.env, "GIT_"+who+"_NAME=slipway", "GIT_"+who+"_EMAIL="+slipwayEmail, "GIT_"+who+"_DATE=@"+seconds+" +0000")
	}
	if _, err := b.runWith(ctx, b.env, nil, "read-tree", base); err != nil {
		return "", err
	}
	for _, f := range files {
		next, err := b.commitPatch(ctx, base, f)
		if err != nil {
			if failed, ok := errors.AsType[*run.Failure](err); ok {
				failed.Argv = []string{"git", "apply"} // without the options that keep the user's configuration out
			}
			return "", r.At.Errorf("repos.%s.patches.%s: %s of repository %s does not apply to commit %s; refresh the patch or drop it: %w",
				r.ID, f.ID, f.Name, f.Repo, base, err)
		}
		base = next
	}
	return base, nil
}

// slipwayEmail is the committer of Slipway's commits, which tells them from a user's: a commit that
// a user amends keeps its author, but not its committer.
const slipwayEmail = "slipway@localhost"

// patchIndex is git's index while patches are applied.
const patchIndex = "slipway-index"

// patchTree is a tree with a separate index, in which patches are applied.
type patchTree struct {
	Tree
	env []string
}

// commitPatch applies a patch to the index and commits the result on top of onto.
func (b *patchTree) commitPatch(ctx context.Context, onto string, f PatchFile) (string, error) {
	if _, err := b.runWith(ctx, b.env, f.Content, "apply", "--cached", "--whitespace=nowarn", "-"); err != nil {
		return "", err
	}
	tree, err := b.runWith(ctx, b.env, nil, "write-tree")
	if err != nil {
		return "", err
	}
	message := fmt.Sprintf("%s: %s of repository %s\n", f.ID, f.Name, f.Repo)
	return b.runWith(ctx, b.env, []byte(message), "commit-tree", "-p", onto, tree)
}
