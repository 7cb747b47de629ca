// Package localfile reads a user's files with limits, but no devices or FIFOs. It writes Slipway's.
package localfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Read reads a file that Open accepts, and returns an error if it has more than most bytes. It
// counts what it reads, because files of /proc and pipes have no size.
func Read(name string, most int64) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, name, most)
}

// Open opens a user's file or folder. It refuses FIFOs, sockets and devices: opening or reading
// them may never end. It accepts /dev/null and unnamed pipes, such as a shell's <().
func Open(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err == nil && info.Mode()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 && !isNull(info) && !isUnnamedPipe(name) {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	return os.Open(name)
}

func isNull(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode()&fs.ModeCharDevice != 0 && stat.Rdev == unix.Mkdev(1, 3)
}

func isUnnamedPipe(name string) bool {
	var s unix.Statfs_t
	return unix.Statfs(name, &s) == nil && int64(s.Type) == unix.PIPEFS_MAGIC
}

// ReadAll reads an open file. More than most bytes are an error, which begins with name.
func ReadAll(r io.Reader, name string, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) > most:
		return nil, fmt.Errorf("%s: larger than %d KiB; is it the right file?", name, most>>10)
	}
	return data, nil
}

// Same reports whether two paths name the same file.
func Same(a, b string) bool {
	one, err := os.Stat(a)
	other, missing := os.Stat(b)
	return err == nil && missing == nil && os.SameFile(one, other)
}

// Tail returns up to most bytes of a regular file's end, as far as readable. It never blocks.
func Tail(name string, most int64) []byte {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	data, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-most), most))
	return data
}

// WithContext returns a reader that fails once ctx ends, and calls count, if not nil, as it reads.
func WithContext(ctx context.Context, in io.Reader, count func(int64)) io.Reader {
	return contextReader{ctx, in, count}
}

type contextReader struct {
	ctx   context.Context
	in    io.Reader
	count func(int64)
}

// Read reads from in and passes the size to count, or returns the cause once ctx has ended.
func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.in.Read(p)
	if r.count != nil {
		r.count(int64(n))
	}
	return n, err
}

// Digest returns the SHA-256 of in, in hex. count, if not nil, gets the size of each read.
func Digest(ctx context.Context, in io.Reader, count func(int64)) (string, error) {
	h := sha256.New()
	_, err := io.CopyBuffer(h, WithContext(ctx, in, count), make([]byte, 1<<20))
	return hex.EncodeToString(h.Sum(nil)), err
}
