package device

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// uses says what the devices of the machine are used for, by their numbers.
type uses map[string][]string

// system are the places from which a machine runs.
var system = []string{"/", "/usr", "/boot", "/boot/efi", "/boot/firmware", "/efi", "/nix", "/sysroot"}

const ofSystem = "holds the running system: "

func (m machine) uses() (uses, error) {
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

func (u uses) add(number, what string) {
	if number != "" && !slices.Contains(u[number], what) {
		u[number] = append(u[number], what)
	}
}

// addAllMounts looks at the mounts as each process sees them: those of a container,
// or of a desktop's sandbox, are not among this program's.
func (m machine) addAllMounts(u uses) error {
	data, err := os.ReadFile(filepath.Join(m.proc, "self/mountinfo"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find out what is mounted: %w", err)
	}
	m.addMounts(u, string(data), "")
	seen := map[string]bool{m.namespace("self"): true, "": true}
	for _, process := range m.processes() {
		namespace := m.namespace(process)
		if seen[namespace] && process != "1" {
			continue
		}
		// It may be gone by now, or another user's; the kernel then refuses to write
		// to what it has mounted.
		if data, err := os.ReadFile(filepath.Join(m.proc, process, "mountinfo")); err == nil {
			seen[namespace] = true
			of := m.program(process)
			if process == "1" {
				of = ""
			}
			m.addMounts(u, string(data), of)
		}
	}
	return nil
}

// processes are the numbers of all that run, the first process first.
func (m machine) processes() []string {
	entries, _ := os.ReadDir(m.proc) // without it, there are none to be seen
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	slices.Sort(all)
	names := make([]string, len(all))
	for i, pid := range all {
		names[i] = strconv.Itoa(pid)
	}
	return names
}

func (m machine) namespace(process string) string {
	name, err := os.Readlink(filepath.Join(m.proc, process, "ns/mnt"))
	if err != nil {
		return ""
	}
	return name
}

// program is a process for people.
func (m machine) program(process string) string {
	return fmt.Sprintf("%s (process %s)", text(filepath.Join(m.proc, process), "comm"), process)
}

// addMounts reads lines like
//
//	36 35 8:17 / /media/card rw,noatime shared:1 - ext4 /dev/sdb1 rw
//
// They are this program's or the first process's own where of is empty. Another
// process's places are not those of the system; and what this one sees needs not be
// said again by each container.
func (m machine) addMounts(u uses, mountinfo, of string) {
	for line := range strings.Lines(mountinfo) {
		mount, origin, ok := strings.Cut(line, " - ")
		f, from := strings.Fields(mount), strings.Fields(origin)
		if !ok || len(f) < 5 || len(from) < 2 {
			continue
		}
		at := unescape(f[4])
		what := "mounted on " + printable(at)
		switch {
		case of != "":
			what += " for " + of
		case slices.Contains(system, at):
			what = ofSystem + at
		}
		for _, device := range m.behindMount(f[2], from) {
			if of == "" || len(u[device]) == 0 {
				u.add(device, what)
			}
		}
	}
}

// behindMount are the numbers of the devices that a mount lies on. File systems over
// several disks have a number of their own, and so has one that is laid over others.
func (m machine) behindMount(number string, from []string) []string {
	if !strings.HasPrefix(number, "0:") {
		return []string{number}
	}
	var found []string
	for source := range strings.SplitSeq(unescape(from[1]), ":") { // bcachefs names all its disks
		found = append(found, m.numberOf(source))
	}
	if from[0] != "overlay" || len(from) < 3 {
		return found
	}
	for option := range strings.SplitSeq(from[2], ",") {
		key, folders, _ := strings.Cut(unescape(option), "=")
		if key == "lowerdir" || key == "upperdir" {
			for folder := range strings.SplitSeq(folders, ":") {
				found = append(found, m.numberOf(folder))
			}
		}
	}
	return found
}

// addSwaps reads /proc/swaps: a heading, then lines that begin with a path.
func (m machine) addSwaps(u uses, swaps string) {
	for i, line := range slices.Collect(strings.Lines(swaps)) {
		if f := strings.Fields(line); i > 0 && len(f) > 0 {
			u.add(m.numberOf(unescape(f[0])), "swap")
		}
	}
}

// addBtrfs gives all disks of a mounted btrfs what is said of the one that stands in
// the list of mounts.
func (m machine) addBtrfs(u uses) {
	mounted, _ := filepath.Glob(filepath.Join(m.sys, "fs/btrfs/*/devices")) // the pattern is well-formed
	for _, dir := range mounted {
		members, _ := filepath.Glob(filepath.Join(dir, "*", "dev"))
		all := []string{"part of a btrfs that is mounted"}
		for _, member := range members {
			all = append(all, u[text(filepath.Dir(member), "dev")]...)
		}
		for _, member := range members {
			for _, what := range all {
				u.add(text(filepath.Dir(member), "dev"), what)
			}
		}
	}
}

// addLoops finds disks that serve as the file behind a loop device, which does not
// lock them, and the disk with the file that the system runs from.
func (m machine) addLoops(u uses) {
	loops, _ := filepath.Glob(filepath.Join(m.sys, "class/block/loop*")) // the pattern is well-formed
	for range 2 {                                                        // a live system is a loop on a loop
		for _, dir := range loops {
			path := text(dir, "loop/backing_file")
			for _, what := range u[text(dir, "dev")] {
				if strings.HasPrefix(what, ofSystem) {
					u.add(m.numberOf(path), what)
				}
			}
			if m.isDevice(path) {
				u.add(m.numberOf(path), "behind "+m.node(filepath.Base(dir)))
			}
		}
	}
}

// isDevice is true where path is a device's or could only be one's: there are files
// in /dev/shm, but not elsewhere in /dev.
func (m machine) isDevice(path string) bool {
	if strings.HasPrefix(path, m.dev+"/") && !strings.HasPrefix(path, m.dev+"/shm/") {
		return true
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeDevice != 0
}

// numberOf is the number of the device at path, or of that on which the file at
// path lies; "" where path is neither.
func (m machine) numberOf(path string) string {
	if !filepath.IsAbs(path) {
		return "" // overlay, tmpfs, a ZFS pool
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if name, ok := strings.CutPrefix(path, m.dev+"/"); ok {
		if n := text(filepath.Join(m.sys, "class/block", strings.ReplaceAll(name, "/", "!")), "dev"); n != "" {
			return n
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ""
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return number(st.Rdev)
	}
	return number(st.Dev)
}

// unescape undoes the octal escapes in which the kernel writes blanks in paths.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// opener is a program that has a block device open.
type opener struct{ number, program string }

// openers are the programs that have a device with one of these numbers open, or map
// it, this one aside. With writing, those that only read (udev looks at each new disk)
// are left out.
func (m machine) openers(numbers []string, writing bool) []opener {
	var found []opener
	self := strconv.Itoa(os.Getpid())
	for _, process := range m.processes() {
		if process == self {
			continue
		}
		open := append(m.opened(process, numbers, writing), m.mapped(process, numbers, writing)...)
		slices.Sort(open)
		for _, number := range slices.Compact(open) {
			if !writing || !m.passing(process, number) {
				found = append(found, opener{number, m.program(process)})
			}
		}
	}
	return found
}

// opened are those of the numbers that a process has open.
func (m machine) opened(process string, numbers []string, writing bool) (found []string) {
	dir := filepath.Join(m.proc, process, "fd")
	files, _ := os.ReadDir(dir) // gone, or another user's
	for _, f := range files {
		n := blockNumber(filepath.Join(dir, f.Name()))
		if slices.Contains(numbers, n) && (!writing || m.writable(process, f.Name())) {
			found = append(found, n)
		}
	}
	return found
}

// mapped are those of the numbers that a process has in its memory. It can have closed
// the file since.
func (m machine) mapped(process string, numbers []string, writing bool) (found []string) {
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

// passing is losetup, which opens other loop devices for writing than it gives a file,
// in search of a free one.
func (m machine) passing(process, number string) bool {
	const loops = "7:"
	return strings.HasPrefix(number, loops) && text(filepath.Join(m.proc, process), "comm") == "losetup"
}

// blockNumber is the number of the block device that an open file is; "" where it is
// none. Nothing is asked of the server of a file system: some program has a file open of
// one that does not answer any more, and this would wait for it.
func blockNumber(path string) string {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	return number(unix.Mkdev(st.Rdev_major, st.Rdev_minor))
}

// writable asks how a process has opened a file; the kernel says it in octal.
func (m machine) writable(process, fd string) bool {
	f, err := os.Open(filepath.Join(m.proc, process, "fdinfo", fd))
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if flags, ok := strings.CutPrefix(lines.Text(), "flags:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
			return err == nil && n&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}

// pools are the ZFS pools in use; their disks have no holders in sysfs.
func (m machine) pools() []string {
	entries, _ := os.ReadDir(filepath.Join(m.proc, "spl/kstat/zfs")) // without ZFS there are none
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// by names the programs that have a device open.
func by(openers []opener) string {
	if len(openers) == 0 {
		return "" // the kernel itself, or another user's program
	}
	names := make([]string, len(openers))
	for i, o := range openers {
		names[i] = o.program
	}
	return " by " + strings.Join(names, ", ")
}
