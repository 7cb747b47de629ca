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
	"time"
	"unicode"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// machine is where the kernel tells of its devices. Tests lay out their own.
type machine struct {
	sys, proc, dev string
	nodes          string        // where the devices of dev are opened; "" reads none of them
	patience       time.Duration // with a device that does not answer
	memory         *memory       // of what was read; nil reads again each time
}

var here = machine{sys: "/sys", proc: "/proc", dev: "/dev", nodes: "/dev"}

// list is all that can be flashed from this machine, and what is refused.
func (m machine) list(ctx context.Context, files []string) ([]Device, error) {
	found, err := m.devices(ctx)
	if err != nil {
		return nil, err
	}
	for _, add := range []func() ([]Device, error){m.jetsons, m.rshims, func() ([]Device, error) { return m.virtual(files) }} {
		more, err := add()
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// devices are the block devices, and what is on them.
func (m machine) devices(ctx context.Context) ([]Device, error) {
	uses, err := m.uses()
	if err != nil {
		return nil, err
	}
	found, err := m.disks(uses)
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Twin = twin(found[i], found)
	}
	var g errgroup.Group // a slow card does not hold up the others
	for i := range found {
		d := &found[i]
		g.Go(func() error {
			dir, err := m.dir(filepath.Base(d.Path))
			if err != nil || context.Cause(ctx) != nil || strings.HasPrefix(filepath.Base(d.Path), "sr") {
				return nil // pulled out meanwhile, or a drive that would start to turn
			}
			m.look(dir, d)
			return nil
		})
	}
	_ = g.Wait()
	return found, context.Cause(ctx)
}

// disks are the block devices, by what the kernel says.
func (m machine) disks(u uses) ([]Device, error) {
	entries, err := os.ReadDir(filepath.Join(m.sys, "class/block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	var found []Device
	for _, e := range entries {
		dir, err := m.dir(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // pulled out meanwhile
		}
		if err != nil {
			return nil, err
		}
		if m.listed(dir) {
			found = append(found, m.device(dir, u))
		}
	}
	slices.SortFunc(found, func(a, b Device) int { return cmp.Compare(a.Path, b.Path) })
	return found, nil
}

// twin finds another device with the same serial: two slots of one reader, two disks
// of one NVMe controller, two cheap readers whose maker gave all of them the same one.
func (m machine) twin(d Device) string {
	all, err := m.disks(uses{})
	if err != nil {
		return ""
	}
	return twin(d, all)
}

func twin(d Device, all []Device) string {
	for _, other := range all {
		if d.Serial != "" && other.Serial == d.Serial && other.Number != d.Number && other.SizeBytes > 0 {
			return other.Path
		}
	}
	return ""
}

// listed leaves out partitions, which their disks show, and what is no device at
// the moment: loop devices without a file, memory disks, hidden paths to a disk.
func (m machine) listed(dir string) bool {
	name := filepath.Base(dir)
	if present(dir, "partition") || text(dir, "hidden") == "1" || strings.HasPrefix(name, "ram") {
		return false
	}
	return !strings.HasPrefix(name, "loop") || present(dir, "loop/backing_file")
}

// dir is the kernel's own folder of a device, below that of the bus it hangs on.
func (m machine) dir(name string) (string, error) {
	return filepath.EvalSymlinks(filepath.Join(m.sys, "class/block", name))
}

func (m machine) device(dir string, uses uses) Device {
	d := Device{
		Path:      m.node(filepath.Base(dir)),
		Kind:      Block,
		Bus:       bus(dir),
		Number:    text(dir, "dev"),
		SizeBytes: sectors(dir),
		// A card in a computer's own reader counts as fixed for the kernel.
		Removable: text(dir, "removable") == "1" || text(dir, "device/type") == "SD",
		Exists:    true,
		sequence:  text(dir, "diskseq"),
	}
	d.SectorBytes, _ = strconv.ParseInt(text(dir, "queue/logical_block_size"), 10, 32) // 0: not known
	d.Model, d.Serial = identity(dir, d.Bus)
	d.Port = m.port(dir, d.Bus)
	for _, p := range partitions(dir) {
		d.Partitions = append(d.Partitions, Content{
			Name: filepath.Base(p), SizeBytes: sectors(p), Uses: m.claims(p, uses), OffsetBytes: counted(p, "start"),
		})
	}
	d.Refused = m.refusal(dir, d, uses)
	return d
}

// node is a device's path below /dev; the kernel writes "/" in names as "!".
func (m machine) node(name string) string {
	return filepath.Join(m.dev, strings.ReplaceAll(name, "!", "/"))
}

func bus(dir string) string {
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

func identity(dir, bus string) (model, serial string) {
	switch bus {
	case "loop":
		return text(dir, "loop/backing_file"), ""
	case "mmc":
		return text(dir, "device/name"), text(dir, "device/serial")
	case "usb":
		serial = usbSerial(dir)
	}
	if vendor := text(dir, "device/vendor"); bus != "virtio" && vendor != "ATA" {
		model = vendor
	}
	model = strings.TrimSpace(model + " " + text(dir, "device/model"))
	return model, cmp.Or(serial, text(dir, "serial"), text(dir, "device/serial"), vpdSerial(dir))
}

// port is where a device is plugged in: the same after a restart, another one for
// another card.
func (m machine) port(dir, bus string) string {
	switch usb := usbDevice(dir); {
	case bus == "loop":
		return ""
	case usb != "":
		// A reader with several slots is one USB device.
		if lun := filepath.Base(resolved(dir, "device")); lunOf(lun) != "0" {
			return "usb:" + filepath.Base(usb) + "/" + lunOf(lun)
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

// lunOf is the last number of a SCSI address, 4:0:0:1; of others 0.
func lunOf(address string) string {
	if parts := strings.Split(address, ":"); len(parts) == 4 {
		return parts[3]
	}
	return "0"
}

func resolved(dir, name string) string {
	path, err := filepath.EvalSymlinks(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return path
}

// usbSerial is the serial of the USB device that dir hangs on: the one on the
// label. The disk behind a USB bridge may have another or none.
func usbSerial(dir string) string { return text(usbDevice(dir), "serial") }

// usbDevice is the folder of the USB device that dir hangs on.
func usbDevice(dir string) string {
	for ; len(dir) > 1; dir = filepath.Dir(dir) {
		if present(dir, "idVendor") {
			return dir
		}
	}
	return ""
}

// vpdSerial reads SCSI's unit serial number page, which libata fills in as well.
func vpdSerial(dir string) string {
	page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80"))
	if err != nil || len(page) < 4 {
		return ""
	}
	return printable(string(page[4:]))
}

func partitions(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "*", "partition")) // the pattern is well-formed
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	slices.SortFunc(found, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	return found
}

func sectors(dir string) int64 { return counted(dir, "size") }

// counted reads a number of sectors; the kernel's have 512 bytes on every disk.
func counted(dir, name string) int64 {
	n, err := strconv.ParseInt(text(dir, name), 10, 54)
	if err != nil || n < 0 {
		return 0
	}
	return n * 512
}

func present(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return err == nil
}

// text reads an attribute; one that is not there is empty. What devices say of
// themselves goes to terminals, so it is stripped of control characters.
func text(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return printable(string(data))
}

func printable(s string) string {
	const longest = 256
	s = strings.ToValidUTF8(s[:min(len(s), longest)], "")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s))
}

// number is how the kernel writes a device's number.
func number(rdev uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev))
}
