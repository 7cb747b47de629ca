package localfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/plaintext"
)

// ErrHeld means that another process holds a lock. Errors that wrap it name the process.
var ErrHeld = errors.New("in use")

// Hold locks a file, creates it and its folder if necessary, and writes this process's ID into it. It
// returns ErrHeld if another process has the lock: after lookLimit if that is alive, else after
// waiting execLimit.
func Hold(name string) (unlock func(), err error) {
	f, err := HoldFile(name)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// HoldFile is Hold that returns the locked file, for children that keep the lock when this process
// is killed. Close it to unlock.
func HoldFile(name string) (*os.File, error) {
	if err := MkdirAll(filepath.Dir(name)); err != nil {
		return nil, err
	}
	f, err := OpenLock(name, 0o644)
	if err != nil {
		return nil, err
	}
	holder := ""
	for began := time.Now(); ; time.Sleep(execLimit / 500) {
		if err = TryLock(f); !errors.Is(err, ErrLocked) {
			break
		}
		holder = readHolder(f)
		if waited := time.Since(began); waited > execLimit || waited > lookLimit && isAlive(holder) {
			break
		}
	}
	switch {
	case errors.Is(err, ErrLocked):
		err = fmt.Errorf("%w by %s", ErrHeld, holder)
	case err == nil:
		err = writeHolder(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// execLimit is how long Hold waits for a lock whose holder was killed. A child of the holder
// keeps the lock until the child executes its program.
const execLimit = 10 * time.Second

// lookLimit is how long Hold waits for a process that only looks whether the lock is free. It takes
// the lock for a moment, and the file names an earlier holder, whose ID may be a zombie's or another
// process's by now. A test on a busy machine waits longer.
var lookLimit = 300 * time.Millisecond

// isAlive reports whether the process in holder may still run. It is true if holder names none.
func isAlive(holder string) bool {
	var pid int
	_, err := fmt.Sscanf(holder, "process %d,", &pid)
	return err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// writeHolder replaces the content of a lock file by this process's ID and the time.
func writeHolder(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := fmt.Fprintf(f, "process %d, since %s\n", os.Getpid(), time.Now().Format(time.RFC3339))
	return err
}

// readHolder returns what the lock's holder wrote into the file, or "another process" if the file
// is empty, because the holder may be writing at this moment.
func readHolder(f *os.File) string {
	text, _ := io.ReadAll(io.NewSectionReader(f, 0, 200))
	if said := strings.TrimSpace(string(text)); said != "" {
		return plaintext.OneLine(said)
	}
	return "another process"
}
