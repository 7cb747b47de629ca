package tegra

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// CopyTo copies the package to dir for one board, because its scripts write into their folder.
// Files share their blocks if the file system supports that. Otherwise the root file system, which
// the scripts only read, is a hard link, and the rest is copied.
func (p *Package) CopyTo(ctx context.Context, dir string) error {
	err := filepath.WalkDir(p.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(p.Dir, path)
		if err != nil {
			return err
		}
		return p.copyEntry(ctx, name, d, filepath.Join(dir, name))
	})
	if err != nil {
		return errors.Join(fmt.Errorf("copy the package: %w", err), os.RemoveAll(dir))
	}
	return nil
}

func (p *Package) copyEntry(ctx context.Context, name string, d fs.DirEntry, to string) error {
	from := filepath.Join(p.Dir, name)
	switch d.Type() {
	case fs.ModeDir:
		return os.MkdirAll(to, 0o700)
	case fs.ModeSymlink:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	return copyFile(ctx, from, to, slices.Contains(p.sharedFiles(), name))
}

// copyFile clones a file's blocks if it can; else it hard-links a shared file and copies another.
func copyFile(ctx context.Context, from, to string, shared bool) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return nil
	}
	if shared && os.Link(from, to+".link") == nil {
		return os.Rename(to+".link", to)
	}
	return copyData(ctx, out, in, info.Size())
}

// copyChunk is how much is copied between two checks of the context.
const copyChunk = 16 << 20

// copyData copies the file's data and keeps its holes.
func copyData(ctx context.Context, out, in *os.File, size int64) error {
	for off := int64(0); off < size; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		begin, err := unix.Seek(int(in.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(in.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		end = min(end, begin+copyChunk)
		if _, err := io.Copy(io.NewOffsetWriter(out, begin), io.NewSectionReader(in, begin, end-begin)); err != nil {
			return err
		}
		off = end
	}
	return out.Truncate(size)
}
