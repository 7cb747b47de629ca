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

// openLogFile opens or creates the log and its folder, and rotates a log above maxLogBytes. It
// keeps one old log, because /run is memory. It refuses anything but a regular file.
func openLogFile(file string) (*os.File, error) {
	if file == "" {
		return nil, errors.New("no log is wanted")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(file); err == nil && info.Mode().IsRegular() && info.Size() > maxLogBytes {
		_ = os.Rename(file, file+".1")
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s: not a regular file", file)
	}
	return f, nil
}
