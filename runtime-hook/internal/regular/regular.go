// Package regular reads regular files up to a limit, as others may block, and replaces files whole.
package regular

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Read reads the regular file at path. Of one larger than limit, it returns a part and an error.
func Read(path string, limit int) ([]byte, fs.FileInfo, error) {
	// A FIFO would block the open without O_NONBLOCK.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	data, err := Limited(f, limit)
	if err != nil {
		err = &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return data, info, err
}

// Limited reads r to its end. If r is longer than limit, it returns limit+1 bytes and an error.
func Limited(r io.Reader, limit int) ([]byte, error) {
	var b bytes.Buffer
	// A buffer that grows takes longer than all of the read.
	if f, ok := r.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			b.Grow(int(min(info.Size(), int64(limit))) + bytes.MinRead)
		}
	}
	_, err := b.ReadFrom(io.LimitReader(r, int64(limit)+1))
	if err == nil && b.Len() > limit {
		err = fmt.Errorf("larger than %d KiB", limit>>10)
	}
	return b.Bytes(), err
}

// Replace renames a temporary file (pattern temp, mode 0600) to path after fill wrote it.
func Replace(path, temp string, fill func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), temp)
	if err != nil {
		return err
	}
	defer f.Close()
	if err = fill(f); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
