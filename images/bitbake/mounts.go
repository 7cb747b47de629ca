package bitbake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// Isar's tasks mount file systems into root file systems below tmp/work, and open sessions
// of schroot, all as root. A task that is broken off leaves them. The next build stops at
// them, or removes files through them.

// The folders of schroot: files of open sessions, and of chroots for new sessions.
const (
	schrootSessions = "/var/lib/schroot/session"
	schrootChroots  = "/etc/schroot/chroot.d"
)

const releaseTimeout = time.Minute

// releaseMounts ends the schroot sessions and unmounts the file systems that tasks of this build
// folder left, as root through sudo, and removes their schroot configuration. It does so also after
// ctx has ended. The caller must have locked the build folder, so that no other build runs in it.
func (t Tree) releaseMounts(ctx context.Context) error {
	build, err := filepath.EvalSymlinks(t.Build)
	if err != nil {
		return nil // nothing was built there
	}
	sessions, chroots := chrootsBelow(schrootSessions, build), chrootsBelow(schrootChroots, build)
	mounts, err := mountsBelow(filepath.Join(build, "tmp/work"))
	if err != nil || len(sessions)+len(chroots)+len(mounts) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	return progress.Run(ctx, "clear", func(*progress.Step) (string, error) {
		err := endSessionsAndMounts(ctx, sessions, mounts)
		if err != nil {
			err = fmt.Errorf("%s: a broken off build left mounts, and they cannot be ended: %w\nnext: sudo umount %s", build, err, strings.Join(mounts, " "))
		}
		forgetChroots(ctx, chroots)
		return fmt.Sprintf("%d mounts and %d sessions of schroot of tasks that were broken off", len(mounts), len(sessions)), err
	})
}

// endSessionsAndMounts force-ends schroot sessions, then unmounts mounts, as root. It joins errors.
func endSessionsAndMounts(ctx context.Context, sessions, mounts []string) (err error) {
	asRoot := func(argv ...string) {
		_, failed := run.Output(ctx, run.Command{Argv: append([]string{"sudo", "-n"}, argv...)})
		err = errors.Join(err, failed)
	}
	for _, name := range sessions {
		asRoot("schroot", "--end-session", "--force", "--chroot=session:"+name)
	}
	for _, at := range mounts {
		asRoot("umount", "--", at)
	}
	return err
}

// schrootLock is the lock that Isar's builds hold while they use schroot. schroot fails if one of
// its files disappears while it reads them all.
const schrootLock = "/tmp/schroot.lock"

// forgetChroots removes the configuration of the named chroots, without a check that nothing uses
// them. It ignores errors: a file that stays, as another build holds the lock, does no harm.
func forgetChroots(ctx context.Context, names []string) {
	for _, name := range names {
		_ = run.Run(ctx, run.Command{Argv: []string{
			"flock", "--exclusive", "--wait", "5", schrootLock,
			"sudo", "-n", "rm", "-rf", "--", filepath.Join(schrootChroots, name), filepath.Join(filepath.Dir(schrootChroots), name),
		}})
	}
}

const maxChrootBytes = 64 << 10

// chrootsBelow returns the names of schroot's files in folder whose chroots are below dir. It skips
// files that it cannot read: they belong to other users.
func chrootsBelow(folder, dir string) (names []string) {
	entries, _ := os.ReadDir(folder) // without schroot there is none
	for _, e := range entries {
		text, err := localfile.Read(filepath.Join(folder, e.Name()), maxChrootBytes)
		if err == nil && strings.Contains(string(text), "\ndirectory="+dir+"/") {
			names = append(names, e.Name())
		}
	}
	return names
}

// mountsBelow returns the mount points below dir, the last first.
func mountsBelow(dir string) (found []string, err error) {
	mounts, err := mountinfo.GetMounts(nil)
	for _, m := range slices.Backward(mounts) {
		if strings.HasPrefix(m.Mountpoint, dir+"/") {
			found = append(found, m.Mountpoint)
		}
	}
	return found, err
}
