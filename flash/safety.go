package flash

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// uses says what the devices of the machine are used for, by their numbers.
type uses map[string][]string

// system are the places from which a machine runs.
var system = []string{"/", "/usr", "/boot", "/boot/efi", "/boot/firmware", "/efi", "/nix", "/sysroot"}

const ofSystem = "holds the running system: "

func (m machine) uses() (uses, error) {
	found := uses{}
	// A container sees its own mounts only; those of process 1 may show more.
	for _, process := range []string{"self", "1"} {
		data, err := os.ReadFile(filepath.Join(m.proc, process, "mountinfo"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) && process == "1" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find out what is mounted: %w", err)
		}
		m.addMounts(found, string(data))
	}
	swaps, err := os.ReadFile(filepath.Join(m.proc, "swaps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("find out where swap is: %w", err)
	}
	m.addSwaps(found, string(swaps))
	m.addLoops(found)
	return found, nil
}

func (u uses) add(number, what string) {
	if number != "" && !slices.Contains(u[number], what) {
		u[number] = append(u[number], what)
	}
}

// addMounts reads lines like
//
//	36 35 8:17 / /media/card rw,noatime shared:1 - ext4 /dev/sdb1 rw
func (m machine) addMounts(u uses, mountinfo string) {
	for line := range strings.Lines(mountinfo) {
		mount, origin, ok := strings.Cut(line, " - ")
		f, from := strings.Fields(mount), strings.Fields(origin)
		if !ok || len(f) < 5 || len(from) < 2 {
			continue
		}
		device := f[2]
		// File systems over several disks (btrfs) have a number of their own.
		if strings.HasPrefix(device, "0:") {
			device = m.numberOf(unescape(from[1]))
		}
		at := unescape(f[4])
		what := "mounted on " + printable(at)
		if slices.Contains(system, at) {
			what = ofSystem + at
		}
		u.add(device, what)
	}
}

// addSwaps reads /proc/swaps: a heading, then lines that begin with a path.
func (m machine) addSwaps(u uses, swaps string) {
	for i, line := range slices.Collect(strings.Lines(swaps)) {
		if f := strings.Fields(line); i > 0 && len(f) > 0 {
			u.add(m.numberOf(unescape(f[0])), "swap")
		}
	}
}

// addLoops finds disks that serve as the file behind a loop device, which does
// not lock them.
func (m machine) addLoops(u uses) {
	loops, _ := filepath.Glob(filepath.Join(m.sys, "class/block/loop*")) // the pattern is well-formed
	for _, dir := range loops {
		if path := text(dir, "loop/backing_file"); m.isDevice(path) {
			u.add(m.numberOf(path), "behind "+m.node(filepath.Base(dir)))
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

// claims says what uses a device or a partition: itself, or through what is
// built on it (LVM, encryption, RAID, bcache).
func (m machine) claims(dir string, u uses) []string {
	found := slices.Clone(u[text(dir, "dev")])
	holders, _ := os.ReadDir(filepath.Join(dir, "holders")) // one that has no such folder has no holders
	for _, h := range holders {
		holder, err := m.dir(h.Name())
		if err != nil {
			holder = filepath.Join(dir, "holders", h.Name())
		}
		title := h.Name()
		if name := text(holder, "dm/name"); name != "" {
			title += " (" + name + ")"
		}
		found = append(found, m.claims(holder, u)...)
		found = append(found, "part of "+title)
	}
	return found
}

// refusal says why a device is never written, whatever the user wants.
func (m machine) refusal(dir string, d Device, u uses) string {
	switch {
	case m.isDevice(text(dir, "loop/backing_file")):
		// What speaks against that device would not be seen here.
		return "a loop device over " + text(dir, "loop/backing_file") + "; name that itself"
	case present(dir, "partition"):
		return "a partition; name the whole disk, " + m.node(filepath.Base(filepath.Dir(dir)))
	case strings.Contains(dir, "/virtual/block/") && d.Bus != "loop":
		return "not a disk, but something that the kernel makes of disks or memory"
	case strings.HasPrefix(filepath.Base(dir), "sr"):
		return "an optical drive"
	case d.SizeBytes == 0:
		return "no medium in it"
	case text(dir, "ro") == "1":
		return "read-only; look for a write-protect switch"
	}
	claims := m.claims(dir, u)
	for _, p := range d.Partitions {
		for _, use := range p.Uses {
			claims = append(claims, p.Name+": "+use)
		}
	}
	for _, c := range claims {
		if _, reason, ok := strings.Cut(c, ofSystem); ok {
			return ofSystem + reason
		}
	}
	if len(claims) > 0 {
		return "in use: " + strings.Join(claims, "; ")
	}
	return ""
}

// examine finds out what path names. It follows links, so that names like
// /dev/disk/by-id/... can be used.
func (m machine) examine(path string) (Device, error) {
	if kind := special(path); kind != "" {
		return Device{Path: path, Kind: kind, exists: true}, nil
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m.newFile(path)
	}
	if err != nil {
		return Device{}, err
	}
	info, err := os.Stat(real)
	if err != nil {
		return Device{}, err
	}
	switch info.Mode().Type() {
	case 0:
		return m.file(real, info)
	case fs.ModeDevice:
		return m.block(info.Sys().(*syscall.Stat_t).Rdev)
	}
	return Device{}, fmt.Errorf("%s is neither a file nor a block device", path)
}

// special recognises the names of devices that are no files.
func special(path string) string {
	switch {
	case strings.HasPrefix(path, "/dev/rshim"):
		return RShim
	case strings.HasPrefix(path, "usb:"):
		return Tegra
	}
	return ""
}

func (m machine) block(rdev uint64) (Device, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(m.sys, "dev/block", number(rdev)))
	if err != nil {
		return Device{}, fmt.Errorf("the kernel does not know block device %s: %w", number(rdev), err)
	}
	u, err := m.uses()
	if err != nil {
		return Device{}, err
	}
	return m.device(dir, u), nil
}

// newFile is a virtual disk that is not there yet. A mistyped device must not
// become a file in /dev.
func (m machine) newFile(path string) (Device, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Device{}, err
	}
	if m.isDevice(path) {
		return Device{}, fmt.Errorf("%s: no such device", path)
	}
	if _, err := os.Lstat(path); err == nil {
		return Device{}, fmt.Errorf("%s is a link to nothing", path)
	}
	return Device{Path: path, Kind: File}, nil
}

// file is a virtual disk that will be replaced, unless a loop device or a virtual
// machine has it.
func (m machine) file(path string, info fs.FileInfo) (Device, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Device{}, err
	}
	d := Device{
		Path: path, Kind: File, SizeBytes: info.Size(), exists: true,
		sequence: fmt.Sprintf("%d of %d", info.Sys().(*syscall.Stat_t).Ino, info.ModTime().UnixNano()),
	}
	loops, _ := filepath.Glob(filepath.Join(m.sys, "class/block/loop*")) // the pattern is well-formed
	for _, dir := range loops {
		if behind, err := os.Stat(text(dir, "loop/backing_file")); err == nil && os.SameFile(behind, info) {
			d.Refused = "behind " + m.node(filepath.Base(dir)) + "; detach that first"
		}
	}
	if d.Refused == "" {
		d.Refused, err = locked(path)
	}
	return d, err
}

const inUse = "in use by a program that has locked it; stop the virtual machine first"

// locked asks whether a program holds a lock on the file, as QEMU does on the
// disks of a running machine.
func locked(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return "", nil // a file system without locks has none held
	}
	if lock.Type != unix.F_UNLCK {
		return inUse, nil
	}
	return "", nil
}
