package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Pending is a new file beside a virtual disk's path, renamed to it when complete. Its lock shows
// that a flash writes it. Only its owner may read the board's private host key in it.
type Pending struct {
	*os.File
	device  Device
	renamed bool
}

func pendingName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".flash")
}

// NewPending makes the parent folder of the virtual disk d and a locked hidden file in it, which
// Replace renames to d.Path. It fails if d has changed since it was examined, or is in use.
func NewPending(d Device) (*Pending, error) {
	if err := checkFileUnchanged(d); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(d.Path), 0o755); err != nil {
		return nil, err
	}
	f, err := createPending(d.Path)
	if err != nil {
		return nil, err
	}
	return &Pending{File: f, device: d}, nil
}

// createPending creates a file beside path and locks it, unless the file system has no locks. It
// removes the file of a killed flash. It returns errBusy if another flash has locked the file.
func createPending(path string) (*os.File, error) {
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
		case !isNameOf(f, f.Name()):
			f.Close()
			continue
		default:
			err = f.Chmod(0o600) // whatever the umask; without locks, a flash writes it unlocked
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
}

var errBusy = errors.New("another flash is writing it at the moment")

// removeLeftover removes the file of a killed flash, or returns errBusy if a flash has it locked.
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
	case !isNameOf(f, name): // it has its final name by now
		return nil
	}
	return os.Remove(name)
}

// isNameOf reports whether name still names the open file f.
func isNameOf(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

// rename renames the file to the virtual disk's path, with the flags of renameat2 if the file
// system has them. With RENAME_NOREPLACE, errChanged means that the path exists.
func (p *Pending) rename(flags uint) error {
	err := unix.Renameat2(unix.AT_FDCWD, p.Name(), unix.AT_FDCWD, p.device.Path, flags)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system that knows no flags
		err = os.Rename(p.Name(), p.device.Path)
	}
	p.renamed = err == nil
	if errors.Is(err, unix.EEXIST) {
		return errChanged
	}
	return err
}

// Close closes the file, and removes it unless it was renamed.
func (p *Pending) Close() error {
	if !p.renamed {
		os.Remove(p.Name())
	}
	return p.File.Close()
}

// Replace syncs the file and renames it to the virtual disk's path. It refuses to replace another
// disk than the confirmed, or one that a virtual machine has locked and would still write to.
func (p *Pending) Replace() error {
	if err := p.Sync(); err != nil { // takes long, so it comes before the last look
		return err
	}
	if err := checkFileUnchanged(p.device); err != nil {
		return err
	}
	if !p.device.exists {
		return p.rename(unix.RENAME_NOREPLACE)
	}
	if old, err := os.OpenFile(p.device.Path, os.O_RDWR|unix.O_NOFOLLOW, 0); err == nil {
		defer old.Close()
		// A machine that is started just now does not get its own lock.
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(old.Fd(), unix.F_OFD_SETLK, &lock); errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return errors.New(lockedText)
		}
	}
	return p.rename(0)
}

// checkFileUnchanged returns an error if the virtual disk is in use, or not as shown to the user.
func checkFileUnchanged(was Device) error {
	now, err := here.examineName(FilePrefix + was.Path)
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
