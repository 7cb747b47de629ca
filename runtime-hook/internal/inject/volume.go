package inject

import (
	"bufio"
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
//   - where such a link leads, nothing is made, and nothing is read to be copied;
//   - what a volume has is covered at most, and never removed or replaced;
//   - nothing is mounted in a volume that the board shares, as the board would see it.

// ReadSharedMounts must be called if the container may have volumes that the board
// shares.
func (r *Root) ReadSharedMounts() error {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	r.shared = sharedMounts(string(text))
	return nil
}

// sharedMounts returns the mounts of a mountinfo that propagate mounts on them to
// others.
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

// checkVolume reports whether the folder f, which dir leads to, is in a volume. closed
// says why nothing may be made in it.
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

// refuseCover refuses what nothing may be mounted on.
func (r *Root) refuseCover(f *os.File, p string) error {
	if len(r.shared) > 0 && r.shared[mountID(f)] {
		return sharedVolumeError(p)
	}
	same, err := sameFiles(f, r.dir)
	if err == nil && same {
		err = inTheWayError("%s is the container's root there", p)
	}
	return err
}

// refuseCopy refuses a file that the container's user might not be able to read.
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

// leadsTo reports whether p leads to f without any link.
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
	same, err := sameFiles(at, f)
	return err == nil && same && mountID(at) == mountID(f)
}

func sameFiles(f, g *os.File) (bool, error) {
	var a, b unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &a); err != nil {
		return false, err
	}
	if err := unix.Fstat(int(g.Fd()), &b); err != nil {
		return false, err
	}
	return a.Dev == b.Dev && a.Ino == b.Ino, nil
}

// mountID returns the id of the mount that f is on, 0 if it is unknown.
func mountID(f *os.File) uint64 {
	var stat unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &stat)
	// qemu-user says that it tells, and leaves it 0.
	if err == nil && stat.Mask&unix.STATX_MNT_ID != 0 && stat.Mnt_id != 0 {
		return stat.Mnt_id
	}
	return oldMountID(f)
}

// oldMountID works on Linux before 5.8.
func oldMountID(f *os.File) uint64 {
	info, err := os.Open(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if err != nil {
		return 0
	}
	defer info.Close()
	for lines := bufio.NewScanner(info); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "mnt_id:"); ok {
			id, _ := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
			return id
		}
	}
	return 0
}

// isMountPoint reports whether something is mounted at the folder dir itself, as all
// runtimes do with the root of a container before they pivot into it.
func isMountPoint(dir *os.File) bool {
	above, err := openat(dir, "..", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer above.Close()
	return mountID(dir) != mountID(above)
}
