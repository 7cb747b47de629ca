package flash

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
	"unicode"

	"golang.org/x/sys/unix"
)

// machine is where the kernel tells of its devices. Tests lay out their own.
type machine struct{ sys, proc, dev string }

var here = machine{sys: "/sys", proc: "/proc", dev: "/dev"}

func (m machine) devices(ctx context.Context) ([]Device, error) {
	entries, err := os.ReadDir(filepath.Join(m.sys, "class/block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	uses, err := m.uses()
	if err != nil {
		return nil, err
	}
	var found []Device
	for _, e := range entries {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		dir, err := m.dir(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // pulled out meanwhile
		}
		if err != nil {
			return nil, err
		}
		if d := m.device(dir, uses); m.listed(dir) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b Device) int { return cmp.Compare(a.Path, b.Path) })
	return found, nil
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
		exists:    true,
		sequence:  text(dir, "diskseq"),
	}
	d.Model, d.Serial = identity(dir, d.Bus)
	for _, p := range partitions(dir) {
		d.Partitions = append(d.Partitions, Content{
			Name: filepath.Base(p), SizeBytes: sectors(p), Uses: m.claims(p, uses),
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

// usbSerial is the serial of the USB device that dir hangs on: the one on the
// label. The disk behind a USB bridge may have another or none.
func usbSerial(dir string) string {
	for ; len(dir) > 1; dir = filepath.Dir(dir) {
		if present(dir, "idVendor") {
			return text(dir, "serial")
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

func sectors(dir string) int64 {
	n, err := strconv.ParseInt(text(dir, "size"), 10, 54)
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
