// Package inject applies a plan to one container whose root file system is mounted but not yet its
// "/". The image is hostile: any name in it may be a link to anywhere. So the kernel resolves every
// path of the container to a descriptor, with the container's root as "/" (openat2, or an equally
// careful walk). Everything is made relative to a descriptor, by a name that is not followed.
// Sources are always paths of the board.
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

// errInTheWay means that the image has something in the way that cannot be covered. The
// container starts without that one entry.
var errInTheWay = errors.New("the image is in the way")

// errChanged means that the board no longer has a file of the plan. The container
// starts without that one entry.
var errChanged = errors.New("the board changed while the hook ran")

func inTheWayError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errInTheWay, fmt.Sprintf(format, args...))
}

// Result is what was done.
type Result struct {
	Files, Folders, Links, Devices int
	Before                         int      // what the container had from the board already
	Skipped                        []string // what the image did not let in, and why
	Changed                        bool     // the board lacks something of the plan by now
	Compat                         string   // the image's folder of newer CUDA libraries, which are used
}

// Root is the root folder of one container. Its methods must run on the thread
// that entered the container's mount namespace.
type Root struct {
	dir     *os.File
	id      uint64             // of its mount
	inside  bool               // the hook runs in the container
	owner   *owner             // who makes things; nil for the hook itself
	dirs    map[string]*folder // resolved once; most entries share theirs
	skipped map[uint64]bool    // mounts that nothing is made in
	shared  map[uint64]bool    // mounts that nothing is mounted in
	blank   *os.File           // the empty file at the mount points
	blanks  bool               // it had blanks already
	oldAPI  bool               // mount(2) instead of descriptors of mounts
	oldWalk bool               // no openat2
}

// folder is a folder of the container.
type folder struct {
	*os.File
	volume bool  // it is not on the container's root mount
	closed error // why nothing is made in it
	noDev  bool  // nodes in it do not open
}

// Open opens the container's root folder, after Enter.
func (p Process) Open(rootfs string) (*Root, error) {
	dir, err := os.OpenFile(rootfs, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("the container's root: %w", err)
	}
	if host, err := sameFile(int(dir.Fd()), "/"); err != nil || host {
		dir.Close()
		return nil, errors.Join(err, fmt.Errorf("the container's root %s is the board's own; nothing is mounted there", rootfs))
	}
	if !isMountPoint(dir) {
		dir.Close()
		return nil, fmt.Errorf("the container's root %s is a folder of the board; no runtime has mounted it", rootfs)
	}
	r := &Root{dir: dir, id: mountID(dir), inside: p.pid == 0, owner: p.owner, skipped: map[uint64]bool{}, dirs: map[string]*folder{}}
	r.dirs["/"] = &folder{File: dir}
	return r, nil
}

// SkipMounts makes nothing in what is mounted at the paths in the container. It is for
// read-only mounts: crun makes them read-only after the hook.
func (r *Root) SkipMounts(paths []string) {
	for _, p := range paths {
		f, err := r.openResolved(p)
		if err != nil {
			continue // then nothing is reached through it either
		}
		if id := mountID(f); id != r.id {
			r.skipped[id] = true
		}
		f.Close()
	}
}

// Close closes all descriptors.
func (r *Root) Close() {
	for _, f := range r.dirs {
		f.Close()
	}
	if r.blank != nil {
		r.blank.Close()
	}
}

// openResolved opens p in the container with all links followed, none of which leads
// out.
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

// Apply makes p in the container. It skips what the image is in the way of. It stops at
// what the system refuses.
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
		case errors.Is(err, unix.EROFS) && r.readOnly():
			return fmt.Errorf("%s: %s: %w; crun makes a read-only root so before createContainer: there, use createRuntime or prestart", from, name, err)
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
		err := r.makeLink(l)
		// glibc finds the library without this link.
		if err != nil && l.Soname {
			err = inTheWayError("%s: %v", l.Path, err)
		}
		if err := done(&res.Links, l.Path, l.From, err); err != nil {
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

// readOnly reports whether the container's root is read-only already, and would not
// have been at an earlier stage.
func (r *Root) readOnly() bool {
	var stat unix.Statfs_t
	err := unix.Fstatfs(int(r.dir.Fd()), &stat)
	return r.inside && err == nil && stat.Flags&unix.ST_RDONLY != 0
}

// openFolder opens dir in the container. It creates dir if it is missing.
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

// imageError turns errors that an image can cause into errInTheWay. It keeps those of
// the system.
func imageError(err error, p string) error {
	if errors.Is(err, errInTheWay) {
		return err
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) || errors.Is(err, fs.ErrNotExist) {
		return inTheWayError("%s is no folder there, nor a link to one", p)
	}
	return err
}

// checkFolder refuses what is no folder, and the kernel's own file systems.
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

// refuseKernelFiles refuses the kernel's own file systems. A link of the image may lead
// into the container's /proc or /sys. Creating a name there has effects, and covering
// one hides a setting.
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

// addName runs make, which makes base in dir, unless base exists.
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

// changeName runs do, which makes or removes one name in dir, for the container's root.
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

// openParent opens the folder that p is made in.
func (r *Root) openParent(p string) (*folder, string, error) {
	f, err := r.openFolder(path.Dir(p))
	return f, path.Base(p), err
}

// openat opens base in dir and does not follow it.
func openat(dir *os.File, base string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), base, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: base, Err: err}
	}
	return os.NewFile(uintptr(fd), base), nil
}

func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

func fileKind(f *os.File) (uint32, error) {
	var stat unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &stat)
	return stat.Mode & unix.S_IFMT, err
}

// readlink returns the text of the link base, "" if it is none.
func readlink(dir *os.File, base string) string {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), base, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}
