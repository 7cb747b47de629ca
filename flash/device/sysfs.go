package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// machine names the folders in which the kernel describes its devices. Tests use their own.
type machine struct {
	sys, proc, dev string
	nodes          string        // folder in which the devices of dev are opened; "" reads none of them
	patience       time.Duration // with a device that does not answer
	cache          *sync.Map     // what a watch has read, by the devices' numbers; nil: nothing is kept
	reading        bool          // a read-only device is not refused
}

var here = machine{sys: "/sys", proc: "/proc", dev: "/dev", nodes: "/dev"}

// listAll lists the devices of all kinds, also those that are refused.
func (m machine) listAll(ctx context.Context, files []string) ([]Device, error) {
	found, err := m.listBlockDevices(ctx)
	if err != nil {
		return nil, err
	}
	jetsons, err := m.listJetsons()
	if err != nil {
		return nil, err
	}
	return slices.Concat(found, jetsons, m.listRShims(), m.listFiles(files)), nil
}

// listBlockDevices lists block devices and reads their content in parallel, except optical drives'.
func (m machine) listBlockDevices(ctx context.Context) ([]Device, error) {
	uses, err := m.findUses()
	if err != nil {
		return nil, err
	}
	found, err := m.listDisks(uses)
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Twin = twinOf(found[i], found)
	}
	var g errgroup.Group // a slow card does not hold up the others
	for i := range found {
		d := &found[i]
		g.Go(func() error {
			dir, err := m.sysfsDir(filepath.Base(d.Path))
			if err != nil || context.Cause(ctx) != nil || strings.HasPrefix(filepath.Base(d.Path), "sr") {
				return nil // pulled out since it was listed, or a drive that would start to turn
			}
			m.readContent(dir, d)
			return nil
		})
	}
	_ = g.Wait()
	return found, context.Cause(ctx)
}

