package tegra

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"slipway/flash/sealed"
	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// archiveLimits limit what an untrusted archive may contain.
type archiveLimits struct {
	Entries   int
	Bytes     int64 // of all files, holes included
	NameBytes int
	Ratio     int64 // decompressed bytes to compressed bytes
	Free      int64 // decompressed bytes that are allowed at any ratio
}

// usualLimits: NVIDIA's tools have some thousand files, and gzip expands one byte to at most 1032.
var usualLimits = archiveLimits{Entries: 200_000, Bytes: 1 << 40, NameBytes: 1024, Ratio: 1100, Free: 64 << 20}

// isBomb reports whether in bytes of an archive expand to more bytes than in any real package.
func (l archiveLimits) isBomb(out, in int64) bool { return out > l.Free && out/l.Ratio > in }

// Archive is an untrusted archive of a package: tar, tar.gz or tar.zst, recognised by content.
type Archive struct {
	Path   string
	SHA256 string       // expected digest, if known
	File   *sealed.File // that at Path, if it is open
}

// Unpack extracts the archive into dir, which must not exist, and compares its SHA-256. It refuses
// every entry that would reach outside of dir, and removes dir if it fails. It returns the SHA-256.
func Unpack(ctx context.Context, from Archive, dir string) (string, error) {
	return unpackLimited(ctx, from, dir, usualLimits)
}

// unpackLimited does what Unpack does, with the given limits.
func unpackLimited(ctx context.Context, from Archive, dir string, limits archiveLimits) (string, error) {
	step := progress.Start(ctx, "unpack", 0, "")
	sum, files, err := unpackInto(ctx, from, dir, limits, step)
	step.End(fmt.Sprintf("%d files", files), err)
	if err != nil {
		return "", fmt.Errorf("unpack %s: %w", from.Path, err)
	}
	return sum, nil
}

// unpackInto unpacks an archive into the new folder dir and compares its digest. It removes dir if
// either fails. It refuses to begin with less free space than the archive's size.
func unpackInto(ctx context.Context, from Archive, dir string, limits archiveLimits, step *progress.Step) (sum string, files int, err error) {
	f := from.File
	if f == nil {
		if f, err = sealed.Open(from.Path); err != nil {
			return "", 0, err
		}
		defer f.Close()
	}
	if err := checkSpace(filepath.Dir(dir), f.SizeBytes()); err != nil {
		return "", 0, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", 0, err
	}
	t, err := newExtraction(ctx, dir, limits, step)
	if err == nil {
		sum, err = t.unpackFile(f)
		err = errors.Join(err, t.close())
	}
	if err == nil && from.SHA256 != "" && sum != from.SHA256 {
		err = fmt.Errorf("its sha256 is %s, %s was expected; it was damaged on its way or is another one: get it again", sum, from.SHA256)
	}
	if err != nil {
		return "", 0, errors.Join(explainError(err), os.RemoveAll(dir))
	}
	return sum, len(t.files), nil
}

// unpackFile extracts a tar, which it reads once, and returns its SHA-256.
func (t *extraction) unpackFile(f *sealed.File) (string, error) {
	in := bufio.NewReaderSize(f.Reader(t.ctx, func(int64) {}), 1<<20)
	head, err := in.Peek(512)
	if len(head) == 0 || err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read its first bytes: %w", err)
	}
	if err := t.unpackTar(in, head); err != nil {
		return "", err
	}
	return f.Seal(t.ctx, func(int64) {})
}

// cancellable returns r as a reader that fails once the context ends.
func (t *extraction) cancellable(r io.Reader) io.Reader { return localfile.WithContext(t.ctx, r, nil) }

// checkSpace returns an error if dir's file system has less than need bytes free.
func checkSpace(dir string, need int64) error {
	free, err := localfile.FreeBytes(dir)
	if err == nil && free < need {
		err = fmt.Errorf("%s has %d MiB free, the archive has %d MiB: free some space in it", dir, free>>20, need>>20)
	}
	return err
}

// explainError adds advice to the error of a full disk, a truncated archive or equal names.
func explainError(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("no space for its content: %w; free some space and try again", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("it ends in the middle: %w; get it again", err)
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w; two names of the archive are one here", err)
	}
	return err
}
