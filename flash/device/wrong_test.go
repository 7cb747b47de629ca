package device

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/flashtest"
)

// wrongCase points a flash at what must not be written, on a machine that is laid out as
// its kernel would, and returns what is said of it. What a real kernel can be brought to
// do is in wrong_test.go of package flash.
type wrongCase struct {
	name, want string
	point      func(t *testing.T) error
}

func TestWrongDisk(t *testing.T) {
	for _, tt := range slices.Concat(mountedCases, usedCases, memberCases, nameCases, swappedCases, kernelCases, confirmCases) {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.point(t)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("refused with %v; want %q", err, tt.want)
			}
		})
	}
}

// Without anything against them, the same devices are taken.
func TestRightDisk(t *testing.T) {
	for device, o := range map[string]confirmation{
		"sda":     {yes: []string{"4C530001"}},
		"mmcblk0": byAnswer,
		"nvme1n1": {yes: []string{"S5SPARE"}},
	} {
		if err := inLaptop("", device, o)(t); err != nil {
			t.Errorf("%s: %v", device, err)
		}
	}
}

// confirmation is what a user says.
type confirmation struct {
	yes []string
	ask func([]Device) error
}

var byAnswer = confirmation{ask: func([]Device) error { return nil }}

// inLaptop tries a device of the machine that sysfs_test.go lays out, changed by
// lines.
func inLaptop(lines, device string, c confirmation) func(*testing.T) error {
	return func(t *testing.T) error { return try(t, fake(t, laptop+lines), device, c) }
}

// try does what a flash does before it writes.
func try(t *testing.T, m machine, device string, c confirmation) error {
	t.Helper()
	dir, err := m.sysfsDir(device)
	if err != nil {
		t.Fatal(err)
	}
	d, err := m.blockAt(dir)
	if err == nil {
		err = checkRefused(d)
	}
	if err == nil {
		err = Confirm(t.Context(), []Device{d}, c.yes, c.ask)
	}
	return err
}

func checkRefused(d Device) error {
	if d.Refused != "" {
		return errors.New("refused: " + d.Refused)
	}
	return nil
}

