// Package inject applies a plan to one container whose root file system is mounted but not yet its
// "/". The image is hostile: any name in it may be a link to anywhere. So the kernel resolves every
// path of the container to a descriptor, with the container's root as "/" (openat2, or an equally
// careful walk). The hook makes everything relative to a descriptor, by a name that is not
// followed. Sources are always paths of the board.
package inject

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

// errInTheWay means that the image has something at an entry's path. Only that entry is left out.
var errInTheWay = errors.New("the image is in the way")

// errChanged means that a file of the plan is gone or changed. Only that entry is left out.
var errChanged = errors.New("the board changed while the hook ran")

func inTheWayError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errInTheWay, fmt.Sprintf(format, args...))
}

// Result counts what the hook did in a container.
type Result struct {
	Files, Folders, Links, Devices int
	Skipped                        []string // entries that were left out, and why
	Changed                        bool     // a file of the plan is gone or changed on the board
	Compat                         string   // the image's folder of newer CUDA libraries, which are used
}

// Root is a container's root folder, for the thread that entered the container's mount namespace.
type Root struct {
	dir     *os.File
	id      uint64             // id of its mount
	owner   *owner             // whose rights the hook uses; nil for its own
	dirs    map[string]*folder // resolved folders, because most entries share theirs
	skipped map[uint64]bool    // mounts in which the hook makes nothing
	shared  map[uint64]bool    // mounts in which the hook mounts nothing
	blank   *os.File           // the empty file that serves as mount points
	blanks  bool               // there was an empty file at a mount point already
	oldAPI  bool               // mount(2) instead of descriptors of mounts
	oldWalk bool               // openat2 is missing
}

// folder is a folder of the container.
type folder struct {
	*os.File
	volume bool  // the folder is not on the container's root mount
	closed error // not nil: why the hook makes nothing in it
	noDev  bool  // device nodes in it do not open
}

// Open opens the container's root, a mount point. It refuses the board's own. Call it after Enter.
func (p Process) Open(rootfs string) (*Root, error) {
	dir, err := os.OpenFile(rootfs, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("the container's root: %w", err)
	}
	if host, err := isFileAt(dir, "/"); err != nil || host {
		dir.Close()
		return nil, errors.Join(err, fmt.Errorf("the container's root %s is the board's own; nothing is mounted there", rootfs))
	}
	if !isMountPoint(dir) {
		dir.Close()
		return nil, fmt.Errorf("the container's root %s is a folder of the board; no runtime has mounted it", rootfs)
	}
	r := &Root{dir: dir, id: mountID(dir), owner: p.owner, skipped: map[uint64]bool{}, dirs: map[string]*folder{}}
	r.dirs["/"] = &folder{File: dir}
	return r, nil
}

// SkipMounts makes the hook create nothing in mounts at these paths of the container. It is for
// mounts that crun makes read-only only after the hook.
func (r *Root) SkipMounts(paths []string) {
	for _, p := range paths {
		f, err := r.openResolved(p)
		if err != nil {
			continue // then no entry's path leads through it either
		}
		if id := mountID(f); id != r.id {
			r.skipped[id] = true
		}
		f.Close()
	}
}

// Close closes all descriptors of the Root.
func (r *Root) Close() {
	for _, f := range r.dirs {
		f.Close()
	}
	if r.blank != nil {
		r.blank.Close()
	}
}

// openResolved opens p in the container, as O_PATH, with links followed, which never lead out.
func (r *Root) openResolved(p string) (*os.File, error) {
	if !r.oldWalk {
		f, err := openInRoot(r.dir, p)
		// Linux before 5.6, or a seccomp filter that does not know the call.
		if r.oldWalk = errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM); !r.oldWalk {
			return f, err
		}
	}
	return pathrs.OpenatInRoot(r.dir, p)
}

