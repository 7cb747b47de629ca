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

// main adds the board's files to the container of the OCI state on stdin, by the list in args[1].
// It replaces the ld cache. If args[1] is "runtime", it only becomes runc.
func main() {
	runtime.LockOSThread()
	if os.Args[1] == "runtime" {
		runc := must(exec.LookPath("runc"))
		exitOn(unix.Exec(runc, append([]string{"runc"}, os.Args[2:]...), os.Environ()))
	}
	what, rest, _ := strings.Cut(string(must(os.ReadFile(os.Args[1]))), "\n")
	state := string(must(io.ReadAll(os.Stdin)))
	cache := must(os.ReadFile(strings.TrimPrefix(what, "cache\t")))
	f := floor{root: enterContainer(stateField(state, `"pid":`), strings.Trim(stateField(state, `"bundle":`), `"`)+"/rootfs")}
	for line := range strings.SplitSeq(strings.TrimSuffix(rest, "\n"), "\n") {
		f.mountLine(strings.Split(line, "\t"))
	}
	if f.empty != "" {
		exitOn(unix.Unlinkat(f.root, f.empty, 0))
	}
	name := "etc/ld.so.cache." + strconv.Itoa(os.Getpid())
	fd := must(unix.Openat(f.root, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644))
	must(unix.Write(fd, cache))
	exitOn(unix.Renameat(f.root, name, f.root, "etc/ld.so.cache"))
}

// must returns value, or ends the program if err is set.
func must[T any](value T, err error) T {
	exitOn(err)
	return value
}

// exitOn prints err and ends the program, if err is set.
func exitOn(err error) {
	if err != nil {
		os.Stderr.WriteString("floor: " + err.Error() + "\n")
		os.Exit(1)
	}
}

// stateField returns the JSON value after a name in the OCI state, found by a plain text search.
func stateField(state, name string) string {
	_, after, _ := strings.Cut(state, name)
	if end := strings.IndexAny(after, ",}"); end >= 0 {
		after = after[:end]
	}
	return strings.TrimSpace(after)
}

// enterContainer moves the calling thread into the mount namespace of pid, and returns a descriptor
// of rootfs, a path in that namespace. An error ends the program.
func enterContainer(pid, rootfs string) int {
	ns := must(unix.Open("/proc/"+pid+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0))
	exitOn(unix.Unshare(unix.CLONE_FS))
	exitOn(unix.Setns(ns, unix.CLONE_NEWNS))
	return openFolder(unix.AT_FDCWD, rootfs)
}

func openFolder(at int, name string) int {
	return must(unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
}

// floor has file descriptors of the container's root, and of the current folder on the board (from)
// and in the container (at).
type floor struct {
	root, from, at int
	empty          string // the file that the mount points are hard links to
}

// mountLine runs one command of the list, and ends the program on an error: "in" selects the folder
// for later lines, "make", "sym" and "dev" make a folder, a link or a null device, and "dir" and
// "lib" mount the board's folder or file.
func (f *floor) mountLine(line []string) {
	what, name := line[0], line[1]
	switch what {
	case "make":
		exitOn(unix.Mkdirat(f.root, name[1:], 0o755))
	case "in":
		if f.at != 0 {
			unix.Close(f.at)
			unix.Close(f.from)
		}
		f.at, f.from = openFolder(f.root, name[1:]), openFolder(unix.AT_FDCWD, name)
	case "sym":
		exitOn(unix.Symlinkat(line[2], f.at, name))
	case "dev":
		exitOn(unix.Mknodat(f.at, name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	case "dir":
		exitOn(unix.Mkdirat(f.at, name, 0o755))
		f.mountFile(name)
	case "lib":
		if f.empty == "" {
			f.empty = "floor.empty"
			unix.Close(must(unix.Openat(f.root, f.empty, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)))
		}
		exitOn(unix.Linkat(f.root, f.empty, f.at, name, 0))
		f.mountFile(name)
	}
}

// mountFile mounts a file or folder of f.from read-only on the same name, which exists, in f.at.
func (f *floor) mountFile(name string) {
	fd := must(unix.OpenTree(f.from, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	exitOn(unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr))
	exitOn(unix.MoveMount(fd, "", f.at, name, unix.MOVE_MOUNT_F_EMPTY_PATH))
}
