package inject

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

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
