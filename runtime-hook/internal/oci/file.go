package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// ReadFile reads a config.json. Whatever else has its name is refused: a FIFO
// would block for ever.
func ReadFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, err
	}
	data, err := readLimited(f, maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// Replace replaces the config.json at path by data in one step. It keeps the mode and
// the owner.
func Replace(path string, data []byte) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".config.json.*")
	if err != nil {
		return fmt.Errorf("add the board's devices: %w; where a bundle cannot be written to, CDI or the hook give what they can", err)
	}
	defer f.Close()
	if err := writeLike(f, data, info); err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		os.Remove(f.Name())
		return err
	}
	return nil
}

func writeLike(f *os.File, data []byte, like os.FileInfo) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	stat, ok := like.Sys().(*syscall.Stat_t)
	if ok && (int(stat.Uid) != os.Geteuid() || int(stat.Gid) != os.Getegid()) {
		if err := f.Chown(int(stat.Uid), int(stat.Gid)); err != nil {
			return err
		}
	}
	return f.Chmod(like.Mode().Perm())
}
