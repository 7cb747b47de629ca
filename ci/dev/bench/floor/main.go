// Floor does what every hook must do, and no more: it enters the container, makes mount
// points, links and devices, mounts, and replaces the ld cache. It checks nothing, and
// serves only the bench. The mount points are hard links to one empty file, which is
// cheaper than many files, above all on a disk. Each file has a mount of its own.
//
// Its argument is a file with one command per line, with fields separated by tabs. "cache
// FROM" is the first. "make PATH" makes a folder. "in PATH" selects the folder for the
// lines after it: "lib NAME", "dir NAME", "sym NAME TARGET", "dev NAME".
//
// "floor runtime ARGUMENTS" does what every wrapper of runc must do: it becomes runc.
package main

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	runtime.LockOSThread()
	work := func() error { return mountPlan(os.Args[1]) }
	if os.Args[1] == "runtime" {
		work = becomeRunc
	}
	if err := work(); err != nil {
		os.Stderr.WriteString("floor: " + err.Error() + "\n")
		os.Exit(1)
	}
}

func becomeRunc() error {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return unix.Exec(runc, append([]string{"runc"}, os.Args[2:]...), os.Environ())
}

func mountPlan(plan string) error {
	lines, err := os.ReadFile(plan)
	if err != nil {
		return err
	}
	state, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	pid := stateField(string(state), `"pid":`)
	bundle := strings.Trim(stateField(string(state), `"bundle":`), `"`)
	what, rest, _ := strings.Cut(string(lines), "\n")
	cache, err := os.ReadFile(strings.TrimPrefix(what, "cache\t"))
	if err != nil {
		return err
	}
	root, err := enterContainer(pid, bundle+"/rootfs")
	if err != nil {
		return err
	}
	f := floor{root: root}
	for line := range strings.SplitSeq(strings.TrimSuffix(rest, "\n"), "\n") {
		if err := f.mountLine(strings.Split(line, "\t")); err != nil {
			return err
		}
	}
	if f.empty != "" {
		if err := unix.Unlinkat(root, f.empty, 0); err != nil {
			return err
		}
	}
	return replaceCache(root, cache)
}

// stateField returns the value after a name in the state.
func stateField(state, name string) string {
	_, after, _ := strings.Cut(state, name)
	if end := strings.IndexAny(after, ",}"); end >= 0 {
		after = after[:end]
	}
	return strings.TrimSpace(after)
}

func enterContainer(pid, rootfs string) (int, error) {
	ns, err := unix.Open("/proc/"+pid+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return -1, err
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
		return -1, err
	}
	return unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// floor holds the container's root, and the current folder on the board and in the
// container.
type floor struct {
	root, from, at int
	empty          string // the file that the mount points are hard links to
}

func (f *floor) mountLine(line []string) error {
	what, name := line[0], line[1]
	switch what {
	case "make":
		return unix.Mkdirat(f.root, name[1:], 0o755)
	case "in":
		return f.openFolder(name)
	case "sym":
		return unix.Symlinkat(line[2], f.at, name)
	case "dev":
		return unix.Mknodat(f.at, name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	case "dir":
		if err := unix.Mkdirat(f.at, name, 0o755); err != nil {
			return err
		}
	case "lib":
		if err := f.makeMountPoint(name); err != nil {
			return err
		}
	}
	return f.mountFile(name)
}

func (f *floor) openFolder(dir string) (err error) {
	if f.at != 0 {
		unix.Close(f.at)
		unix.Close(f.from)
	}
	if f.at, err = unix.Openat(f.root, dir[1:], unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	f.from, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return err
}

func (f *floor) makeMountPoint(name string) error {
	if f.empty == "" {
		f.empty = "floor.empty"
		fd, err := unix.Openat(f.root, f.empty, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		unix.Close(fd)
	}
	return unix.Linkat(f.root, f.empty, f.at, name, 0)
}

func (f *floor) mountFile(name string) error {
	fd, err := unix.OpenTree(f.from, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", f.at, name, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// replaceCache replaces the image's cache.
func replaceCache(root int, cache []byte) error {
	name := "etc/ld.so.cache." + strconv.Itoa(os.Getpid())
	fd, err := unix.Openat(root, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, cache); err != nil {
		return err
	}
	return unix.Renameat(root, name, root, "etc/ld.so.cache")
}
