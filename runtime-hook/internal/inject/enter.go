package inject

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Process is the first process of a container for which the hook runs.
type Process struct {
	pid   int
	owner *owner
}

// Find finds the container's process by the pid in the hook's state. It returns an error if the
// hook itself runs in the container, or if that process is in the host's mount namespace.
func Find(pid int) (Process, error) {
	inside, err := innerPid()
	if err != nil {
		return Process{}, err
	}
	if inside || pid <= 1 {
		return Process{}, errors.New("the hook runs in the container, as at createContainer; call it at createRuntime or prestart")
	}
	same, err := sameNamespace("mnt", pid)
	if err != nil {
		return Process{}, err
	}
	if same {
		return Process{}, errNoNamespace
	}
	owner, err := ownerOf(pid)
	return Process{pid, owner}, err
}

// sameNamespace reports whether this thread and process pid share a namespace of /proc/PID/ns.
func sameNamespace(kind string, pid int) (bool, error) {
	own, err := os.Open("/proc/thread-self/ns/" + kind)
	if err != nil {
		return false, err
	}
	defer own.Close()
	return isFileAt(own, fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
}

// Enter moves the calling thread, and only that, into the container's mount namespace, which must
// have the board's root and not be the host's own. In a user namespace, it first drops the thread's
// groups. The caller must be locked to its thread, and must keep the lock.
func (p Process) Enter() error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", p.pid))
	if err != nil {
		return fmt.Errorf("the container's process is gone: %w", err)
	}
	defer ns.Close()
	if err := p.owner.dropGroups(); err != nil {
		return err
	}
	// Threads share their root and working folder, which setns would change for
	// all of them; the kernel refuses until this one has its own.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	board, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer board.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace of process %d: %w", p.pid, err)
	}
	// From here on every path is one of that namespace, also /proc and the sources of the mounts.
	if same, err := isFileAt(board, "/"); err != nil || !same {
		return errors.Join(err, fmt.Errorf("process %d has another root than the board, as in a container that runs; call the hook at createRuntime or prestart", p.pid))
	}
	return refuseHost()
}

// innerPid reports whether this process is in a pid namespace below that of /proc. Then it is in a
// container whose /proc is not visible yet, and the state's pid is of an unrelated process.
func innerPid() (bool, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, fmt.Errorf("/proc is needed and not usable: %w", err)
	}
	_, pids, found := strings.Cut(string(status), "\nNSpid:")
	if !found {
		return false, errors.New("/proc/self/status has no NSpid; Linux 4.1 or later is needed")
	}
	pids, _, _ = strings.Cut(pids, "\n")
	return len(strings.Fields(pids)) > 1, nil
}

// errNoNamespace means that all processes of the board would see the hook's mounts.
var errNoNamespace = errors.New("the container has no mount namespace of its own; Slipway cannot give a file to it only")

// refuseHost returns an error in the host's own mount namespace, if it may inspect that of pid 1.
func refuseHost() error {
	same, err := sameNamespace("mnt", 1)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return nil // without the right to inspect pid 1, there is no right to mount there either
	}
	if err == nil && same {
		err = errNoNamespace
	}
	return err
}

// isFileAt reports whether f is the file at path, with all links followed.
func isFileAt(f *os.File, path string) (bool, error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	at, err := os.Stat(path)
	return err == nil && os.SameFile(info, at), err
}

func sameFile(f, g *os.File) (bool, error) {
	a, err := f.Stat()
	if err != nil {
		return false, err
	}
	b, err := g.Stat()
	return err == nil && os.SameFile(a, b), err
}
