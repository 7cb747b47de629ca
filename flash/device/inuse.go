package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/flash/tegra"
)

// uses maps device numbers (major:minor) to descriptions of what uses the device.
type uses map[string][]string

// systemMounts are the mount points of a running system. Disks mounted there are never written.
var systemMounts = []string{"/", "/usr", "/boot", "/boot/efi", "/boot/firmware", "/efi", "/nix", "/sysroot"}

const systemPrefix = "holds the running system: "

// findUses returns what uses each block device: mounts, swap, btrfs and loop devices.
func (m machine) findUses() (uses, error) {
	found := uses{}
	if err := m.addAllMounts(found); err != nil {
		return nil, err
	}
	swaps, err := os.ReadFile(filepath.Join(m.proc, "swaps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("find out where swap is: %w", err)
	}
	m.addSwaps(found, string(swaps))
	m.addBtrfs(found)
	m.addLoops(found)
	return found, nil
}

// addUse adds a use of the device with a number once; none if the number is "".
func (u uses) addUse(number, what string) {
	if number != "" && !slices.Contains(u[number], what) {
		u[number] = append(u[number], what)
	}
}

// addAllMounts adds the mounts of every process's mount namespace that this user may read. Those of
// a container or of a desktop's sandbox are not in this program's.
func (m machine) addAllMounts(u uses) error {
	data, err := os.ReadFile(filepath.Join(m.proc, "self/mountinfo"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find out what is mounted: %w", err)
	}
	m.addMounts(u, string(data), "")
	seen := map[string]bool{m.mountNamespace("self"): true, "": true}
	for _, process := range m.listProcesses() {
		namespace := m.mountNamespace(process)
		if seen[namespace] && process != "1" {
			continue
		}
		// It may be gone, or another user's; the kernel then refuses to write to its mounts.
		if data, err := os.ReadFile(filepath.Join(m.proc, process, "mountinfo")); err == nil {
			seen[namespace] = true
			of := m.programName(process)
			if process == "1" {
				of = ""
			}
			m.addMounts(u, string(data), of)
		}
	}
	return nil
}

// listProcesses returns the numbers of all processes, the smallest first.
func (m machine) listProcesses() []string {
	entries, _ := os.ReadDir(m.proc) // without it, there are none to be seen
	var all []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, e.Name())
		}
	}
	slices.SortFunc(all, compareNumbered)
	return all
}

// mountNamespace returns the name of a process's mount namespace; "" if this user may not read it.
func (m machine) mountNamespace(process string) string {
	name, err := os.Readlink(filepath.Join(m.proc, process, "ns/mnt"))
	if err != nil {
		return ""
	}
	return name
}

// programName names a process for people.
func (m machine) programName(process string) string {
	return fmt.Sprintf("%s (process %s)", readAttribute(filepath.Join(m.proc, process), "comm"), process)
}

// addMounts adds the mounts in a mountinfo file, with lines like
//
//	36 35 8:17 / /media/card rw,noatime shared:1 - ext4 /dev/sdb1 rw
//
// of is the program whose namespace it is; "" for this program's or process 1's. The mounts of
// other programs never count as the system's, and are added only if the device has no use yet.
func (m machine) addMounts(u uses, mountinfo, of string) {
	for line := range strings.Lines(mountinfo) {
		mount, origin, ok := strings.Cut(line, " - ")
		f, from := strings.Fields(mount), strings.Fields(origin)
		if !ok || len(f) < 5 || len(from) < 2 {
			continue
		}
		at := tegra.UnescapePath(f[4])
		what := "mounted on " + printableText(at)
		switch {
		case of != "":
			what += " for " + of
		case slices.Contains(systemMounts, at):
			what = systemPrefix + at
		}
		for _, device := range m.behindMount(f[2], from) {
			if of == "" || len(u[device]) == 0 {
				u.addUse(device, what)
			}
		}
	}
}

// behindMount returns the device numbers below a mount. from is its type, source and options. It
// resolves an overlay or a file system on several disks, whose own number is no device's.
func (m machine) behindMount(number string, from []string) []string {
	if !strings.HasPrefix(number, "0:") {
		return []string{number}
	}
	var found []string
	for source := range strings.SplitSeq(tegra.UnescapePath(from[1]), ":") { // bcachefs names all its disks
		found = append(found, m.numberOf(source))
	}
	if from[0] != "overlay" || len(from) < 3 {
		return found
	}
	for option := range strings.SplitSeq(from[2], ",") {
		key, folders, _ := strings.Cut(tegra.UnescapePath(option), "=")
		if key == "lowerdir" || key == "upperdir" {
			for folder := range strings.SplitSeq(folders, ":") {
				found = append(found, m.numberOf(folder))
			}
		}
	}
	return found
}

// addSwaps adds the use "swap" from /proc/swaps: a heading, then lines that begin with a path.
func (m machine) addSwaps(u uses, swaps string) {
	for i, line := range slices.Collect(strings.Lines(swaps)) {
		if f := strings.Fields(line); i > 0 && len(f) > 0 {
			u.addUse(m.numberOf(tegra.UnescapePath(f[0])), "swap")
		}
	}
}

// addBtrfs gives all disks of a mounted btrfs its uses. The list of mounts has only one of them.
func (m machine) addBtrfs(u uses) {
	mounted, _ := filepath.Glob(filepath.Join(m.sys, "fs/btrfs/*/devices")) // the pattern is well-formed
	for _, dir := range mounted {
		members, _ := filepath.Glob(filepath.Join(dir, "*", "dev"))
		all := []string{"part of a btrfs that is mounted"}
		for _, member := range members {
			all = append(all, u[readAttribute(filepath.Dir(member), "dev")]...)
		}
		for _, member := range members {
			for _, what := range all {
				u.addUse(readAttribute(filepath.Dir(member), "dev"), what)
			}
		}
	}
}

