package inject

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

// mountFlags are those of all files and folders. Devices have no NODEV, as they would not open.
const mountFlags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV

// mountEntry mounts the file or folder m. It mounts a folder at m.Listed too, unless a link in the
// container already leads from there to it.
func (r *Root) mountEntry(m plan.Mount) error {
	if !m.Folder {
		return r.coverFile(m.Source, m.Path, unix.S_IFREG, mountFlags)
	}
	if err := r.mountFolder(m.Source, m.Path); err != nil || m.Listed == "" {
		return err
	}
	// If the container has the board's links, Listed now leads to the folder.
	if r.hasFile(m.Source, m.Listed) {
		return nil
	}
	err := r.mountFolder(m.Source, m.Listed)
	if errors.Is(err, unix.EROFS) {
		return inTheWayError("%s is given, and not at %s too: %v", m.Path, m.Listed, err)
	}
	return err
}

// mountFolder mounts the board's folder source over p in the container, and creates p if missing.
func (r *Root) mountFolder(source, p string) error {
	at, err := r.openFolder(p)
	if err != nil {
		return err
	}
	// The cached descriptor of p would refer to the folder that the mount hides.
	defer delete(r.dirs, p)
	defer at.Close()
	if err := r.refuseCover(at.File, p); err != nil {
		return err
	}
	err = r.bindMount(source, p, place{dir: at.File}, unix.S_IFDIR, mountFlags)
	// The kernel refuses this in a user namespace: it would uncover what a board's mount hides.
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w; a container with a user namespace gets no folder in which the board has a mount: list what is wanted of it", err)
	}
	return err
}

// place is a mount point: base in dir, or dir itself if base is "".
type place struct {
	dir  *os.File
	base string
}

// closeFile closes dir if it is the mount point itself; other folders belong to the Root.
func (p place) closeFile() {
	if p.base == "" {
		p.dir.Close()
	}
}

// openFile opens the regular file at the mount point (O_PATH). Without a base, it is p.dir itself.
func (p place) openFile() (*os.File, error) {
	if p.base == "" {
		return p.dir, nil
	}
	f, err := openat(p.dir, p.base, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	if kind, err := fileKind(f); err != nil || kind != unix.S_IFREG {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("%s changed while it was made", p.base))
	}
	return f, nil
}

// coverFile mounts source, of this kind, over the container's file p, and creates p if missing.
func (r *Root) coverFile(source, p string, kind uint32, flags uintptr) error {
	at, err := r.mountPoint(p, kind)
	if err != nil {
		return err
	}
	defer at.closeFile()
	return r.bindMount(source, p, at, kind, flags)
}

// mountPoint returns the file p in the container as a mount point for this kind, and creates it if
// missing. If p is a link to a file, that file is the mount point. Other links are replaced.
func (r *Root) mountPoint(p string, kind uint32) (place, error) {
	dir, base, err := r.openParent(p)
	if err != nil {
		return place{}, err
	}
	err = r.createFile(dir, base)
	if !errors.Is(err, unix.EEXIST) {
		return place{dir.File, base}, err
	}
	old, err := openat(dir.File, base, unix.O_PATH)
	if err != nil {
		return place{}, err
	}
	have, err := fileKind(old)
	if err == nil && have != unix.S_IFLNK {
		return r.coverablePlace(old, p, kind)
	}
	old.Close()
	// Only a file counts at a link's end: a node there is another device, such as /dev/null.
	if end, err := r.openResolved(p); err == nil {
		if at, err := r.coverablePlace(end, p, unix.S_IFREG); err == nil {
			return at, nil
		}
	}
	if err := r.removeLink(dir, base); err != nil {
		return place{}, err
	}
	return place{dir.File, base}, r.createFile(dir, base)
}

// coverablePlace returns f, which the container has at p, as a mount point if it is a regular file,
// or of this kind, and may be covered. Otherwise it closes f. It notes empty files for HadBlanks.
func (r *Root) coverablePlace(f *os.File, p string, kind uint32) (place, error) {
	var stat unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &stat)
	if have := stat.Mode & unix.S_IFMT; err == nil && have != unix.S_IFREG && have != kind {
		err = inTheWayError("%s exists and is no file", p)
	}
	r.blanks = r.blanks || isBlank(&stat)
	if err == nil {
		_, err = refuseKernelFiles(f, p)
	}
	if err == nil {
		err = r.refuseCover(f, p)
	}
	if err != nil {
		f.Close()
		return place{}, err
	}
	return place{dir: f}, nil
}

// createFile creates an empty file as a mount point, or returns EEXIST. All but the first are hard
// links to that: a new inode costs ten times as much on a disk, and mounts cover all of them.
func (r *Root) createFile(dir *folder, base string) error {
	return r.addName(dir, base, func() error {
		if r.blank != nil {
			// If the blank is on another mount, or has too many names, a new one is made below.
			if err := nameBlank(r.blank, dir.File, base); err == nil || errors.Is(err, unix.EEXIST) {
				return err
			}
		}
		if err := unix.Mknodat(int(dir.Fd()), base, unix.S_IFREG|0o644, 0); err != nil {
			return err
		}
		r.keepBlank(dir.File, base)
		return nil
	})
}

// nameBlank links the empty file blank to base in dir; by /proc without CAP_DAC_READ_SEARCH.
func nameBlank(blank, dir *os.File, base string) error {
	err := unix.Linkat(int(blank.Fd()), "", int(dir.Fd()), base, unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.ENOENT) {
		err = unix.Linkat(unix.AT_FDCWD, fdPath(blank), int(dir.Fd()), base, unix.AT_SYMLINK_FOLLOW)
	}
	return err
}

