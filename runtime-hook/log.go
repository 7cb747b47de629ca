package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const maxLogBytes = 1 << 20

// openLog opens the log for appending. If that fails, it opens /dev/null, because no container
// fails for its log. Call it before the hook enters a container.
func openLog(file string) *os.File {
	f, err := openLogFile(file)
	if err != nil {
		f, _ = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return f
}

// openLogFile opens the log for appending, and rotates it if it is larger than maxLogBytes. There
// is one old log, because /run is memory. Only a regular file opens.
func openLogFile(file string) (*os.File, error) {
	if file == "" {
		return nil, errors.New("no log is wanted")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	info, err := os.Lstat(file)
	if err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", file)
	}
	f, openErr := appendTo(file)
	if err != nil || openErr != nil || info.Size() <= maxLogBytes {
		return f, openErr
	}
	defer f.Close()
	rotateLog(f, file)
	return appendTo(file)
}

func appendTo(file string) (*os.File, error) {
	return os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
}

// rotateLog renames the full log f to file.1, unless another hook does or did so. A second rename
// would move the new log over the old one.
func rotateLog(f *os.File, file string) {
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	mine, err := f.Stat()
	if err != nil {
		return
	}
	if named, err := os.Lstat(file); err == nil && os.SameFile(mine, named) && mine.Size() > maxLogBytes {
		_ = os.Rename(file, file+".1")
	}
}
