// Floor is what a hook cannot do without, and no more: it enters the container, makes
// mount points, links and devices, mounts, and puts an ld cache in place. It checks
// nothing and trusts everybody, and serves only the bench, which measures it. The mount
// points are names of one empty file: that is cheaper than many files, above all on a
// disk.
//
// Its argument is a file with a line for each thing, of fields with tabs between:
// "cache FROM", "dir PATH", "file PATH", "folder PATH", "link PATH TARGET", "null PATH".
package main

import (
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	runtime.LockOSThread()
	if err := run(os.Args[1]); err != nil {
		os.Stderr.WriteString("floor: " + err.Error() + "\n")
		os.Exit(1)
	}
}

func run(plan string) error {
	lines, err := os.ReadFile(plan)
	if err != nil {
		return err
	}
	state, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	pid := field(string(state), `"pid":`)
	bundle := strings.Trim(field(string(state), `"bundle":`), `"`)
	what, rest, _ := strings.Cut(string(lines), "\n")
	cache, err := os.ReadFile(strings.TrimPrefix(what, "cache\t"))
	if err != nil {
		return err
	}
	root, err := enter(pid, bundle+"/rootfs")
	if err != nil {
		return err
	}
	fd, err := unix.Openat(root, empty, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	unix.Close(fd)
	for line := range strings.SplitSeq(strings.TrimSuffix(rest, "\n"), "\n") {
		if err := give(root, strings.Split(line, "\t")); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(root, empty, 0); err != nil {
		return err
	}
	return put(root, cache)
}

// field is what stands behind the name in the state.
func field(state, name string) string {
	_, after, _ := strings.Cut(state, name)
	if end := strings.IndexAny(after, ",}"); end >= 0 {
		after = after[:end]
	}
	return strings.TrimSpace(after)
}

func enter(pid, rootfs string) (int, error) {
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

// empty is the file whose names the mount points are.
const empty = "floor.empty"

func give(root int, f []string) error {
	at := f[1][1:] // in the container, from its root
	switch f[0] {
	case "dir":
		return unix.Mkdirat(root, at, 0o755)
	case "link":
		return unix.Symlinkat(f[2], root, at)
	case "null":
		return unix.Mknodat(root, at, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	case "folder":
		if err := unix.Mkdirat(root, at, 0o755); err != nil {
			return err
		}
	case "file":
		if err := unix.Linkat(root, empty, root, at, 0); err != nil {
			return err
		}
	}
	return mount(f[1], root, at)
}

func mount(from string, root int, at string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", root, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// put puts the cache in place of the image's.
func put(root int, cache []byte) error {
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
