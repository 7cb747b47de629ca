package inject

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Process is the first process of a container for which the hook runs.
type Process struct {
	pid   int // 0: the hook itself runs in the container, at the stage createContainer
	owner *owner
}

// Find finds the container's process by the pid in the hook's state, and whether the hook runs
// inside the container. It returns an error if that would be the host's mount namespace.
func Find(pid int) (Process, error) {
	inside, err := innerPid()
	if err != nil {
		return Process{}, err
	}
	if inside || pid <= 1 {
		return Process{}, refuseHost()
	}
	same, err := sameNamespace("mnt", pid)
	if err != nil {
		return Process{}, err
	}
	if same {
		return Process{}, refuseHost()
	}
	owner, err := ownerOf(pid)
	return Process{pid, owner}, err
}

// sameNamespace reports whether this thread and process pid share the namespace of this kind, a
// name in /proc/PID/ns.
func sameNamespace(kind string, pid int) (bool, error) {
	fd, err := unix.Open("/proc/thread-self/ns/"+kind, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	return sameFile(fd, fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
}

// Enter moves the calling thread, and only that, into the container's mount namespace.
// The caller must be locked to its thread, and must keep the lock.
func (p Process) Enter() error {
	if p.pid == 0 {
		return nil
	}
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
	if same, err := sameFile(int(board.Fd()), "/"); err != nil || !same {
		return errors.Join(err, fmt.Errorf("process %d has another root than the board, as in a container that runs; call the hook at createRuntime, createContainer or prestart", p.pid))
	}
	return refuseHost()
}

// innerPid reports whether this process is in a pid namespace below that of /proc. Then it runs
// inside a container whose own /proc is not visible yet, and the pid in its state is that of an
// unrelated process on the host.
func innerPid() (bool, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return false, fmt.Errorf("/proc is needed and not usable: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if pids, ok := strings.CutPrefix(lines.Text(), "NSpid:"); ok {
			return len(strings.Fields(pids)) > 1, nil
		}
	}
	return false, errors.New("/proc/self/status: no NSpid; Linux 4.1 or later is needed")
}

// refuseHost returns an error in the host's own mount namespace, where all processes of the board
// would see the hook's mounts.
func refuseHost() error {
	same, err := sameNamespace("mnt", 1)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return nil // without the right to inspect pid 1, there is no right to mount there either
	}
	if err != nil {
		return err
	}
	if same {
		return errors.New("the container has no mount namespace of its own; Slipway cannot give a file to it only")
	}
	return nil
}

func sameFile(fd int, path string) (bool, error) {
	var a, b unix.Stat_t
	if err := unix.Fstat(fd, &a); err != nil {
		return false, err
	}
	if err := unix.Stat(path, &b); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return a.Dev == b.Dev && a.Ino == b.Ino, nil
}