// listDisks returns the block devices that isListed accepts, as sysfs shows them, sorted by path.
func (m machine) listDisks(u uses) ([]Device, error) {
	entries, err := os.ReadDir(filepath.Join(m.sys, "class/block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	var found []Device
	for _, e := range entries {
		dir, err := m.sysfsDir(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // pulled out since it was listed
		}
		if err != nil {
			return nil, err
		}
		if m.isListed(dir) {
			found = append(found, m.readDevice(dir, u))
		}
	}
	slices.SortFunc(found, func(a, b Device) int { return cmp.Compare(a.Path, b.Path) })
	return found, nil
}

// twinOf returns the path of another device in all, with a medium and d's serial, such as the second
// slot of a card reader; "" if none. Some makers give all their readers one serial.
func twinOf(d Device, all []Device) string {
	for _, other := range all {
		if d.Serial != "" && other.Serial == d.Serial && other.Number != d.Number && other.SizeBytes > 0 {
			return other.Path
		}
	}
	return ""
}

// isListed reports whether listDisks lists the device. It leaves out partitions, loop devices
// without a file, the RAM disks /dev/ram*, and hidden paths.
func (m machine) isListed(dir string) bool {
	name := filepath.Base(dir)
	if hasAttribute(dir, "partition") || readAttribute(dir, "hidden") == "1" || strings.HasPrefix(name, "ram") {
		return false
	}
	return !strings.HasPrefix(name, "loop") || hasAttribute(dir, "loop/backing_file")
}

// sysfsDir returns a device's folder in sysfs with links resolved, so below that of its bus.
func (m machine) sysfsDir(name string) (string, error) {
	return filepath.EvalSymlinks(filepath.Join(m.sys, "class/block", name))
}

// readDevice reads a block device's attributes and partitions in sysfs, and sets why it is refused.
func (m machine) readDevice(dir string, uses uses) Device {
	d := Device{
		Path:      m.nodePath(filepath.Base(dir)),
		Kind:      Block,
		Bus:       busOf(dir),
		Number:    readAttribute(dir, "dev"),
		SizeBytes: sizeBytes(dir),
		// A card in a computer's own reader counts as fixed for the kernel.
		Removable: readAttribute(dir, "removable") == "1" || readAttribute(dir, "device/type") == "SD",
		exists:    true,
		sequence:  readAttribute(dir, "diskseq"),
	}
	d.SectorBytes, _ = strconv.ParseInt(readAttribute(dir, "queue/logical_block_size"), 10, 32) // 0: not known
	d.Model, d.Serial = modelAndSerial(dir, d.Bus)
	d.Port = m.portOf(dir, d.Bus)
	for _, p := range partitionDirs(dir) {
		d.Partitions = append(d.Partitions, Content{
			Name: filepath.Base(p), SizeBytes: sizeBytes(p), Uses: m.allUses(p, uses), OffsetBytes: sectorsInBytes(p, "start"),
		})
	}
	d.Refused = m.refusalReason(dir, d, uses)
	return d
}

// nodePath returns a device's path below /dev. The kernel writes "/" in names as "!".
func (m machine) nodePath(name string) string {
	return filepath.Join(m.dev, strings.ReplaceAll(name, "!", "/"))
}

// busOf returns the bus of a device by its path in sysfs; "" if none is known.
func busOf(dir string) string {
	for _, b := range []struct{ mark, bus string }{
		{"/usb", "usb"},
		{"/mmc_host/", "mmc"},
		{"/nvme", "nvme"},
		{"/virtual/block/loop", "loop"},
		{"/ata", "ata"},
		{"/virtio", "virtio"},
		{"/host", "scsi"},
	} {
		if strings.Contains(dir, b.mark) {
			return b.bus
		}
	}
	return ""
}

// modelAndSerial returns the model and serial of a device; a loop device's model is its file.
func modelAndSerial(dir, bus string) (model, serial string) {
	switch bus {
	case "loop":
		return readAttribute(dir, "loop/backing_file"), ""
	case "mmc":
		return readAttribute(dir, "device/name"), readAttribute(dir, "device/serial")
	case "usb":
		serial = readAttribute(usbDevice(dir), "serial") // on its label; the disk behind a bridge may have another
	}
	if vendor := readAttribute(dir, "device/vendor"); bus != "virtio" && vendor != "ATA" {
		model = vendor
	}
	model = strings.TrimSpace(model + " " + readAttribute(dir, "device/model"))
	return model, cmp.Or(serial, readAttribute(dir, "serial"), readAttribute(dir, "device/serial"), vpdSerial(dir))
}

// portOf returns a name for the connector of a device, the same after a reboot: usb:1-2, usb:1-2/1
// for a reader's second slot, mmc0, loop:FILE, or else the path in sysfs.
func (m machine) portOf(dir, bus string) string {
	switch usb := usbDevice(dir); {
	case bus == "loop":
		return "loop:" + readAttribute(dir, "loop/backing_file")
	case usb != "":
		// A reader with several slots is one USB device.
		device, _ := filepath.EvalSymlinks(filepath.Join(dir, "device")) // broken: the first slot
		if lun := lunOf(filepath.Base(device)); lun != "0" {
			return "usb:" + filepath.Base(usb) + "/" + lun
		}
		return "usb:" + filepath.Base(usb)
	case bus == "mmc":
		_, host, _ := strings.Cut(dir, "/mmc_host/")
		host, _, _ = strings.Cut(host, "/")
		return host
	}
	path, _ := strings.CutPrefix(dir, filepath.Join(m.sys, "devices")+"/")
	return path
}

// lunOf returns the last number of a SCSI address such as 4:0:0:1; "0" for other texts.
func lunOf(address string) string {
	if parts := strings.Split(address, ":"); len(parts) == 4 {
		return parts[3]
	}
	return "0"
}

// usbDevice returns the folder of the USB device at or above dir in sysfs; "" if there is none.
func usbDevice(dir string) string {
	for ; len(dir) > 1; dir = filepath.Dir(dir) {
		if hasAttribute(dir, "idVendor") {
			return dir
		}
	}
	return ""
}

// vpdSerial reads SCSI's unit serial number page, which libata fills in as well; "" without one.
func vpdSerial(dir string) string {
	page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80"))
	if err != nil || len(page) < 4 {
		return ""
	}
	return printableText(string(page[4:]))
}

// partitionDirs returns the sysfs folders of a disk's partitions, in the order of their numbers.
func partitionDirs(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "*", "partition")) // the pattern is well-formed
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	slices.SortFunc(found, compareNumbered)
	return found
}

// compareNumbered orders names that differ only in a number at their end.
func compareNumbered(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func sizeBytes(dir string) int64 { return sectorsInBytes(dir, "size") }

// sectorsInBytes reads a number of sectors and returns it in bytes; 0 if that fails. The kernel's
// sectors have 512 bytes on every disk.
func sectorsInBytes(dir, name string) int64 {
	n, err := strconv.ParseInt(readAttribute(dir, name), 10, 54)
	if err != nil || n < 0 {
		return 0
	}
	return n * 512
}

func hasAttribute(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return err == nil
}

// readAttribute returns up to 256 bytes of a sysfs attribute without control characters; "" if it
// cannot be read. Devices choose the text, and terminals show it.
func readAttribute(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return printableText(string(data))
}

// printableText returns the printable characters in the first 256 bytes of s, without outer blanks.
func printableText(s string) string {
	const longest = 256
	s = strings.ToValidUTF8(s[:min(len(s), longest)], "")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s))
}

// numberText writes a device's number as the kernel does: major:minor.
func numberText(rdev uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev))
}
