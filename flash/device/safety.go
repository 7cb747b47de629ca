package device

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// allUses returns the uses of a device or a partition, also those by LVM, encryption, RAID,
// multipath and bcache on top of it.
func (m machine) allUses(dir string, u uses) []string {
	found := slices.Clone(u[readAttribute(dir, "dev")])
	holders, _ := os.ReadDir(filepath.Join(dir, "holders")) // one that has no such folder has no holders
	for _, h := range holders {
		holder, err := m.sysfsDir(h.Name())
		if err != nil {
			holder = filepath.Join(dir, "holders", h.Name())
		}
		title := h.Name()
		if name := readAttribute(holder, "dm/name"); name != "" {
			title += " (" + name + ")"
		}
		found = append(found, m.allUses(holder, u)...)
		found = append(found, "part of "+title)
	}
	return found
}

// fileSharer returns another loop device with the backing file of the one in dir; "" if none has.
func (m machine) fileSharer(dir string) string {
	mine, err := os.Stat(readAttribute(dir, "loop/backing_file"))
	if err != nil {
		return ""
	}
	loops, _ := filepath.Glob(filepath.Join(m.sys, "class/block/loop*")) // the pattern is well-formed
	for _, other := range loops {
		theirs, err := os.Stat(readAttribute(other, "loop/backing_file"))
		if err == nil && os.SameFile(mine, theirs) && filepath.Base(other) != filepath.Base(dir) {
			return m.nodePath(filepath.Base(other))
		}
	}
	return ""
}

// bootArea matches the names of the small disks of a memory card or an eMMC.
var bootArea = plaintext.Regexp(`^(mmcblk\d+)(boot\d+|rpmb|gp\d+)$`)

// refusalReason returns why Slipway never writes the device, whatever the user wants; "" if it may.
func (m machine) refusalReason(dir string, d Device, u uses) string {
	name := filepath.Base(dir)
	switch {
	case m.isDevice(readAttribute(dir, "loop/backing_file")):
		// Reasons to refuse that device would not be found here.
		return "a loop device over " + readAttribute(dir, "loop/backing_file") + "; name that itself"
	case m.fileSharer(dir) != "":
		// Each has a page cache of its own, and does not see the writes of the other.
		return "it shares its file with " + m.fileSharer(dir) + "; detach one of them"
	case hasAttribute(dir, "partition"):
		return "a partition; name the whole disk, " + m.nodePath(filepath.Base(filepath.Dir(dir)))
	case readAttribute(dir, "hidden") == "1":
		return "one of several paths to a disk; name the disk itself"
	case bootArea().MatchString(name):
		return "a boot area of " + m.nodePath(bootArea().FindStringSubmatch(name)[1]) + "; name that itself"
	case strings.Contains(dir, "/virtual/block/") && d.Bus != "loop":
		return "not a disk, but something that the kernel makes of disks or memory"
	case strings.HasPrefix(name, "sr"):
		return "an optical drive"
	case strings.HasPrefix(name, "fd"):
		return "a floppy drive"
	case d.SizeBytes == 0:
		return "no medium in it"
	case readAttribute(dir, "ro") == "1" && !m.reading:
		return "read-only; look for a write-protect switch"
	}
	return m.useReason(dir, d, u)
}

// useReason returns that the device holds the running system, or what uses it; "" if nothing does.
func (m machine) useReason(dir string, d Device, u uses) string {
	found := m.allUses(dir, u)
	for _, p := range d.Partitions {
		for _, use := range p.Uses {
			found = append(found, p.Name+": "+use)
		}
	}
	for _, use := range found {
		if _, reason, ok := strings.Cut(use, systemPrefix); ok {
			return systemPrefix + reason
		}
	}
	if len(found) > 0 {
		return "in use: " + strings.Join(found, "; ")
	}
	return ""
}

// refuseByContent sets d.Refused for a disk of an imported ZFS pool. It sets d.Guarded for any
// member of a pool or RAID, such as a disk of a NAS that is under repair.
func (m machine) refuseByContent(d *Device) {
	pools := m.zfsPools()
	for _, c := range d.allContents() {
		if c.Part == "" {
			continue
		}
		if c.Content.Type == "zfs_member" && slices.Contains(pools, c.Label) && d.Refused == "" {
			d.Refused = fmt.Sprintf("in use: %s: part of %s", c.Name, c.Part)
		}
		d.Guarded = cmp.Or(d.Guarded, fmt.Sprintf("%s is a part of %s", c.Name, c.Part))
	}
}

// checkUnchanged returns an error if now, the device's present state, is in use, is not the device
// that was shown and confirmed, or differs in Guarded.
func (d Device) checkUnchanged(now Device) error {
	if now.Refused != "" {
		return fmt.Errorf("refused: %s", now.Refused)
	}
	for _, f := range []struct{ what, then, now string }{
		{"number", d.Number, now.Number},
		{"serial", d.Serial, now.Serial},
		{"port", d.Port, now.Port},
		{"size", ExactSize(d.SizeBytes), ExactSize(now.SizeBytes)},
		{"place in the kernel's count of disks", d.sequence, now.sequence},
	} {
		if f.then != f.now {
			return fmt.Errorf("it is not the device any more that was shown and confirmed: its %s was %q, and is %q; nothing was written", f.what, f.then, f.now)
		}
	}
	if now.Guarded != d.Guarded {
		return fmt.Errorf("what is on it is not what was shown and confirmed: %s; nothing was written", cmp.Or(now.Guarded, d.Guarded))
	}
	return nil
}
