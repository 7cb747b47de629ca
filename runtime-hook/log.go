package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const maxLogBytes = 1 << 20

// openLog opens the log, or something that takes lines and forgets them: a
// container does not fail for want of a log. It must be opened before the hook
// enters a container.
func openLog(file string) *os.File {
	f, err := openLogFile(file)
	if err != nil {
		f, _ = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return f
}

// openLogFile keeps one old log, as /run is memory. Two hooks that both find
// the log full lose a few old lines at worst. A FIFO without a reader does not open.
func openLogFile(file string) (*os.File, error) {
	if file == "" {
		return nil, errors.New("no log is wanted")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	info, err := os.Lstat(file)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", file)
	}
	if err == nil && info.Size() > maxLogBytes {
		err = os.Rename(file, file+".1")
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
}
