package device

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/tegra"
)

// listJetsons lists the Jetsons in recovery mode on the USB bus.
func (m machine) listJetsons() ([]Device, error) {
	waiting, err := tegra.List(m.sys)
	var found []Device
	for _, r := range waiting {
		port := "usb:" + r.Port
		found = append(found, Device{
			Path: port, Kind: Tegra, Bus: "usb", Model: r.Module, Chip: r.Chip, Port: port,
			Serial: readAttribute(filepath.Join(m.sys, "bus/usb/devices", r.Port), "serial"), exists: true,
		})
	}
	return found, err
}

// listRShims lists BlueFields by the rshim driver's folders in /dev. It sets Unread after an error,
// and for a DPU that a flash holds: that flash would miss the messages that are read here.
func (m machine) listRShims() (found []Device) {
	if m.nodes == "" {
		return nil
	}
	misc, _ := filepath.Glob(filepath.Join(m.nodes, "rshim*", "misc")) // the pattern is well-formed
	for _, path := range misc {
		d := Device{Path: m.nodePath(filepath.Base(filepath.Dir(path))), Kind: RShim, exists: true}
		if m.isLocked(filepath.Dir(path)) {
			d.Unread = "another flash or rshim command is at work on it"
			found = append(found, d)
			continue
		}
		said, err := readInTime(path, cmp.Or(m.patience, patience))
		d.Unread = unreadReason(err)
		d.Port, d.Chip = rshimField(said, "DEV_NAME"), rshimField(said, "DEV_INFO")
		d.Bus, _, _ = strings.Cut(d.Port, "-")
		found = append(found, d)
	}
	return found
}

// isLocked reports whether a program has locked a folder, as rshim's Hold does. It takes no lock, as
// a flash that begins at that moment would be refused.
func (m machine) isLocked(dir string) bool {
	var s unix.Stat_t
	locks, err := os.ReadFile(filepath.Join(m.proc, "locks"))
	if errors.Join(err, unix.Stat(dir, &s)) != nil {
		return false
	}
	return bytes.Contains(locks, fmt.Appendf(nil, " %02x:%02x:%d ", unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino))
}

// rshimField returns the value of the line called name in an rshim's file misc; "" without one.
func rshimField(said, name string) string {
	for line := range strings.Lines(said) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			return printableText(strings.Join(f[1:], " "))
		}
	}
	return ""
}

// readInTime reads up to 64 KiB of path. After limit it abandons the read: os.ErrDeadlineExceeded.
func readInTime(path string, limit time.Duration) (string, error) {
	const longest = 64 << 10
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	var data []byte
	answered := inTime(limit, func() {
		defer f.Close()
		data, err = io.ReadAll(io.LimitReader(f, longest))
	})
	if !answered {
		return "", os.ErrDeadlineExceeded
	}
	return string(data), err
}

// listFiles lists those of the files that are regular, as virtual disks with the content that it
// can read. It sets Unread for one whose use it cannot examine, or that it cannot read completely.
func (m machine) listFiles(files []string) (found []Device) {
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		d, err := m.fileDevice(path, info)
		disk, unread := probeFile(path, d.SizeBytes, 512)
		d.fillContent(filepath.Base(path), disk)
		d.Unread = unreadReason(cmp.Or(err, unread))
		found = append(found, d)
	}
	return found
}