// openInRoot opens p, as O_PATH, with all but magic links followed and with root as "/" (openat2).
func openInRoot(root *os.File, p string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	// The kernel returns EAGAIN for a ".." if anything on the machine is renamed at that time.
	fd, err := -1, error(unix.EAGAIN)
	for try := 0; try < 128 && (err == unix.EAGAIN || err == unix.EINTR); try++ {
		fd, err = unix.Openat2(int(root.Fd()), p, &how)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p, Err: err}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// Apply makes p in the container: mounts, then links, then devices. It skips entries that the image
// prevents (errInTheWay) or that have changed on the board. It stops at any other error.
func (r *Root) Apply(p plan.Plan) (Result, error) {
	var res Result
	done := func(what *int, name, from string, err error) error {
		switch {
		case err == nil:
			*what++
		case errors.Is(err, errInTheWay):
			res.Skipped = append(res.Skipped, fmt.Sprintf("%s: %v", from, err))
		case errors.Is(err, errChanged):
			res.Changed = true
			res.Skipped = append(res.Skipped, fmt.Sprintf("%s: %v", from, err))
		case errors.Is(err, unix.EROFS):
			return fmt.Errorf("%s: %s: %w; what is mounted there lacks it: mount that elsewhere, or so that it can be written to", from, name, err)
		default:
			return fmt.Errorf("%s: %s: %w", from, name, err)
		}
		return nil
	}
	for _, m := range p.Mounts {
		count := &res.Files
		if m.Folder {
			count = &res.Folders
		}
		if err := done(count, m.Path, m.From, r.mountEntry(m)); err != nil {
			return res, err
		}
	}
	for _, l := range p.Links {
		if err := done(&res.Links, l.Path, l.From, r.makeLink(l)); err != nil {
			return res, err
		}
	}
	for _, d := range p.Devices {
		if err := done(&res.Devices, d.Path, d.From, r.makeDevice(d)); err != nil {
			return res, err
		}
	}
	return res, nil
}

// openFolder opens or creates dir in the container and caches it, even if its field closed is set.
func (r *Root) openFolder(dir string) (*folder, error) {
	if f, ok := r.dirs[dir]; ok {
		return f, nil
	}
	f, err := r.openResolved(dir)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = r.makeFolder(dir)
	}
	if err != nil {
		return nil, imageError(err, dir)
	}
	found, err := r.checkFolder(f, dir)
	if err != nil {
		f.Close()
		return nil, err
	}
	r.dirs[dir] = found
	return found, nil
}

// makeFolder creates the folder dir in the container, with those above it, and opens it.
func (r *Root) makeFolder(dir string) (*os.File, error) {
	parent, err := r.openFolder(path.Dir(dir))
	if err != nil {
		return nil, err
	}
	base := path.Base(dir)
	err = r.addName(parent, base, func() error { return unix.Mkdirat(int(parent.Fd()), base, 0o755) })
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("mkdir %s: %w", dir, err)
	}
	return openat(parent.File, base, unix.O_PATH|unix.O_DIRECTORY)
}

// imageError turns errors that an image can cause into errInTheWay. The system's stay as they are.
func imageError(err error, p string) error {
	if errors.Is(err, errInTheWay) {
		return err
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) || errors.Is(err, fs.ErrNotExist) {
		return inTheWayError("%s is no folder there, nor a link to one", p)
	}
	return err
}

// checkFolder returns f as a folder. It refuses other files and kernel file systems; f stays open.
func (r *Root) checkFolder(f *os.File, dir string) (*folder, error) {
	if kind, err := fileKind(f); err != nil || kind != unix.S_IFDIR {
		return nil, errors.Join(err, inTheWayError("%s is no folder there, nor a link to one", dir))
	}
	stat, err := refuseKernelFiles(f, dir)
	if err != nil {
		return nil, err
	}
	volume, closed := r.checkVolume(f, dir)
	return &folder{f, volume, closed, stat.Flags&unix.ST_NODEV != 0}, nil
}

// refuseKernelFiles returns f's file system, or refuses it as the kernel's own. An image's link may
// lead to /proc or /sys, where creating a name has effects, and covering one hides a setting.
func refuseKernelFiles(f *os.File, p string) (stat unix.Statfs_t, err error) {
	if err := unix.Fstatfs(int(f.Fd()), &stat); err != nil {
		return stat, err
	}
	switch uint32(stat.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.BINFMTFS_MAGIC,
		unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC, unix.RDTGROUP_SUPER_MAGIC, unix.SELINUX_MAGIC, unix.SMACK_MAGIC:
		return stat, inTheWayError("%s leads into the kernel's own files", p)
	}
	return stat, nil
}

// addName calls make, which creates base in dir. If base exists, it returns EEXIST.
func (r *Root) addName(dir *folder, base string, make func() error) error {
	// If the container's root may not create names here, make would not report whether base exists.
	if r.owner != nil || dir.closed != nil {
		var stat unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), base, &stat, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.ENOENT) {
			return cmp.Or(err, error(unix.EEXIST))
		}
	}
	return r.changeName(dir, make)
}

// changeName calls do, which makes or removes one name in dir, as the container's root. If
// dir.closed is set, it only returns that error.
func (r *Root) changeName(dir *folder, do func() error) error {
	if dir.closed != nil {
		return dir.closed
	}
	err := r.owner.runIn(dir.File, do)
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w; the container's root may not write there", err)
	}
	return err
}

// openParent opens the folder of p, or creates it, and returns it with p's last element.
func (r *Root) openParent(p string) (*folder, string, error) {
	f, err := r.openFolder(path.Dir(p))
	return f, path.Base(p), err
}

// openat opens base in dir. It does not follow a symlink.
func openat(dir *os.File, base string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), base, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: base, Err: err}
	}
	return os.NewFile(uintptr(fd), base), nil
}

func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// fileKind returns the type in f's mode, such as S_IFREG.
func fileKind(f *os.File) (uint32, error) {
	var stat unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &stat)
	return stat.Mode & unix.S_IFMT, err
}

// readlink returns the text of the symlink base in dir, "" if base is no symlink.
func readlink(dir *os.File, base string) string {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), base, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}
