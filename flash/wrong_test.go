package flash

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/images"
)

// wrongWay points a flash at what must not be written, as really as this machine can
// do it, and returns what the flash said.
type wrongWay struct {
	name, want string
	point      func(t *testing.T, a images.Artifact) error
}

// TestWrongDisk is one list of all ways to destroy a disk by a flash that have come
// to our mind. Each is refused, with its own reason.
func TestWrongDisk(t *testing.T) {
	a := little(t)
	for _, way := range slices.Concat(mountedWays, partitionWays, usedWays, memberWays, nameWays, swappedWays, fileWays, kernelWays, confirmWays) {
		t.Run(way.name, func(t *testing.T) {
			err := way.point(t, a)
			if err == nil || !strings.Contains(err.Error(), way.want) {
				t.Errorf("refused with %v; want %q", err, way.want)
			}
		})
	}
}

// A hundred devices are filled and compared here, so that they are small.
const (
	littleImage  = 2 * mib
	littleDevice = 5 * mib
)

func little(t *testing.T) images.Artifact {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(path, tabled(bytes.Repeat([]byte("image..."), littleImage/8)), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return describe(t, dir, mapOf(t, f))
}

// Without anything against them, the same devices are taken.
func TestRightDisk(t *testing.T) {
	for device, o := range map[string]Options{
		"sda":     {Yes: []string{"4C530001"}},
		"mmcblk0": {Confirm: func([]Device) error { return nil }},
		"nvme1n1": {Yes: []string{"S5SPARE"}},
	} {
		if err := inLaptop("", device, o)(t, images.Artifact{}); err != nil {
			t.Errorf("%s: %v", device, err)
		}
	}
}

// onLoop tries a real loop device full of a former owner's data, and looks whether
// that is still there.
func onLoop(prepare func(t *testing.T, device, file string) (name string, o Options)) func(*testing.T, images.Artifact) error {
	return func(t *testing.T, a images.Artifact) error {
		device, file := loop(t, littleDevice)
		name, o := prepare(t, device, file)
		before := read(t, file)
		_, err := Write(t.Context(), spec, a, name, o)
		same(t, "device", read(t, file), before)
		return err
	}
}

// itself prepares a device, and names it by its path.
func itself(prepare func(t *testing.T, device, file string)) func(*testing.T, images.Artifact) error {
	return onLoop(func(t *testing.T, device, file string) (string, Options) {
		prepare(t, device, file)
		return device, Options{Yes: []string{device}}
	})
}

// inLaptop tries a device of the machine that sysfs_test.go lays out, changed by
// lines.
func inLaptop(lines, device string, o Options) func(*testing.T, images.Artifact) error {
	return func(t *testing.T, _ images.Artifact) error {
		return fake(t, laptop+lines).try(t, device, o)
	}
}

// try does what writeAll does before it writes.
func (m machine) try(t *testing.T, device string, o Options) error {
	t.Helper()
	dir, err := m.dir(device)
	if err != nil {
		t.Fatal(err)
	}
	d, err := m.blockAt(dir)
	if err == nil {
		err = admit(spec, d)
	}
	if err == nil {
		err = o.agree(t.Context(), []Device{d})
	}
	return err
}

var byAnswer = Options{Confirm: func([]Device) error { return nil }}

func mountAt(t *testing.T, source, kind, options string) string {
	t.Helper()
	at := filepath.Join(t.TempDir(), "a place")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(source, at, kind, unix.MS_RDONLY, options); err != nil {
		t.Fatalf("mount %s: %v", source, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

func ext4(t *testing.T, device, _ string) {
	t.Helper()
	mustRun(t, e2fs(t, "mke2fs"), "-q", "-F", device)
}

func mountedExt4(t *testing.T, device, file string) {
	t.Helper()
	ext4(t, device, file)
	mountAt(t, device, "ext4", "")
}

// sleeper is a program that runs until the test ends.
func sleeper(t *testing.T, change func(*exec.Cmd)) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	change(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// held opens a device in another program.
func held(t *testing.T, device string, flags int) {
	t.Helper()
	f, err := os.OpenFile(device, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	sleeper(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{f} })
	f.Close()
}

func linkTo(t *testing.T, target string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "by-label", "CARD")
	link(t, "", path, target)
	return path
}

// partition makes a partition of a loop device, which the kernel knows.
func partition(t *testing.T, device string) string {
	t.Helper()
	if _, err := exec.LookPath("addpart"); err != nil {
		t.Skip("addpart is missing (Debian package util-linux)")
	}
	mustRun(t, "addpart", device, "1", "2048", "6144")
	t.Cleanup(func() { clearPartitions(t, device) })
	return partitionNode(t, device+"p1")
}

// partitionNode is a node of a partition's own, since not each machine has somebody who
// makes them.
func partitionNode(t *testing.T, device string) string {
	t.Helper()
	number := text(filepath.Join("/sys/class/block", filepath.Base(device)), "dev")
	var major, minor uint32
	if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); err != nil {
		t.Fatalf("%s has no partition: %v", device, err)
	}
	node := filepath.Join(t.TempDir(), filepath.Base(device)+"p1")
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
	return node
}

// attached attaches a sparse file.
func attached(t *testing.T, size int64, args ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
	file := filepath.Join(t.TempDir(), "sparse")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	return attach(t, append(args, file)...)
}

var mountedWays = []wrongWay{
	{"mounted", "refused: in use: mounted on ", itself(mountedExt4)},
	{"mounted, through a link", "refused: in use: mounted on ", onLoop(func(t *testing.T, device, file string) (string, Options) {
		mountedExt4(t, device, file)
		return linkTo(t, device), Options{Yes: []string{device}}
	})},
	{"a partition of it mounted", "p1: mounted on ", itself(func(t *testing.T, device, _ string) {
		node := partition(t, device)
		ext4(t, node, "")
		mountAt(t, node, "ext4", "")
	})},
	{"mounted for another program alone", " for sleep (process ", itself(func(t *testing.T, device, file string) {
		ext4(t, device, file)
		// Go makes the new namespace's mounts private.
		p := sleeper(t, func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} })
		mustRun(t, "nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", p.Process.Pid), "mount", "-t", "ext4", "-o", "ro", device, "/mnt")
	})},
	{"mounted, and the mount hidden away", "in use", itself(func(t *testing.T, device, file string) {
		ext4(t, device, file)
		at := mountAt(t, device, "ext4", "")
		inside, err := os.Open(filepath.Join(at, "lost+found"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { inside.Close() })
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	})},
	{"below an overlay", "refused: in use: mounted on ", itself(func(t *testing.T, device, file string) {
		ext4(t, device, file)
		at := mountAt(t, device, "ext4", "")
		mountAt(t, "overlay", "overlay", "lowerdir="+strings.ReplaceAll(at, " ", `\ `)+":"+t.TempDir())
	})},
	{"the other disk of a mounted btrfs", "part of a btrfs that is mounted", func(t *testing.T, a images.Artifact) error {
		if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
			t.Skip("mkfs.btrfs is missing (Debian package btrfs-progs)")
		}
		first, second := attached(t, 128*mib), attached(t, 128*mib)
		mustRun(t, "mkfs.btrfs", "-q", "-m", "raid1", "-d", "raid1", first, second)
		mountAt(t, first, "btrfs", "device="+first+",device="+second)
		_, err := Write(t.Context(), spec, a, second, Options{Yes: []string{second}})
		return err
	}},
	{"the disk that this machine runs from", "refused: holds the running system: /", func(t *testing.T, a images.Artifact) error {
		return dryRun(t, a, func(device string) string { return device })
	}},
	{"the disk that this machine runs from, by its label", "refused: holds the running system: /", func(t *testing.T, a images.Artifact) error {
		return dryRun(t, a, func(device string) string { return linkTo(t, device) })
	}},
	{"a loop device over the disk that this machine runs from", "name that itself", func(t *testing.T, a images.Artifact) error {
		return dryRun(t, a, func(device string) string { return attach(t, "--read-only", device) })
	}},
	{"the system's disk", "refused: holds the running system: /", inLaptop("", "nvme0n1", byAnswer)},
	{"the system's disk by its serial", "refused: holds the running system: /", inLaptop("", "nvme0n1", Options{Yes: []string{"S4EWNX0N"}})},
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

// dryRun tries the machine's own disk, or what rename makes of it. It is a dry run,
// so that a fault costs a test and no machine.
func dryRun(t *testing.T, a images.Artifact, rename func(device string) string) error {
	t.Helper()
	all, err := Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
	i := slices.IndexFunc(all, func(d Device) bool { return strings.HasPrefix(d.Refused, ofSystem) })
	if i < 0 {
		t.Skip("this machine runs from no disk that it shows (a container); elsewhere this is tried")
	}
	_, err = Write(t.Context(), spec, a, rename(all[i].Path), Options{DryRun: true})
	return err
}

var usedWays = []wrongWay{
	{"swap", "refused: in use: swap", func(t *testing.T, a images.Artifact) error {
		device, file := loop(t, littleDevice)
		return swappedTo(t, a, device, file)
	}},
	{"swap on a partition", "in use: sda1: swap", inLaptop(`proc/swaps = Filename Type Size\n/dev/sda1 partition 512`, "sda", byAnswer)},
	{"behind another loop device", "refused: in use: behind /dev/loop", itself(func(t *testing.T, device, _ string) { attach(t, device) })},
	{"a partition behind a loop device", "p1: behind /dev/loop", itself(func(t *testing.T, device, _ string) { attach(t, partition(t, device)) })},
	{"a loop device over a device", "name that itself", onLoop(func(t *testing.T, device, _ string) (string, Options) {
		over := attach(t, device)
		return over, Options{Yes: []string{over}}
	})},
	{"opened by another program alone", "in use by sleep (process ", itself(func(t *testing.T, device, _ string) { held(t, device, os.O_RDONLY|unix.O_EXCL) })},
	{"written by another program", "refused: in use: open for writing by sleep (process ", itself(func(t *testing.T, device, _ string) { held(t, device, os.O_WRONLY) })},
	{"locked by another program", "locked", itself(func(t *testing.T, device, _ string) {
		if err := unix.Flock(int(keep(t, device, 0).Fd()), unix.LOCK_SH); err != nil {
			t.Fatal(err)
		}
	})},
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
	{"in a ZFS pool that is imported", "part of a ZFS pool (tank)", func(t *testing.T, _ images.Artifact) error {
		m := fake(t, laptop+"proc/spl/kstat/zfs/tank/state = ONLINE")
		scribble(t, filepath.Join(m.nodes, "sda"), 16<<10, zfsProperties())
		return m.try(t, "sda", Options{Yes: []string{"4C530001"}})
	}},
}

// swappedTo tries a device or a file that holds a swap area. A kernel that is short of
// memory writes into the area at any time. So the area has ten pages, the fewest that
// mkswap makes, and only its header and what lies behind it are compared.
func swappedTo(t *testing.T, a images.Artifact, name, file string) error {
	t.Helper()
	page := os.Getpagesize()
	mustRun(t, "mkswap", name, strconv.Itoa(10*page/1024))
	mustRun(t, "swapon", name)
	t.Cleanup(func() { mustRun(t, "swapoff", name) })
	kept := func() []byte {
		p := read(t, file)
		clear(p[page : 10*page])
		return p
	}
	before := kept()
	_, err := Write(t.Context(), spec, a, name, Options{Yes: []string{name}})
	same(t, name, kept(), before)
	return err
}

// zfsProperties are a pool's, as they lie on each of its disks.
func zfsProperties() []byte {
	word := func(n uint32) string { return string([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) }
	return []byte("\x01\x01\x00\x00" + word(0) + word(1) +
		word(32) + word(48) + word(4) + "name" + word(9) + word(1) + word(4) + "tank" +
		word(40) + word(48) + word(9) + "pool_guid\x00\x00\x00" + word(8) + word(1) + word(0) + word(7))
}

// scribble writes into what a device holds.
func scribble(t *testing.T, path string, off int64, p []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(p, off); err != nil {
		t.Fatal(err)
	}
}

// lvmLabel is what makes a disk a part of a volume group.
func lvmLabel() []byte {
	p := make([]byte, 512)
	copy(p, "LABELONE")
	p[20] = 32
	copy(p[24:], "LVM2 001abcdefghijklmnopqrstuvwxyzABCDEF")
	return p
}

// mdSuperblock is that of a RAID of version 1.2.
func mdSuperblock() []byte {
	p := make([]byte, 256)
	copy(p, "\xfc\x4e\x2b\xa9\x01")
	copy(p[16:], "0123456789abcdefnas:0"[:16])
	copy(p[32:], "nas:0")
	p[144] = 8
	return p
}

// holding puts something onto a loop device, which nobody uses at the moment.
func holding(off int64, p []byte) func(*testing.T, images.Artifact) error {
	return onLoop(func(t *testing.T, device, _ string) (string, Options) {
		scribble(t, device, off, p)
		return device, byAnswer
	})
}

var memberWays = []wrongWay{
	{"in an LVM that is off", "is a part of an LVM volume group, so it is written only when confirmed by its path", holding(512, lvmLabel())},
	{"in a RAID that is off", "is a part of a RAID array (nas:0), so it is written only", holding(4096, mdSuperblock())},
	{"in a ZFS pool that is exported", "is a part of a ZFS pool (tank), so it is written only", holding(16<<10, zfsProperties())},
	{"a partition in a RAID that is off", "sda1 is a part of a RAID array (nas:0), so it is written only when confirmed by its serial", func(t *testing.T, _ images.Artifact) error {
		m := fake(t, laptop+stick+"/sda1/start = 2048")
		scribble(t, filepath.Join(m.nodes, "sda"), 446, []byte("\x00\x00\x00\x00\xfd\x00\x00\x00\x00\x08\x00\x00\x00\x04\x00\x00"))
		scribble(t, filepath.Join(m.nodes, "sda"), 510, []byte("\x55\xaa"))
		scribble(t, filepath.Join(m.nodes, "sda"), mib+4096, mdSuperblock())
		return m.try(t, "sda", byAnswer)
	}},
	{"a disk of a btrfs that is not mounted", "is a part of a btrfs over 2 devices", func(t *testing.T, a images.Artifact) error {
		if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
			t.Skip("mkfs.btrfs is missing (Debian package btrfs-progs)")
		}
		first, second := attached(t, 128*mib), attached(t, 128*mib)
		mustRun(t, "mkfs.btrfs", "-q", "-m", "raid1", "-d", "raid1", first, second)
		_, err := Write(t.Context(), spec, a, second, byAnswer)
		return err
	}},
}

var nameWays = []wrongWay{
	{"a partition", "a partition; name the whole disk, /dev/loop", onLoop(func(t *testing.T, device, _ string) (string, Options) {
		node := partition(t, device)
		return node, Options{Yes: []string{node}}
	})},
	{"a partition by its label", "a partition; name the whole disk, /dev/loop", onLoop(func(t *testing.T, device, _ string) (string, Options) {
		return linkTo(t, partition(t, device)), byAnswer
	})},
	{"a folder", "neither a file nor a block device, but a folder", called(func(t *testing.T) string { return t.TempDir() })},
	{"a character device", "neither a file nor a block device, but a character device", called(func(*testing.T) string { return "/dev/null" })},
	{"a pipe", "but a pipe", called(func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), "pipe")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	})},
	{"an NVMe controller", "the controller of /dev/nvme1n1; name that", func(t *testing.T, _ images.Artifact) error {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to make a device's node")
		}
		node := filepath.Join(t.TempDir(), "nvme1")
		if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
			t.Fatal(err)
		}
		_, err := fake(t, laptop).examine(node)
		return err
	}},
	{"a mistyped device", "no such device\nnext: devices lists", called(func(*testing.T) string { return "/dev/sdzz9" })},
	{"a card that is not there any more, by its label", "is a link to nothing", called(func(t *testing.T) string { return linkTo(t, "/dev/sdzz9") })},
	{"a file among the devices", "a file among the devices", func(t *testing.T, _ images.Artifact) error {
		m := fake(t, laptop)
		m.dev = filepath.Join(m.sys, "../dev") // where the nodes are files
		d, err := m.examine(filepath.Join(m.dev, "sda"))
		if err != nil {
			return err
		}
		return admit(spec, d)
	}},
	{"another board's kind of device", "it is a device of kind block; board.yml names for this board: tegra", func(t *testing.T, a images.Artifact) error {
		device, _ := loop(t, littleDevice)
		_, err := Write(t.Context(), images.Spec{Board: spec.Board, Flash: images.Flash{Kinds: []string{Tegra}}}, a, device, byAnswer)
		return err
	}},
	{"one device by two names", "are the same device", func(t *testing.T, a images.Artifact) error {
		device, _ := loop(t, littleDevice)
		_, err := WriteAll(t.Context(), spec, a, []string{device, linkTo(t, device)}, byAnswer)
		return err
	}},
	{"a card and a file at once", "flash them one after another", func(t *testing.T, a images.Artifact) error {
		device, _ := loop(t, littleDevice)
		_, err := WriteAll(t.Context(), spec, a, []string{device, filepath.Join(t.TempDir(), "disk.img")}, byAnswer)
		return err
	}},
}

