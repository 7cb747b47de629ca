package flash

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// toFile makes a virtual disk beside its final name and renames it when it is
// whole. Nobody else may read it: it holds the board's private host key.
func toFile(ctx context.Context, j *job) error {
	dir := filepath.Dir(j.device.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := j.room(dir); err != nil {
		return err
	}
	f, err := renameio.NewPendingFile(j.device.Path, renameio.WithTempDir(dir), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	if err := f.Truncate(j.blocks.ImageSize); err != nil {
		return err
	}
	d := openDisk(f.File)
	defer d.close()
	// A new file is one hole, so there is nothing to zero.
	if err := j.fill(ctx, j.transfer(d, 0)); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

// room finds a full file system before it is filled.
func (j *job) room(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("find out how much room %s has: %w", dir, err)
	}
	need := j.blocks.Mapped()
	if j.seed != nil {
		need += j.seed.blocks.Mapped()
	}
	if free := int64(st.Bavail) * int64(st.Frsize); free < need {
		return fmt.Errorf("%s has room for %s, the image needs %s", dir, sizeText(free), sizeText(need))
	}
	return nil
}