// addLoops adds the use "behind /dev/loopN" to each disk under a loop device, which does not lock
// it. The disk with the loop device's file also gets its system mounts, as of a live system.
func (m machine) addLoops(u uses) {
	loops, _ := filepath.Glob(filepath.Join(m.sys, "class/block/loop*")) // the pattern is well-formed
	for range 2 {                                                        // a live system is a loop on a loop
		for _, dir := range loops {
			path := readAttribute(dir, "loop/backing_file")
			for _, what := range u[readAttribute(dir, "dev")] {
				if strings.HasPrefix(what, systemPrefix) {
					u.addUse(m.numberOf(path), what)
				}
			}
			if m.isDevice(path) {
				u.addUse(m.numberOf(path), "behind "+m.nodePath(filepath.Base(dir)))
			}
		}
	}
}

// isDevice reports whether path is a device or in /dev, where only devices belong, except /dev/shm.
func (m machine) isDevice(path string) bool {
	if strings.HasPrefix(path, m.dev+"/") && !strings.HasPrefix(path, m.dev+"/shm/") {
		return true
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeDevice != 0
}

// numberOf returns the number of the device at path, or of the one below a file; "" if none.
func (m machine) numberOf(path string) string {
	if !filepath.IsAbs(path) {
		return "" // overlay, tmpfs, a ZFS pool
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if name, ok := strings.CutPrefix(path, m.dev+"/"); ok {
		if n := readAttribute(filepath.Join(m.sys, "class/block", strings.ReplaceAll(name, "/", "!")), "dev"); n != "" {
			return n
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ""
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return numberText(st.Rdev)
	}
	return numberText(st.Dev)
}

// opener is a program that has a block device open.
type opener struct{ number, program string }

// findOpeners returns this user's other programs (for root, all) that have a device with one of
// these numbers open or mapped. With writing, it leaves out those that only read, as udev reads
// each new disk, and losetup in search of a free loop device.
func (m machine) findOpeners(numbers []string, writing bool) []opener {
	var found []opener
	self := strconv.Itoa(os.Getpid())
	for _, process := range m.listProcesses() {
		if process == self {
			continue
		}
		open := append(m.openNumbers(process, numbers, writing), m.mappedNumbers(process, numbers, writing)...)
		slices.Sort(open)
		for _, number := range slices.Compact(open) {
			if !writing || !m.isLosetupProbe(process, number) {
				found = append(found, opener{number, m.programName(process)})
			}
		}
	}
	return found
}

// openNumbers returns which of the device numbers a process has open, or open for writing.
func (m machine) openNumbers(process string, numbers []string, writing bool) (found []string) {
	dir := filepath.Join(m.proc, process, "fd")
	files, _ := os.ReadDir(dir) // gone, or another user's
	for _, f := range files {
		n := blockNumber(filepath.Join(dir, f.Name()))
		if slices.Contains(numbers, n) && (!writing || m.isOpenForWriting(process, f.Name())) {
			found = append(found, n)
		}
	}
	return found
}

// mappedNumbers returns which of the device numbers a process has mapped, or mapped for writing. A
// process can map a file that it has closed.
func (m machine) mappedNumbers(process string, numbers []string, writing bool) (found []string) {
	maps, _ := os.ReadFile(filepath.Join(m.proc, process, "maps")) // gone, or another user's
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line) // 7f10-7f20 rw-s 00000000 00:06 345 /dev/sdb1
		if len(f) < 6 || len(f[1]) < 4 || f[5][0] != '/' || writing && (f[1][1] != 'w' || f[1][3] != 's') {
			continue
		}
		if n := blockNumber(filepath.Join(m.proc, process, "map_files", f[0])); slices.Contains(numbers, n) {
			found = append(found, n)
		}
	}
	return found
}

// isLosetupProbe reports whether the process is losetup and the device a loop device: losetup opens
// loop devices for writing only to find a free one.
func (m machine) isLosetupProbe(process, number string) bool {
	const loops = "7:"
	return strings.HasPrefix(number, loops) && readAttribute(filepath.Join(m.proc, process), "comm") == "losetup"
}

// blockNumber returns the number of the block device at path; "" if path is none. It does not query
// a network file system's server, which may no longer answer.
func blockNumber(path string) string {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	return numberText(unix.Mkdev(st.Rdev_major, st.Rdev_minor))
}

// isOpenForWriting reports whether a process opened fd for writing, by the octal flags in fdinfo.
func (m machine) isOpenForWriting(process, fd string) bool {
	info, _ := os.ReadFile(filepath.Join(m.proc, process, "fdinfo", fd)) // gone, or another user's
	for line := range strings.Lines(string(info)) {
		if flags, ok := strings.CutPrefix(line, "flags:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
			return err == nil && n&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}

// zfsPools lists the ZFS pools in use. Their disks have no holders in sysfs.
func (m machine) zfsPools() []string {
	entries, _ := os.ReadDir(filepath.Join(m.proc, "spl/kstat/zfs")) // without ZFS there are none
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// byPrograms returns " by " and the names of the programs that have a device open; "" if none.
func byPrograms(openers []opener) string {
	if len(openers) == 0 {
		return "" // the kernel itself, or another user's program
	}
	names := make([]string, len(openers))
	for i, o := range openers {
		names[i] = o.program
	}
	return " by " + strings.Join(names, ", ")
}
