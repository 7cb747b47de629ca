package fleet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
)

// errHeld means that another process holds a lock. Errors that wrap it name the process.
var errHeld = errors.New("in use")

// lockFile locks a file, creates it if necessary, and writes this process's ID into it. It returns
// errHeld if another process has the lock: at once if that is alive, else after waiting execLimit.
func lockFile(name string) (unlock func(), err error) {
	if err := localfile.MkdirAll(filepath.Dir(name)); err != nil {
		return nil, err
	}
	f, err := localfile.OpenLock(name, 0o644)
	if err != nil {
		return nil, err
	}
	holder := ""
	for end := time.Now().Add(execLimit); ; time.Sleep(execLimit / 500) {
		if err = localfile.TryLock(f); !errors.Is(err, localfile.ErrLocked) {
			break
		}
		if holder = readHolder(f); isAlive(holder) || time.Now().After(end) {
			break
		}
	}
	switch {
	case errors.Is(err, localfile.ErrLocked):
		err = fmt.Errorf("%w by %s", errHeld, holder)
	case err == nil:
		err = writeHolder(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// execLimit is how long lockFile waits for a lock whose holder was killed. A child of the holder
// keeps the lock until the child executes its program.
const execLimit = 10 * time.Second

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
		return oneLine(said)
	}
	return "another process"
}

// lockRun locks the output folder of the run, so that no second run writes there.
func (p *plan) lockRun() (unlock func(), err error) {
	unlock, err = lockFile(p.outputDir() + ".lock")
	if errors.Is(err, errHeld) {
		err = fmt.Errorf("no board was asked: %s is %w\nnext: repeat the line  # when that run has ended", p.outputDir(), err)
	}
	return unlock, localfile.Unwritable(filepath.Dir(filepath.Dir(p.outputDir())), err)
}

// lockHost locks the board's host name, so that no second run on this machine works on that board.
func (t *attempt) lockHost() (unlock func(), err error) {
	unlock, err = lockFile(t.opt.HostLockPath(t.job.host.Name))
	if errors.Is(err, errHeld) {
		err = kindError{Busy, fmt.Errorf("%s is %w", t.job.host.Name, err)}
	}
	return unlock, err
}