// becomes compares a device with what has its name afterwards.
func becomes(lines string) func(*testing.T) error {
	return func(t *testing.T) error {
		device := func(lines string) Device {
			m := fake(t, laptop+stick+"/diskseq = 7\n"+lines)
			dir, err := m.sysfsDir("sda")
			if err != nil {
				t.Fatal(err)
			}
			d, err := m.blockAt(dir)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		return device("").checkUnchanged(device(lines))
	}
}

func loopOver(path string) string {
	const loop = "sys/devices/virtual/block/loop3"
	return "sys/class/block/loop3 -> " + loop + "\n" + loop + "/dev = 7:3\n" + loop + "/size = 2097152\n" + loop + "/loop/backing_file = " + path
}

const stickPort = "sys/devices/pci0/usb1/1-2"

// A second reader with the same serial, as cheap ones have it; and a second slot of
// the first one.
const (
	secondReader = `
sys/class/block/sdb -> sys/devices/pci0/usb1/1-3/1-3:1.0/host5/target5:0:0/5:0:0:0/block/sdb
sys/devices/pci0/usb1/1-3/idVendor = 0781
sys/devices/pci0/usb1/1-3/serial = 4C530001
sys/devices/pci0/usb1/1-3/1-3:1.0/host5/target5:0:0/5:0:0:0/block/sdb/device -> sys/devices/pci0/usb1/1-3/1-3:1.0/host5/target5:0:0/5:0:0:0
sys/devices/pci0/usb1/1-3/1-3:1.0/host5/target5:0:0/5:0:0:0/block/sdb/dev = 8:16
sys/devices/pci0/usb1/1-3/1-3:1.0/host5/target5:0:0/5:0:0:0/block/sdb/size = 2097152
sys/devices/pci0/usb1/1-3/1-3:1.0/host5/target5:0:0/5:0:0:0/block/sdb/removable = 1
`
	secondSlot = `
sys/class/block/sdc -> sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:1/block/sdc
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:1/block/sdc/device -> sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:1
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:1/block/sdc/dev = 8:32
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:1/block/sdc/size = 2097152
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:1/block/sdc/removable = 1
`
	secondNamespace = `
sys/class/block/nvme1n2 -> sys/devices/pci0/nvme/nvme1/nvme1n2
sys/devices/pci0/nvme/nvme1/nvme1n2/device -> sys/devices/pci0/nvme/nvme1
sys/devices/pci0/nvme/nvme1/nvme1n2/dev = 259:9
sys/devices/pci0/nvme/nvme1/nvme1n2/size = 2097152
`
)

// typing answers each question with the same line.
func typing(line string) confirmation {
	return confirmation{ask: func(devices []Device) error { return Ask(strings.NewReader(line), io.Discard)(devices) }}
}

var mountedCases = []wrongCase{
	{"the system's disk", "refused: holds the running system: /", inLaptop("", "nvme0n1", byAnswer)},
	{"the system's disk by its serial", "refused: holds the running system: /", inLaptop("", "nvme0n1", confirmation{yes: []string{"S4EWNX0N"}})},
	{"the disk with the EFI system partition", "holds the running system: /boot/efi", inLaptop(`proc/self/mountinfo = 3 1 8:1 / /boot/efi rw - vfat /dev/sda1 rw`, "sda", byAnswer)},
	{"the system's disk as the first process sees it", "holds the running system: /", inLaptop(`proc/1/mountinfo = 3 1 8:0 / / rw - xfs /dev/sda rw`, "sda", byAnswer)},
	{"mounted under a blank", "in use: sda1: mounted on /media/my card", inLaptop(`proc/self/mountinfo = 3 1 8:1 / /media/my\040card rw - vfat /dev/sda1 rw`, "sda", byAnswer)},
	{"mounted by a number of its own", "in use: sda1: mounted on /srv", inLaptop(`proc/self/mountinfo = 3 1 0:40 /sub /srv rw - btrfs /dev/sda1 rw`, "sda", byAnswer)},
	{"the second disk of a bcachefs", "in use: sda1: mounted on /srv", inLaptop(`proc/self/mountinfo = 3 1 0:40 / /srv rw - bcachefs /dev/nvme1n1:/dev/sda1 rw`, "sda", byAnswer)},
	{"the system on encrypted LVM", "holds the running system: /usr", inLaptop(
		"sys/class/block/dm-0 -> sys/devices/virtual/block/dm-0\nsys/devices/virtual/block/dm-0/dm/name = crypt\n"+
			stick+"/sda1/holders/dm-0 -> sys/devices/virtual/block/dm-0\n"+
			"sys/class/block/dm-1 -> sys/devices/virtual/block/dm-1\nsys/devices/virtual/block/dm-1/dev = 253:1\n"+
			"sys/devices/virtual/block/dm-0/holders/dm-1 -> sys/devices/virtual/block/dm-1\n"+
			`proc/self/mountinfo = 3 1 253:1 / /usr rw - ext4 /dev/mapper/usr rw`, "sda", byAnswer,
	)},
	{"the system on a RAID of partitions", "holds the running system: /", inLaptop(
		"sys/class/block/md0 -> sys/devices/virtual/block/md0\nsys/devices/virtual/block/md0/dev = 9:0\n"+
			stick+"/sda1/holders/md0 -> sys/devices/virtual/block/md0\n"+
			`proc/self/mountinfo = 3 1 9:0 / / rw - ext4 /dev/md0 rw`, "sda", byAnswer,
	)},
	{"the system on a btrfs over two disks, the other one", "holds the running system: /", inLaptop(
		"sys/fs/btrfs/1234/devices/nvme1n1 -> sys/devices/pci0/nvme/nvme1/nvme1n1\nsys/fs/btrfs/1234/devices/sda -> "+stick+"\n"+
			`proc/self/mountinfo = 3 1 0:40 / / rw - btrfs /dev/nvme1n1 rw`, "sda", byAnswer,
	)},
}

var usedCases = []wrongCase{
	{"swap on a partition", "in use: sda1: swap", inLaptop(`proc/swaps = Filename Type Size\n/dev/sda1 partition 512`, "sda", byAnswer)},
	{"in a RAID", "in use: sda1: part of md0", inLaptop(stick+"/sda1/holders/md0/dev = 9:0", "sda", byAnswer)},
	{"in an LVM", "in use: part of dm-0 (vg0-home)", inLaptop(
		"sys/class/block/dm-0 -> sys/devices/virtual/block/dm-0\nsys/devices/virtual/block/dm-0/dm/name = vg0-home\n"+
			stick+"/holders/dm-0 -> sys/devices/virtual/block/dm-0", "sda", byAnswer,
	)},
	{"a path of a multipath", "in use: part of dm-0 (mpatha)", inLaptop(
		"sys/class/block/dm-0 -> sys/devices/virtual/block/dm-0\nsys/devices/virtual/block/dm-0/dm/name = mpatha\n"+
			stick+"/holders/dm-0 -> sys/devices/virtual/block/dm-0", "sda", byAnswer,
	)},
	{"in a bcache", "in use: sda1: part of bcache0", inLaptop(stick+"/sda1/holders/bcache0/dev = 252:0", "sda", byAnswer)},
	{"in a ZFS pool that is imported", "part of a ZFS pool (tank)", func(t *testing.T) error {
		m := fake(t, laptop+"proc/spl/kstat/zfs/tank/state = ONLINE")
		flashtest.Scribble(t, filepath.Join(m.nodes, "sda"), 16<<10, flashtest.ZfsProperties())
		return try(t, m, "sda", confirmation{yes: []string{"4C530001"}})
	}},
}

var memberCases = []wrongCase{
	{"a partition in a RAID that is off", "sda1 is a part of a RAID array (nas:0), so it is written only when confirmed by its serial", func(t *testing.T) error {
		m := fake(t, laptop+stick+"/sda1/start = 2048")
		flashtest.Scribble(t, filepath.Join(m.nodes, "sda"), 446, []byte("\x00\x00\x00\x00\xfd\x00\x00\x00\x00\x08\x00\x00\x00\x04\x00\x00"))
		flashtest.Scribble(t, filepath.Join(m.nodes, "sda"), 510, []byte("\x55\xaa"))
		flashtest.Scribble(t, filepath.Join(m.nodes, "sda"), mib+4096, flashtest.MdSuperblock())
		return try(t, m, "sda", byAnswer)
	}},
}

var nameCases = []wrongCase{
	{"a file among the devices", "a file among the devices", func(t *testing.T) error {
		m := fake(t, laptop)
		m.dev = filepath.Join(m.sys, "../dev") // where the nodes are files
		d, err := m.examineName(filepath.Join(m.dev, "sda"))
		if err != nil {
			return err
		}
		return checkRefused(d)
	}},
}

var swappedCases = []wrongCase{
	{"another card of the same model", `its serial was "4C530001", and is "4C539999"`, becomes(stickPort + "/serial = 4C539999")},
	{"another card with the same serial", `its place in the kernel's count of disks was "7", and is "8"`, becomes(stick + "/diskseq = 8")},
	{"a larger card with the same serial", `its size was "1.0 GiB (1073741824 bytes)", and is "2.0 GiB (2147483648 bytes)"`, becomes(stick + "/size = 4194304")},
	{"a card larger by a sector", "its size was \"1.0 GiB (1073741824 bytes)\", and is \"1.0 GiB (1073742336 bytes)\"", becomes(stick + "/size = 2097153")},
	{"a disk that took its name", `its number was "8:0", and is "8:16"`, becomes(stick + "/dev = 8:16")},
	{"mounted meanwhile, by another kernel's account", "refused: in use: sda1: mounted on /srv", becomes(`proc/self/mountinfo = 3 1 8:1 / /srv rw - vfat /dev/sda1 rw`)},
	{"write-protected meanwhile", "refused: read-only", becomes(stick + "/ro = 1")},
	{"its medium taken out", "refused: no medium", becomes(stick + "/size = 0")},
}

var kernelCases = []wrongCase{
	{"a slot without a card", "refused: no medium in it", inLaptop(stick+"/size = 0", "sda", byAnswer)},
	{"a loop device over the system's disk", "a loop device over /dev/nvme0n1; name that itself", inLaptop(loopOver("/dev/nvme0n1"), "loop3", byAnswer)},
	{"a loop device over the system's partition", "a loop device over /dev/nvme0n1p2; name that itself", inLaptop(loopOver("/dev/nvme0n1p2"), "loop3", byAnswer)},
	{"what LVM makes of disks", "not a disk, but something that the kernel makes", inLaptop("sys/class/block/dm-0 -> sys/devices/virtual/block/dm-0\nsys/devices/virtual/block/dm-0/dev = 253:0\nsys/devices/virtual/block/dm-0/size = 2097152", "dm-0", byAnswer)},
	{"a RAID itself", "not a disk, but something that the kernel makes", inLaptop("sys/class/block/md0 -> sys/devices/virtual/block/md0\nsys/devices/virtual/block/md0/dev = 9:0\nsys/devices/virtual/block/md0/size = 2097152", "md0", byAnswer)},
	{"compressed memory", "not a disk, but something that the kernel makes", inLaptop("sys/class/block/zram0 -> sys/devices/virtual/block/zram0\nsys/devices/virtual/block/zram0/dev = 253:0\nsys/devices/virtual/block/zram0/size = 2097152", "zram0", byAnswer)},
	{"an optical drive", "an optical drive", inLaptop("sys/class/block/sr0 -> sys/devices/pci0/ata1/host0/block/sr0\nsys/devices/pci0/ata1/host0/block/sr0/dev = 11:0\nsys/devices/pci0/ata1/host0/block/sr0/size = 2097152", "sr0", byAnswer)},
	{"a floppy drive", "a floppy drive", inLaptop("sys/class/block/fd0 -> sys/devices/platform/floppy.0/block/fd0\nsys/devices/platform/floppy.0/block/fd0/dev = 2:0\nsys/devices/platform/floppy.0/block/fd0/size = 2880", "fd0", byAnswer)},
	{"a path to an NVMe disk that has two", "one of several paths to a disk", inLaptop("sys/devices/pci0/nvme/nvme1/nvme1n1/hidden = 1", "nvme1n1", confirmation{yes: []string{"S5SPARE"}})},
	{"the boot area of a card", "a boot area of /dev/mmcblk0; name that itself", inLaptop(
		"sys/class/block/mmcblk0boot0 -> sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/mmcblk0boot0\n"+
			"sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/mmcblk0boot0/dev = 179:8\n"+
			"sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/mmcblk0boot0/size = 8192", "mmcblk0boot0", byAnswer,
	)},
	{"a disk that does not answer", "does not answer", func(t *testing.T) error {
		m := fake(t, laptop)
		m.patience = time.Millisecond
		node := filepath.Join(m.nodes, "sda")
		if err := errors.Join(os.Remove(node), unix.Mkfifo(node, 0o600)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // lets go who waits
			if f, err := os.OpenFile(node, os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
				f.Close()
			}
		})
		return try(t, m, "sda", byAnswer)
	}},
}

