package layers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"slipway/layers/lock"
)

// Users share a folder of mirrors where its mode lets a group write. Another user's
// packs are copied then: the kernel lets nobody link to what he cannot write. A mirror
// that cannot be written is read.

func isGroupWritable(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.Mode()&0o020 != 0
}

// openLock opens a lock's file. A file of another user can be read, which is enough.
func openLock(path string) (*os.File, error) {
	f, err := lock.Open(path, 0o644)
	if errors.Is(err, fs.ErrPermission) {
		if theirs, bad := os.Open(path); bad == nil {
			return theirs, nil
		}
	}
	return f, err
}

// isWritable reports whether this process can write into the mirror, or create it.
func (m mirror) isWritable() bool {
	for _, dir := range []string{filepath.Dir(m.dir), m.dir, filepath.Join(m.dir, "objects/pack")} {
		if !canWrite(dir) {
			return false
		}
	}
	return true
}

// canWrite reports whether a folder can be written, or created if it does not exist.
func canWrite(dir string) bool {
	for !exists(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	return unix.Access(dir, unix.W_OK) == nil
}

// copyPinned copies a pinned commit into the tree from a read-only mirror. It returns
// the commit, "" if the mirror lacks it. A branch or a tag may have moved since.
func (m mirror) copyPinned(ctx context.Context, r Repo, t tree) (commit string, err error) {
	if r.Commit != "" && exists(filepath.Join(m.dir, "HEAD")) {
		commit, _ = m.localCommit(ctx, r) // fails where it is not here
	}
	if commit == "" {
		showWarning(ctx, fmt.Sprintf("%s cannot be written: Slipway fetches %s of repository %s into the checkout alone", m.dir, cmp.Or(r.Commit, r.Branch, r.Tag), r.ID))
		return "", ctx.Err()
	}
	if err := m.copyTo(t, commit); err != nil { // its owner may have packed it anew at this moment
		showWarning(ctx, fmt.Sprintf("repository %s is fetched: take packs from %s: %v", r.ID, m.dir, err))
		return "", ctx.Err()
	}
	if r.Tag == "" {
		return commit, nil
	}
	return commit, t.checkTag(ctx, r, true)
}