func called(name func(t *testing.T) string) func(*testing.T, images.Artifact) error {
	return func(t *testing.T, a images.Artifact) error {
		_, err := Write(t.Context(), spec, a, name(t), byAnswer)
		return err
	}
}

// afterwards does something to a device once it was shown and confirmed.
func afterwards(do func(t *testing.T, device, file string)) func(*testing.T, images.Artifact) error {
	return func(t *testing.T, a images.Artifact) error {
		device, file := loop(t, littleDevice)
		_, err := Write(t.Context(), spec, a, device, Options{Confirm: func([]Device) error {
			do(t, device, file)
			return nil
		}})
		if bytes.Contains(read(t, file), []byte("image...image...")) {
			t.Error("the image was written")
		}
		return err
	}
}

// becomes compares a device with what has its name afterwards.
func becomes(lines string) func(*testing.T, images.Artifact) error {
	return func(t *testing.T, _ images.Artifact) error {
		device := func(lines string) Device {
			m := fake(t, laptop+stick+"/diskseq = 7\n"+lines)
			dir, err := m.dir("sda")
			if err != nil {
				t.Fatal(err)
			}
			d, err := m.blockAt(dir)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		return device("").changed(device(lines))
	}
}

const stickPort = "sys/devices/pci0/usb1/1-2"

var swappedWays = []wrongWay{
	{"swapped after it was confirmed", "not the device any more", afterwards(func(t *testing.T, device, file string) {
		detach(t, device)
		reattach(t, device, file)
	})},
	{"swapped for a smaller one", "not the device any more", afterwards(func(t *testing.T, device, file string) {
		if err := os.Truncate(file, littleImage+mib); err != nil {
			t.Fatal(err)
		}
		mustRun(t, "losetup", "--set-capacity", device)
	})},
	{"pulled out after it was confirmed", "", afterwards(func(t *testing.T, device, _ string) { detach(t, device) })},
	{"mounted after it was confirmed", "refused: in use: mounted on ", afterwards(mountedExt4)},
	{"made a part of an LVM after it was confirmed", "what is on it is not what was shown", afterwards(func(t *testing.T, device, _ string) {
		scribble(t, device, 512, lvmLabel())
	})},
	{"another card of the same model", `its serial was "4C530001", and is "4C539999"`, becomes(stickPort + "/serial = 4C539999")},
	{"another card with the same serial", `its place in the kernel's count of disks was "7", and is "8"`, becomes(stick + "/diskseq = 8")},
	{"a larger card with the same serial", `its size was "1.0 GiB (1073741824 bytes)", and is "2.0 GiB (2147483648 bytes)"`, becomes(stick + "/size = 4194304")},
	{"a card larger by a sector", "its size was \"1.0 GiB (1073741824 bytes)\", and is \"1.0 GiB (1073742336 bytes)\"", becomes(stick + "/size = 2097153")},
	{"a disk that took its name", `its number was "8:0", and is "8:16"`, becomes(stick + "/dev = 8:16")},
	{"mounted meanwhile, by another kernel's account", "refused: in use: sda1: mounted on /srv", becomes(`proc/self/mountinfo = 3 1 8:1 / /srv rw - vfat /dev/sda1 rw`)},
	{"write-protected meanwhile", "refused: read-only", becomes(stick + "/ro = 1")},
	{"its medium taken out", "refused: no medium", becomes(stick + "/size = 0")},
}

// onFile tries a file that is there already, and looks whether it stays.
func onFile(prepare func(t *testing.T, a images.Artifact) string) func(*testing.T, images.Artifact) error {
	return func(t *testing.T, a images.Artifact) error {
		path := prepare(t, a)
		before := read(t, path)
		_, err := Write(t.Context(), spec, a, path, Options{Yes: []string{path}})
		same(t, "file", read(t, path), before)
		return err
	}
}

func thesis(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "thesis.odt")
	if err := os.WriteFile(path, bytes.Repeat([]byte("thesis. "), int(size/8)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var fileWays = []wrongWay{
	{"the artifact's own image", "refused: it belongs to the artifact", onFile(func(t *testing.T, a images.Artifact) string { return filepath.Join(a.Dir(), "disk.img") })},
	{"the artifact's own block map", "refused: it belongs to the artifact", onFile(func(t *testing.T, a images.Artifact) string { return filepath.Join(a.Dir(), "disk.bmap") })},
	{"another board's virtual disk", "refused: it lies with the artifact of board other", onFile(func(t *testing.T, _ images.Artifact) string {
		dir := t.TempDir()
		if err := (images.Artifact{Board: "other"}).Save(dir); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "machine", "disk.img")
		put(t, path, "another board's")
		return path
	})},
	{"the file behind a loop device", "behind /dev/loop", onFile(func(t *testing.T, _ images.Artifact) string {
		_, file := loop(t, mib)
		return file
	})},
	{"a file that is swapped to", "in use: swap", func(t *testing.T, a images.Artifact) error {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to swap")
		}
		path := thesis(t, mib)
		return swappedTo(t, a, path, path)
	}},
	{"the disk of a virtual machine that is on", inUse, onFile(func(t *testing.T, _ images.Artifact) string {
		path := thesis(t, mib)
		lock := unix.Flock_t{Type: unix.F_RDLCK}
		if err := unix.FcntlFlock(keep(t, path, 0).Fd(), unix.F_OFD_SETLK, &lock); err != nil {
			t.Fatal(err)
		}
		return path
	})},
	{"somebody's file", "not confirmed", func(t *testing.T, a images.Artifact) error {
		path := thesis(t, mib)
		_, err := Write(t.Context(), spec, a, path, Options{})
		return errors.Join(err, unharmed(path))
	}},
}

func unharmed(path string) error {
	if p, err := os.ReadFile(path); err != nil || !bytes.HasPrefix(p, []byte("thesis. ")) {
		return fmt.Errorf("%s is gone: %w", path, err)
	}
	return nil
}

func loopOver(path string) string {
	const loop = "sys/devices/virtual/block/loop3"
	return "sys/class/block/loop3 -> " + loop + "\n" + loop + "/dev = 7:3\n" + loop + "/size = 2097152\n" + loop + "/loop/backing_file = " + path
}

// What only the kernel could lay out; here as its files would say it.
var kernelWays = []wrongWay{
	{"read-only", "refused: read-only; look for a write-protect switch", func(t *testing.T, a images.Artifact) error {
		device, _ := loop(t, littleDevice, "--read-only")
		_, err := Write(t.Context(), spec, a, device, byAnswer)
		return err
	}},
	{"without a medium", "refused: no medium in it", func(t *testing.T, a images.Artifact) error {
		device, file := loop(t, mib)
		if err := os.Truncate(file, 0); err != nil {
			t.Fatal(err)
		}
		mustRun(t, "losetup", "--set-capacity", device)
		_, err := Write(t.Context(), spec, a, device, byAnswer)
		return err
	}},
	{"larger than any card", "nothing over 512 GiB is written for board toy", func(t *testing.T, a images.Artifact) error {
		device := attached(t, 513<<30)
		_, err := Write(t.Context(), spec, a, device, byAnswer)
		return err
	}},
	{"larger than the board's", "nothing over 1 GiB is written for board toy", func(t *testing.T, a images.Artifact) error {
		device, small := attached(t, 1<<30+mib), spec
		small.Flash.LargestGiB = 1
		_, err := Write(t.Context(), small, a, device, byAnswer)
		return err
	}},
	{"too small", "the image needs", func(t *testing.T, a images.Artifact) error {
		device, _ := loop(t, littleImage-4096)
		_, err := Write(t.Context(), spec, a, device, byAnswer)
		return err
	}},
	{"a slot without a card", "refused: no medium in it", inLaptop(stick+"/size = 0", "sda", byAnswer)},
	{"a loop device over the system's disk", "a loop device over /dev/nvme0n1; name that itself", inLaptop(loopOver("/dev/nvme0n1"), "loop3", byAnswer)},
	{"a loop device over the system's partition", "a loop device over /dev/nvme0n1p2; name that itself", inLaptop(loopOver("/dev/nvme0n1p2"), "loop3", byAnswer)},
	{"what LVM makes of disks", "not a disk, but something that the kernel makes", inLaptop("sys/class/block/dm-0 -> sys/devices/virtual/block/dm-0\nsys/devices/virtual/block/dm-0/dev = 253:0\nsys/devices/virtual/block/dm-0/size = 2097152", "dm-0", byAnswer)},
	{"a RAID itself", "not a disk, but something that the kernel makes", inLaptop("sys/class/block/md0 -> sys/devices/virtual/block/md0\nsys/devices/virtual/block/md0/dev = 9:0\nsys/devices/virtual/block/md0/size = 2097152", "md0", byAnswer)},
	{"compressed memory", "not a disk, but something that the kernel makes", inLaptop("sys/class/block/zram0 -> sys/devices/virtual/block/zram0\nsys/devices/virtual/block/zram0/dev = 253:0\nsys/devices/virtual/block/zram0/size = 2097152", "zram0", byAnswer)},
	{"an optical drive", "an optical drive", inLaptop("sys/class/block/sr0 -> sys/devices/pci0/ata1/host0/block/sr0\nsys/devices/pci0/ata1/host0/block/sr0/dev = 11:0\nsys/devices/pci0/ata1/host0/block/sr0/size = 2097152", "sr0", byAnswer)},
	{"a floppy drive", "a floppy drive", inLaptop("sys/class/block/fd0 -> sys/devices/platform/floppy.0/block/fd0\nsys/devices/platform/floppy.0/block/fd0/dev = 2:0\nsys/devices/platform/floppy.0/block/fd0/size = 2880", "fd0", byAnswer)},
	{"a path to an NVMe disk that has two", "one of several paths to a disk", inLaptop("sys/devices/pci0/nvme/nvme1/nvme1n1/hidden = 1", "nvme1n1", Options{Yes: []string{"S5SPARE"}})},
	{"the boot area of a card", "a boot area of /dev/mmcblk0; name that itself", inLaptop(
		"sys/class/block/mmcblk0boot0 -> sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/mmcblk0boot0\n"+
			"sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/mmcblk0boot0/dev = 179:8\n"+
			"sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/mmcblk0boot0/size = 8192", "mmcblk0boot0", byAnswer,
	)},
	{"a disk that does not answer", "does not answer", func(t *testing.T, _ images.Artifact) error {
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
		return m.try(t, "sda", byAnswer)
	}},
}

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
func typing(line string) Options {
	return Options{Confirm: func(devices []Device) error { return Ask(strings.NewReader(line), io.Discard)(devices) }}
}

var confirmWays = []wrongWay{
	{"a disk that is not removable, by an answer", "not removable, so it is written only when confirmed by its serial", inLaptop("", "nvme1n1", byAnswer)},
	{"a disk that is not removable, by its path", `but its serial of /dev/nvme1n1 is "S5SPARE"`, inLaptop("", "nvme1n1", Options{Yes: []string{"/dev/nvme1n1"}})},
	{"an eMMC, by an answer", "not removable", inLaptop("sys/devices/pci0/mmc_host/mmc0/mmc0:0001/type = MMC", "mmcblk0", byAnswer)},
	{"a card by its path", `but its serial of /dev/sda is "4C530001"`, inLaptop("", "sda", Options{Yes: []string{"/dev/sda"}})},
	{"a card by another's serial", `confirmed as "4C530002"`, inLaptop("", "sda", Options{Yes: []string{"4C530002"}})},
	{"a card by its serial, and one more", `confirmed as "S5SPARE", which is none of the devices`, inLaptop("", "sda", Options{Yes: []string{"4C530001", "S5SPARE"}})},
	{"a card by nothing", "not confirmed: confirm it by its serial", inLaptop("", "sda", Options{})},
	{"a card by an empty serial", "confirmed as", inLaptop("", "sda", Options{Yes: []string{""}})},
	{"one of two readers with the same serial", `but its port (/dev/sdb has the same serial) of /dev/sda is "usb:1-2"`, inLaptop(secondReader, "sda", Options{Yes: []string{"4C530001"}})},
	{"one of two slots of a reader", `but its port (/dev/sda has the same serial) of /dev/sdc is "usb:1-2/1"`, inLaptop(secondSlot, "sdc", Options{Yes: []string{"4C530001"}})},
	{"one of two disks of an NVMe controller", "but its port (/dev/nvme1n2 has the same serial) of /dev/nvme1n1", inLaptop(secondNamespace, "nvme1n1", Options{Yes: []string{"S5SPARE"}})},
	{"another name typed", `"sdb" was typed, not sda`, inLaptop("", "sda", typing("sdb\n"))},
	{"yes typed", `"y" was typed, not sda`, inLaptop("", "sda", typing("y\n"))},
	{"nothing typed", `"" was typed, not sda`, inLaptop("", "sda", typing(""))},
	{"one of two names typed", "was typed, not loop", func(t *testing.T, a images.Artifact) error {
		first, _ := loop(t, littleDevice)
		second, _ := loop(t, littleDevice)
		_, err := WriteAll(t.Context(), spec, a, []string{first, second}, typing(filepath.Base(first)+"\n"))
		return err
	}},
	{"one of two confirmed", "confirmed as", func(t *testing.T, a images.Artifact) error {
		first, _ := loop(t, littleDevice)
		second, _ := loop(t, littleDevice)
		_, err := WriteAll(t.Context(), spec, a, []string{first, second}, Options{Yes: []string{first}})
		return err
	}},
}
