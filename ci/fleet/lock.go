package fleet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/lock"
)

// errHeld means that another process holds a lock. The error that wraps it names the
// process.
var errHeld = errors.New("in use")

// lockFile takes the lock of a file. The kernel releases it when this process ends. The
// file names the process that holds it.
func lockFile(name string) (unlock func(), err error) {
	if err := localfile.MkdirAll(filepath.Dir(name)); err != nil {
		return nil, err
	}
	f, err := lock.Open(name, 0o644)
	if err != nil {
		return nil, err
	}
	err = lock.Try(f)
	switch {
	case errors.Is(err, lock.ErrHeld):
		err = fmt.Errorf("%w by %s", errHeld, readHolder(f))
	case err == nil:
		err = writeHolder(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

func writeHolder(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := fmt.Fprintf(f, "process %d, since %s\n", os.Getpid(), time.Now().Format(time.RFC3339))
	return err
}

// readHolder reads what writeHolder wrote. Another process may be writing it now.
func readHolder(f *os.File) string {
	text, _ := io.ReadAll(io.LimitReader(f, 200))
	if said := strings.TrimSpace(string(text)); said != "" {
		return oneLine(said)
	}
	return "another process"
}

// lockRun keeps a second run from writing to the record of the first.
func (p *plan) lockRun() (unlock func(), err error) {
	unlock, err = lockFile(p.outputDir() + ".lock")
	if errors.Is(err, errHeld) {
		err = fmt.Errorf("no board was asked: %s is %w\nnext: wait until that run has ended, then run this again", p.outputDir(), err)
	}
	return unlock, localfile.Unwritable(filepath.Dir(filepath.Dir(p.outputDir())), err)
}

// lockHost keeps two runs on this machine from working on one host.
func (t *attempt) lockHost() (unlock func(), err error) {
	unlock, err = lockFile(t.opt.HostLockPath(t.job.host.Name))
	if errors.Is(err, errHeld) {
		err = kindError{Busy, fmt.Errorf("%s is %w", t.job.host.Name, err)}
	}
	return unlock, err
}
