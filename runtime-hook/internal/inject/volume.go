package inject

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A volume is whatever is mounted in a container beside its root: most often a
// folder of the board. A link of the image may lead into one, where neither the
// image's author nor the container's user need have any rights. So:
//   - at the end of such a link, the hook makes nothing, and reads nothing to copy it;
//   - the hook may mount over files of a volume, but never removes or replaces them;
//   - the hook mounts nothing in a volume that the board shares, as the board would see it.

// ReadSharedMounts finds the mounts that propagate to the board, so that the hook mounts nothing in
// them. Call it if the container may have such volumes.
func (r *Root) ReadSharedMounts() error {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	r.shared = sharedMounts(string(text))
	return nil
}

// sharedMounts returns the ids of the mounts in mountinfo that are shared with others.
func sharedMounts(mountinfo string) map[uint64]bool {
	ids := map[uint64]bool{}
	for _, line := range strings.Split(mountinfo, "\n") {
		before, _, _ := strings.Cut(line, " - ")
		f := strings.Fields(before)
		for _, option := range f[min(6, len(f)):] {
			if strings.HasPrefix(option, "shared:") {
				id, _ := strconv.ParseUint(f[0], 10, 64)
				ids[id] = true
			}
		}
	}
	return ids
}

// checkVolume reports whether folder f at dir is in a volume, and why nothing is made in it.
func (r *Root) checkVolume(f *os.File, dir string) (volume bool, closed error) {
	id := mountID(f)
	switch {
	case id == r.id:
		return false, nil
	case r.shared[id]:
		return true, sharedVolumeError(dir)
	case !r.leadsTo(dir, f):
		return true, inTheWayError("a link of the image leads from %s into a volume", dir)
	case r.skipped[id]:
		return true, unix.EROFS
	}
	return true, nil
}

func sharedVolumeError(p string) error {
	return inTheWayError("%s is in a volume that the board shares (shared, rshared), which would get the mount too", p)
}

// refuseCover refuses f as a mount point in a volume that the board shares, or as the root.
func (r *Root) refuseCover(f *os.File, p string) error {
	if len(r.shared) > 0 && r.shared[mountID(f)] {
		return sharedVolumeError(p)
	}
	same, err := sameFile(f, r.dir)
	if err == nil && same {
		err = inTheWayError("%s is the container's root there", p)
	}
	return err
}

// refuseCopy refuses a file not for all users to read, or at the end of a link into a volume.
func (r *Root) refuseCopy(f *os.File, p string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return err
	}
	if stat.Mode&0o004 == 0 {
		return fmt.Errorf("it is not for everybody to read (mode %o)", stat.Mode&0o7777)
	}
	if mountID(f) != r.id && !r.leadsTo(p, f) {
		return errors.New("it is a link of the image into a volume")
	}
	return nil
}

// leadsTo reports whether the path p leads to f without any symlink.
func (r *Root) leadsTo(p string, f *os.File) bool {
	at := r.dir
	for _, part := range strings.Split(strings.Trim(p, "/"), "/") {
		next, err := openat(at, part, unix.O_PATH)
		if at != r.dir {
			at.Close()
		}
		if err != nil {
			return false
		}
		at = next
	}
	defer at.Close()
	same, err := sameFile(at, f)
	return err == nil && same && mountID(at) == mountID(f)
}

// mountID returns the id of the mount that f is on, 0 if it is unknown.
func mountID(f *os.File) uint64 {
	var stat unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &stat)
	// qemu-user sets the mask, but leaves the id 0.
	if err == nil && stat.Mask&unix.STATX_MNT_ID != 0 && stat.Mnt_id != 0 {
		return stat.Mnt_id
	}
	return oldMountID(f)
}

// oldMountID reads the mount id of f from /proc, for Linux before 5.8; 0 if it is unknown.
func oldMountID(f *os.File) uint64 {
	info, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	_, text, _ := strings.Cut(string(info), "mnt_id:")
	text, _, _ = strings.Cut(text, "\n")
	id, _ := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	return id
}

// isMountPoint reports whether the folder dir is itself a mount point, as the root of a container
// is before the runtime pivots into it.
func isMountPoint(dir *os.File) bool {
	above, err := openat(dir, "..", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer above.Close()
	return mountID(dir) != mountID(above)
}
