// Package flashtest makes what tests of flash need: loop devices with partitions and programs
// that have them open, simulated DPUs, keys of gpg, and input for decoders.
package flashtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

// attribute returns a sysfs attribute of a device; "" if it has none.
func attribute(device, name string) string {
	data, _ := os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(device), name))
	return strings.TrimSpace(string(data))
}

// MustRun runs a program and returns its trimmed stdout and stderr. If it fails, so does the test.
func MustRun(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// Loop attaches a loop device, with losetup's args, to a new file full of 0xa5, as if used before.
// Unmount file systems on the device before the test ends. Loop skips the test if it cannot attach.
func Loop(t *testing.T, size int64, args ...string) (device, file string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
	if _, err := exec.LookPath("losetup"); err != nil {
		t.Skip("losetup is missing (Debian package mount)")
	}
	file = filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(file, bytes.Repeat([]byte{0xa5}, int(size)), 0o600); err != nil {
		t.Fatal(err)
	}
	device = Attach(t, append(args, file)...)
	return device, file
}

// Attach attaches a loop device by losetup, with args that end in the file, until the test ends. It
// clears its partitions and read-only flag of an earlier test. If losetup fails, it skips the test.
func Attach(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("losetup", append([]string{"--find", "--show"}, args...)...).CombinedOutput()
	device := strings.TrimSpace(string(out))
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, device)
	}
	// A test that was killed may have left it so; the kernel keeps that for the next file.
	if !slices.Contains(args, "--read-only") && attribute(device, "ro") == "1" {
		MustRun(t, "blockdev", "--setrw", device)
	}
	ClearPartitions(t, device)
	t.Cleanup(func() { // unless it is somebody else's by now
		if behind := backing(device); behind != "" && strings.HasPrefix(behind, args[len(args)-1]) {
			_ = exec.Command("losetup", "--detach", device).Run()
		}
	})
	return device
}

// ClearPartitions removes a loop device's partitions from the kernel, which would keep them for the
// next file. It waits for programs that read them, such as udev.
func ClearPartitions(t *testing.T, device string) {
	t.Helper()
	pattern := filepath.Join("/sys/class/block", filepath.Base(device)+"p*")
	Eventually(t, "the partitions of "+device+" to go", func() bool {
		left, _ := filepath.Glob(pattern)
		for _, p := range left {
			_ = exec.Command("delpart", device, attribute(p, "partition")).Run()
		}
		return len(left) == 0
	})
}

// backing returns the path of a loop device's backing file.
func backing(device string) string {
	return attribute(device, "loop/backing_file")
}

// Detach detaches a loop device and waits until it is gone. Programs such as udev delay this.
func Detach(t *testing.T, device string) {
	t.Helper()
	file := backing(device)
	MustRun(t, "losetup", "--detach", device)
	Eventually(t, device+" to go", func() bool { return backing(device) != file })
}

// Eventually waits until done returns true, and fails the test after a minute.
func Eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// Open opens a file for reading and writing, and closes it when the test ends.
func Open(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Sleep calls change with a command that sleeps, starts that, and kills it when the test ends.
func Sleep(t *testing.T, change func(*exec.Cmd)) *exec.Cmd {
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

// Partition adds a partition of 3 MiB to a loop device in the kernel until the test ends, and
// returns a node of the partition. It skips the test without addpart.
func Partition(t *testing.T, device string) string {
	t.Helper()
	if _, err := exec.LookPath("addpart"); err != nil {
		t.Skip("addpart is missing (Debian package util-linux)")
	}
	MustRun(t, "addpart", device, "1", "2048", "6144")
	t.Cleanup(func() { ClearPartitions(t, device) })
	return PartitionNode(t, device+"p1")
}

// PartitionNode makes a node for a partition such as /dev/loop0p1 in a temporary folder, for
// machines without udev.
func PartitionNode(t *testing.T, device string) string {
	t.Helper()
	number := attribute(device, "dev")
	var major, minor uint32
	if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); err != nil {
		t.Fatalf("%s has no partition: %v", device, err)
	}
	node := filepath.Join(t.TempDir(), filepath.Base(device))
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
	return node
}

// Scribble overwrites bytes of a device with p, from off on.
func Scribble(t *testing.T, path string, off int64, p []byte) {
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

// LvmLabel returns the sector that makes a disk a part of an LVM volume group.
func LvmLabel() []byte {
	p := make([]byte, 512)
	copy(p, "LABELONE")
	p[20] = 32
	copy(p[24:], "LVM2 001abcdefghijklmnopqrstuvwxyzABCDEF")
	return p
}

// Put writes a file, and makes its folder.
func Put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Link makes a symbolic link below root, to a target below root, and the link's folder.
func Link(t *testing.T, root, name, target string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, target), path); err != nil {
		t.Fatal(err)
	}
}

// E2fs returns the path of a program of e2fsprogs; it skips the test without that.
func E2fs(t *testing.T, name string) string {
	t.Helper()
	path, err := run.LookPath(name)
	if err != nil {
		t.Skipf("%s is missing (Debian package e2fsprogs)", name)
	}
	return path
}

// ZfsProperties returns a ZFS pool's properties, as each of its disks has them.
func ZfsProperties() []byte {
	word := func(n uint32) string { return string([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) }
	return []byte("\x01\x01\x00\x00" + word(0) + word(1) +
		word(32) + word(48) + word(4) + "name" + word(9) + word(1) + word(4) + "tank" +
		word(40) + word(48) + word(9) + "pool_guid\x00\x00\x00" + word(8) + word(1) + word(0) + word(7))
}

// MdSuperblock returns the 256 bytes of a RAID superblock of version 1.2, named nas:0.
func MdSuperblock() []byte {
	p := make([]byte, 256)
	copy(p, "\xfc\x4e\x2b\xa9\x01")
	copy(p[16:], "0123456789abcdefnas:0"[:16])
	copy(p[32:], "nas:0")
	p[144] = 8
	return p
}

// CardImage makes an image of 12 MiB with a partition root and a FAT called CIDATA.
func CardImage(t *testing.T, path string) {
	t.Helper()
	const mib, fatStart, fatSize = 1 << 20, 5 << 20, 4 << 20
	Put(t, path, "")
	if err := os.Truncate(path, 12*mib); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/sbin/sfdisk", "--quiet", path)
	cmd.Stdin = strings.NewReader(fmt.Sprintf("label: gpt\nname=root, start=2048, size=%d\nname=CIDATA, start=%d, size=%d\n", 3*mib/512, fatStart/512, fatSize/512))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("sfdisk (Debian package fdisk): %v %s", err, out)
	}
	Scribble(t, path, 2*mib, Random(mib))
	if _, err := exec.LookPath("mformat"); err != nil {
		t.Skip("mformat is missing (Debian package mtools)")
	}
	fat := path + ".fat"
	Put(t, fat, "")
	if err := os.Truncate(fat, fatSize); err != nil {
		t.Fatal(err)
	}
	MustRun(t, "mformat", "-i", fat, "-v", "CIDATA", "::")
	content, err := os.ReadFile(fat)
	if err != nil {
		t.Fatal(err)
	}
	Scribble(t, path, fatStart, content)
}
