package flash

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// newDisk makes a virtual disk beside its final name, which it gets when it is whole.
// Nobody else may read it: it holds the board's private host key.
func newDisk(j *imageJob, d Device) (_ *pending, err error) {
	if err := unchanged(d); err != nil {
		return nil, err
	}
	dir := filepath.Dir(d.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := newPending(d.Path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if err := j.checkSpace(dir); err != nil { // what a killed flash left is gone by now
		return nil, err
	}
	return f, f.Truncate(j.size)
}

// replace gives f the virtual disk's name. The disk that has it may not be that
// which was confirmed any more, or may be a running machine's by now, which would
// go on writing to a file without a name.
func replace(d Device, f *pending) error {
	if err := f.Sync(); err != nil { // takes long, so it comes before the last look
		return err
	}
	if err := unchanged(d); err != nil {
		return err
	}
	if !d.exists {
		return f.rename(unix.RENAME_NOREPLACE)
	}
	if old, err := os.OpenFile(d.Path, os.O_RDWR|unix.O_NOFOLLOW, 0); err == nil {
		defer old.Close()
		// A machine that is started just now does not get its own lock.
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(old.Fd(), unix.F_OFD_SETLK, &lock); errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return errors.New(inUse)
		}
	}
	return f.rename(0)
}

// unchanged proves that the virtual disk still is what was shown.
func unchanged(was Device) error {
	now, err := here.examine(FilePrefix + was.Path)
	if err != nil {
		return err
	}
	if now.Refused != "" {
		return fmt.Errorf("refused: %s", now.Refused)
	}
	if now.Kind != was.Kind || now.Path != was.Path || now.exists != was.exists || now.sequence != was.sequence {
		return errChanged
	}
	return nil
}

var errChanged = errors.New("it is not the file any more that was shown and confirmed; it was left as it is")

// pending is a file that will get the name of a virtual disk. Its lock is what
// tells it from one that a killed flash left behind.
type pending struct {
	*os.File
	path    string // the name that it will get
	renamed bool
}

func pendingName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".flash")
}

// newPending makes the file anew, so that nobody else has it open.
func newPending(path string) (*pending, error) {
	for {
		f, err := os.OpenFile(pendingName(path), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrExist) {
			if err := removeLeftover(pendingName(path)); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		// Before it is locked, another flash may take it for a leftover.
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			err = errBusy
		case !named(f, f.Name()):
			f.Close()
			continue
		default:
			err = f.Chmod(0o600) // whatever the umask; where there are no locks, it is written without
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return &pending{File: f, path: path}, nil
	}
}

var errBusy = errors.New("another flash is writing it at the moment")

// removeLeftover removes what a killed flash left, which is a file that nobody
// has locked.
func removeLeftover(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for what an earlier flash left: %w; remove it", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("%s is in the way; remove it", name), err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errBusy
	case err != nil:
		return fmt.Errorf("%s may be another flash's: %w; remove it when none runs", name, err)
	case !named(f, name): // it has its final name by now
		return nil
	}
	return os.Remove(name)
}

// named is true where name still is the name of f.
func named(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

func (p *pending) rename(flags uint) error {
	err := unix.Renameat2(unix.AT_FDCWD, p.Name(), unix.AT_FDCWD, p.path, flags)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system that knows no flags
		err = os.Rename(p.Name(), p.path)
	}
	p.renamed = err == nil
	if errors.Is(err, unix.EEXIST) {
		return errChanged
	}
	return err
}

// close removes the file unless it was renamed.
func (p *pending) close() {
	if !p.renamed {
		os.Remove(p.Name())
	}
	p.Close()
}

// checkSpace finds a full file system before it is filled.
func (j *imageJob) checkSpace(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("find out how much room %s has: %w", dir, err)
	}
	need := j.size // at most, without a map
	if j.blocks != nil {
		need = j.blocks.Mapped()
	}
	if j.seed != nil {
		need += j.seed.blocks.Mapped()
	}
	if free := int64(st.Bavail) * int64(st.Frsize); free < need {
		return fmt.Errorf("%s has room for %s, the image needs %s\nnext: free some space, or name a file in another folder", dir, exactText(free), exactText(need))
	}
	return nil
}
