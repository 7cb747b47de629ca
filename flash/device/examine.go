package device

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"slipway/flash/rshim"
	"slipway/flash/tegra"
)

// Examine returns the device that path names on this machine, and why Slipway refuses it, if so.
func Examine(path string) (Device, error) { return here.examineName(path) }

// examineName returns the device that path names: a block device, or a virtual disk, perhaps a new
// one. After FilePrefix it accepts only a virtual disk. It follows links as /dev/disk/by-id/... It
// does not check usb:PORT and rshims' names.
func (m machine) examineName(path string) (Device, error) {
	path, meant := strings.CutPrefix(path, FilePrefix)
	if kind := SpecialKind(path); kind != "" && !meant {
		return Device{Path: strings.TrimSuffix(path, "/"), Kind: kind, exists: true}, nil
	}
	if path == "" && meant {
		return Device{}, fmt.Errorf("no name after %s", FilePrefix)
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m.newFile(path, meant)
	}
	if err != nil {
		return Device{}, err
	}
	info, err := os.Stat(real)
	if err != nil {
		return Device{}, err
	}
	var d Device
	switch info.Mode().Type() {
	case 0:
		d, err = m.fileDevice(real, info)
	case fs.ModeDevice:
		d, err = m.blockDevice(info.Sys().(*syscall.Stat_t).Rdev)
	default:
		err = fmt.Errorf("%s is neither a file nor a block device\nnext: devices", path)
	}
	if err == nil && meant && d.Kind != File {
		err = fmt.Errorf("%s is a device, and %s names a file", path, FilePrefix)
	}
	if abs, wrong := filepath.Abs(path); wrong == nil && abs != d.Path {
		d.Given = abs
	}
	return d, err
}

// SpecialKind returns Tegra for usb:PORT and RShim for an rshim's name; "" for other names.
func SpecialKind(path string) string {
	switch {
	case rshim.Is(path):
		return RShim
	case strings.HasPrefix(path, "usb:"):
		return Tegra
	}
	return ""
}

// blockDevice describes the block device with the number rdev.
func (m machine) blockDevice(rdev uint64) (Device, error) {
	dir, err := m.sysfsDirOf(numberText(rdev))
	if err != nil {
		return Device{}, err
	}
	return m.blockAt(dir)
}

// sysfsDirOf returns the folder in sysfs of the block device with a number such as 8:17.
func (m machine) sysfsDirOf(number string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(m.sys, "dev/block", number))
	if err != nil {
		return "", fmt.Errorf("the kernel does not know block device %s (was it pulled out?): %w", number, err)
	}
	return dir, nil
}

// blockAt describes the block device with the sysfs folder dir. It sets Refused by refusalReason,
// or if a program writes to it. It reads the content unless refusalReason has a reason.
func (m machine) blockAt(dir string) (Device, error) {
	u, err := m.findUses()
	if err != nil {
		return Device{}, err
	}
	d := m.readDevice(dir, u)
	disks, err := m.listDisks(uses{})
	if err != nil {
		return Device{}, err
	}
	d.Twin = twinOf(d, disks)
	if d.Refused == "" {
		m.readContent(dir, &d)
	}
	if writers := m.findWriters(dir, d); len(writers) > 0 && d.Refused == "" {
		d.Refused = "in use: " + strings.Join(writers, "; ")
	}
	return d, nil
}

// findWriters returns a text for each program with the disk or a partition open for writing.
func (m machine) findWriters(dir string, d Device) (found []string) {
	names := map[string]string{d.Number: ""}
	for _, p := range partitionDirs(dir) {
		names[readAttribute(p, "dev")] = filepath.Base(p) + ": "
	}
	for _, o := range m.findOpeners(slices.Collect(maps.Keys(names)), true) {
		found = append(found, names[o.number]+"open for writing by "+o.program)
	}
	return found
}

// fileDevice describes the file at path as a virtual disk, without its content. It sets Refused for
// a file that a loop device, a swap or a virtual machine uses, and for a file in /dev.
func (m machine) fileDevice(path string, info fs.FileInfo) (Device, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Device{}, err
	}
	d := Device{
		Path: path, Kind: File, SizeBytes: info.Size(), exists: true,
		sequence: fmt.Sprintf("%d of %d", info.Sys().(*syscall.Stat_t).Ino, info.ModTime().UnixNano()),
	}
	if m.isDevice(path) {
		d.Refused = "a file among the devices, with the name of no device; remove it, or plug in what you mean"
		return d, nil
	}
	loops, _ := filepath.Glob(filepath.Join(m.sys, "class/block/loop*")) // the pattern is well-formed
	for _, dir := range loops {
		if behind, err := os.Stat(readAttribute(dir, "loop/backing_file")); err == nil && os.SameFile(behind, info) {
			d.Refused = "behind " + m.nodePath(filepath.Base(dir)) + "; detach that first"
		}
	}
	if d.Refused == "" && m.swapsTo(info) {
		d.Refused = "in use: swap"
	}
	if d.Refused == "" {
		d.Refused, err = lockReason(path)
	}
	return d, err
}

// swapsTo reports whether the machine swaps to the file.
func (m machine) swapsTo(info fs.FileInfo) bool {
	swaps, _ := os.ReadFile(filepath.Join(m.proc, "swaps")) // without it, nothing swaps
	for line := range strings.Lines(string(swaps)) {
		path, _, _ := strings.Cut(line, " ")
		if behind, err := os.Stat(tegra.UnescapePath(path)); err == nil && os.SameFile(behind, info) {
			return true
		}
	}
	return false
}

const lockedText = "in use by a program that has locked it; stop the virtual machine first"

// lockReason returns a reason to refuse the file if a program has locked it, as QEMU locks the
// disks of a running machine; "" if not.
func lockReason(path string) (string, error) {
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
		return lockedText, nil
	}
	return "", nil
}