// keepBlank keeps the new file base as the blank for further hard links, but only if it is empty
// and has one name, so that it is not somebody's file.
func (r *Root) keepBlank(dir *os.File, base string) {
	f, err := openat(dir, base, unix.O_PATH)
	if err != nil {
		return
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil || stat.Mode != unix.S_IFREG|0o644 || stat.Size != 0 || stat.Nlink != 1 {
		f.Close()
		return
	}
	if r.blank != nil {
		r.blank.Close()
	}
	r.blank = f
}

// bindMount mounts source, a file of the board with this kind, at the place, which is p in the
// container. It does not mount the mounts below source, and later mounts do not propagate. It uses
// mount(2) if the kernel lacks the new mount calls.
func (r *Root) bindMount(source, p string, at place, kind uint32, flags uintptr) error {
	if r.oldAPI {
		return r.bindOld(source, p, at, kind, flags)
	}
	err := bindNew(source, at, kind, flags)
	// Linux before 5.12, or a seccomp filter without these calls.
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		r.oldAPI = true
		return r.bindOld(source, p, at, kind, flags)
	}
	return err
}

// bindNew mounts source with the new mount calls. It sets all flags before it attaches the mount,
// so the mount is never writable in the container.
func bindNew(source string, at place, kind uint32, flags uintptr) error {
	fd, err := cloneMount(source)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %s no longer exists", errChanged, source)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", source, err)
	}
	defer unix.Close(fd)
	if err := checkKind(fd, source, kind); err != nil {
		return err
	}
	// The three flags have the same values here as with mount(2).
	attr := unix.MountAttr{Attr_set: uint64(flags), Propagation: unix.MS_PRIVATE}
	if err := setMount(fd, &attr); err != nil {
		return fmt.Errorf("mount flags: %w", err)
	}
	if err := attachMount(fd, at.dir, at.base); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}

// bindOld mounts source with mount(2), by /proc paths of descriptors. The flags need a second call
// on the new mount. So bindOld opens the place again, and checks that it is what was just mounted;
// if not, it unmounts it.
func (r *Root) bindOld(source, p string, at place, kind uint32, flags uintptr) error {
	on, err := at.openFile()
	if err != nil {
		return err
	}
	if at.base != "" {
		defer on.Close()
	}
	src, err := os.OpenFile(source, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %s no longer exists", errChanged, source)
	}
	if err != nil {
		return err
	}
	defer src.Close()
	if err := checkKind(int(src.Fd()), source, kind); err != nil {
		return err
	}
	if err := unix.Mount(fdPath(src), fdPath(on), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if err := r.setOld(src, p, at, flags); err != nil {
		// The mount is writable. Unmount what is on the descriptor, wherever that is by now.
		return errors.Join(err, unix.Unmount(fdPath(on), unix.MNT_DETACH))
	}
	return nil
}

// setOld checks that src is mounted at the place, sets that mount's flags, and makes it private.
func (r *Root) setOld(src *os.File, p string, at place, flags uintptr) error {
	top, err := r.openMounted(p, at)
	if err != nil {
		return err
	}
	defer top.Close()
	if same, err := sameFile(top, src); err != nil || !same {
		return errors.Join(err, fmt.Errorf("%s changed while it was mounted", p))
	}
	kept, err := lockedFlags(src)
	if err != nil {
		return err
	}
	if err := unix.Mount("", fdPath(top), "", unix.MS_BIND|unix.MS_REMOUNT|flags|kept, ""); err != nil {
		return fmt.Errorf("mount flags: %w", err)
	}
	return unix.Mount("", fdPath(top), "", unix.MS_PRIVATE, "")
}

// checkKind returns an error if source, which is open on fd, no longer has the kind that it had in
// the plan. A FIFO, for example, can be written to in a read-only mount.
func checkKind(fd int, source string, kind uint32) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != kind {
		return fmt.Errorf("%w: %s is of another kind now", errChanged, source)
	}
	return nil
}

// openMounted opens what is now mounted at the place, which is p in the container.
func (r *Root) openMounted(p string, at place) (*os.File, error) {
	if at.base == "" {
		return r.openResolved(p)
	}
	return openat(at.dir, at.base, unix.O_PATH)
}

// lockedFlags returns the flags of f's mount, which a remount must keep in a user namespace.
func lockedFlags(f *os.File) (uintptr, error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &stat); err != nil {
		return 0, err
	}
	const all = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME
	return uintptr(stat.Flags) & all, nil
}

// Lacks returns p without the mounts and links that the container already has from the board; all
// of p if the first mount is missing. A CDI spec and a hooks folder may both call the hook.
func (r *Root) Lacks(p plan.Plan) plan.Plan {
	// In the common case, this is the first hook, and one check shows that.
	if len(p.Mounts) > 0 && !r.hasMount(p.Mounts[0]) {
		return p
	}
	p.Mounts = slices.DeleteFunc(slices.Clone(p.Mounts), r.hasMount)
	p.Links = slices.DeleteFunc(slices.Clone(p.Links), r.hasLink)
	return p
}

func (r *Root) hasMount(m plan.Mount) bool {
	return r.hasFile(m.Source, m.Path) && (m.Listed == "" || r.hasFile(m.Source, m.Listed))
}

// hasFile reports whether the container has at p the board's source, which no image can have.
func (r *Root) hasFile(source, p string) bool {
	f, err := r.openResolved(p)
	if err != nil {
		return false
	}
	defer f.Close()
	same, err := isFileAt(f, source)
	return err == nil && same
}

// hasLink reports whether the container has the link l, with the same text.
func (r *Root) hasLink(l plan.Link) bool {
	dir, err := r.openResolved(path.Dir(l.Path))
	if err != nil {
		return false
	}
	defer dir.Close()
	return readlink(dir, path.Base(l.Path)) == l.Target
}