var confirmCases = []wrongCase{
	{"a disk that is not removable, by an answer", "not removable, so it is written only when confirmed by its serial", inLaptop("", "nvme1n1", byAnswer)},
	{"a disk that is not removable, by its path", `but /dev/nvme1n1 is confirmed by its serial; nothing`, inLaptop("", "nvme1n1", confirmation{yes: []string{"/dev/nvme1n1"}})},
	{"an eMMC, by an answer", "not removable", inLaptop("sys/devices/pci0/mmc_host/mmc0/mmc0:0001/type = MMC", "mmcblk0", byAnswer)},
	{"a card by its path", `but /dev/sda is confirmed by its serial; nothing`, inLaptop("", "sda", confirmation{yes: []string{"/dev/sda"}})},
	{"a card by another's serial", `--yes names "4C530002"`, inLaptop("", "sda", confirmation{yes: []string{"4C530002"}})},
	{"a card by its serial, and one more", `--yes names "S5SPARE", which is none of the devices`, inLaptop("", "sda", confirmation{yes: []string{"4C530001", "S5SPARE"}})},
	{"a card by nothing", "not confirmed: confirm it by its serial", inLaptop("", "sda", confirmation{})},
	{"a card by an empty serial", "--yes names", inLaptop("", "sda", confirmation{yes: []string{""}})},
	{"one of two readers with the same serial", `but /dev/sda is confirmed by its port (/dev/sdb has the same serial); nothing`, inLaptop(secondReader, "sda", confirmation{yes: []string{"4C530001"}})},
	{"one of two slots of a reader", `but /dev/sdc is confirmed by its port (/dev/sda has the same serial); nothing`, inLaptop(secondSlot, "sdc", confirmation{yes: []string{"4C530001"}})},
	{"one of two disks of an NVMe controller", "but /dev/nvme1n1 is confirmed by its port (/dev/nvme1n2 has the same serial)", inLaptop(secondNamespace, "nvme1n1", confirmation{yes: []string{"S5SPARE"}})},
	{"another name typed", `"sdb" was typed, not sda`, inLaptop("", "sda", typing("sdb\n"))},
	{"yes typed", `"y" was typed, not sda`, inLaptop("", "sda", typing("y\n"))},
	{"nothing typed", "to confirm the whole line: --yes=<serial of /dev/sda>", inLaptop("", "sda", typing(""))},
}
