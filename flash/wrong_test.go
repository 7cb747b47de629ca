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

	"golang.org/x/sys/unix"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
)

// wrongCase points a flash at what must not be written, as really as this machine can
// do it, and returns what the flash said.
type wrongCase struct {
	name, want string
	point      func(t *testing.T, a images.Artifact) error
}

// TestWrongDisk is one list of all known mistakes that destroy a disk by a flash. Each is refused, with its own reason.
func TestWrongDisk(t *testing.T) {
	a := little(t)
	for _, tt := range slices.Concat(mountedCases, partitionCases, usedCases, memberCases, nameCases, swappedCases, fileCases, kernelCases, confirmCases) {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.point(t, a)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("refused with %v; want %q", err, tt.want)
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

// onLoop tries a real loop device full of a former owner's data, and looks whether
// that is still there.
func onLoop(prepare func(t *testing.T, device, file string) (name string, o Options)) func(*testing.T, images.Artifact) error {
	return func(t *testing.T, a images.Artifact) error {
		device, file := flashtest.Loop(t, littleDevice)
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

var byAnswer = Options{Confirm: func([]device.Device) error { return nil }}

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
	flashtest.MustRun(t, flashtest.E2fs(t, "mke2fs"), "-q", "-F", device)
}

func mountedExt4(t *testing.T, device, file string) {
	t.Helper()
	ext4(t, device, file)
	mountAt(t, device, "ext4", "")
}

func linkTo(t *testing.T, target string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "by-label", "CARD")
	flashtest.Link(t, "", path, target)
	return path
}

var mountedCases = []wrongCase{
	{"mounted", "refused: in use: mounted on ", itself(mountedExt4)},
	{"mounted, through a link", "refused: in use: mounted on ", onLoop(func(t *testing.T, device, file string) (string, Options) {
		mountedExt4(t, device, file)
		return linkTo(t, device), Options{Yes: []string{device}}
	})},
	{"a partition of it mounted", "p1: mounted on ", itself(func(t *testing.T, device, _ string) {
		node := flashtest.Partition(t, device)
		ext4(t, node, "")
		mountAt(t, node, "ext4", "")
	})},
	{"mounted for another program alone", " for sleep (process ", itself(func(t *testing.T, device, file string) {
		ext4(t, device, file)
		// Go makes the new namespace's mounts private.
		p := flashtest.Sleep(t, func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} })
		flashtest.MustRun(t, "nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", p.Process.Pid), "mount", "-t", "ext4", "-o", "ro", device, "/mnt")
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
		first, second := attachSparse(t, 128*mib), attachSparse(t, 128*mib)
		flashtest.MustRun(t, "mkfs.btrfs", "-q", "-m", "raid1", "-d", "raid1", first, second)
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
		return dryRun(t, a, func(device string) string { return flashtest.Attach(t, "--read-only", device) })
	}},
}

// dryRun tries the machine's own disk, or what rename makes of it. It is a dry run,
// so that a fault costs a test and no machine.
func dryRun(t *testing.T, a images.Artifact, rename func(device string) string) error {
	t.Helper()
	all, err := device.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
	i := slices.IndexFunc(all, func(d device.Device) bool { return strings.HasPrefix(d.Refused, "holds the running system") })
	if i < 0 {
		t.Skip("this machine runs from no disk that it shows (a container); elsewhere this is tried")
	}
	_, err = Write(t.Context(), spec, a, rename(all[i].Path), Options{DryRun: true})
	return err
}

var usedCases = []wrongCase{
	{"swap", "refused: in use: swap", func(t *testing.T, a images.Artifact) error {
		device, file := flashtest.Loop(t, littleDevice)
		return swappedTo(t, a, device, file)
	}},
	{"behind another loop device", "refused: in use: behind /dev/loop", itself(func(t *testing.T, device, _ string) { flashtest.Attach(t, device) })},
	{"a partition behind a loop device", "p1: behind /dev/loop", itself(func(t *testing.T, device, _ string) { flashtest.Attach(t, flashtest.Partition(t, device)) })},
	{"a loop device over a device", "name that itself", onLoop(func(t *testing.T, device, _ string) (string, Options) {
		over := flashtest.Attach(t, device)
		return over, Options{Yes: []string{over}}
	})},
	{"opened by another program alone", "in use by sleep (process ", itself(func(t *testing.T, device, _ string) { hold(t, device, os.O_RDONLY|unix.O_EXCL) })},
	{"written by another program", "refused: in use: open for writing by sleep (process ", itself(func(t *testing.T, device, _ string) { hold(t, device, os.O_WRONLY) })},
	{"locked by another program", "locked", itself(func(t *testing.T, device, _ string) {
		if err := unix.Flock(int(flashtest.Open(t, device, 0).Fd()), unix.LOCK_SH); err != nil {
			t.Fatal(err)
		}
	})},
}

// swappedTo tries a device or a file that holds a swap area. A kernel that is short of
// memory writes into the area at any time. So the area has ten pages, the fewest that
// mkswap makes, and only its header and what lies behind it are compared.
func swappedTo(t *testing.T, a images.Artifact, name, file string) error {
	t.Helper()
	page := os.Getpagesize()
	flashtest.MustRun(t, "mkswap", name, strconv.Itoa(10*page/1024))
	flashtest.MustRun(t, "swapon", name)
	t.Cleanup(func() { flashtest.MustRun(t, "swapoff", name) })
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

// holding puts something onto a loop device, which nobody uses at the moment.
func holding(off int64, p []byte) func(*testing.T, images.Artifact) error {
	return onLoop(func(t *testing.T, device, _ string) (string, Options) {
		flashtest.Scribble(t, device, off, p)
		return device, byAnswer
	})
}

var memberCases = []wrongCase{
	{"in an LVM that is off", "is a part of an LVM volume group, so it is written only when confirmed by its path", holding(512, flashtest.LvmLabel())},
	{"in a RAID that is off", "is a part of a RAID array (nas:0), so it is written only", holding(4096, flashtest.MdSuperblock())},
	{"in a ZFS pool that is exported", "is a part of a ZFS pool (tank), so it is written only", holding(16<<10, flashtest.ZfsProperties())},
	{"a disk of a btrfs that is not mounted", "is a part of a btrfs over 2 devices", func(t *testing.T, a images.Artifact) error {
		if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
			t.Skip("mkfs.btrfs is missing (Debian package btrfs-progs)")
		}
		first, second := attachSparse(t, 128*mib), attachSparse(t, 128*mib)
		flashtest.MustRun(t, "mkfs.btrfs", "-q", "-m", "raid1", "-d", "raid1", first, second)
		_, err := Write(t.Context(), spec, a, second, byAnswer)
		return err
	}},
}

var nameCases = []wrongCase{
	{"a partition", "a partition; name the whole disk, /dev/loop", onLoop(func(t *testing.T, device, _ string) (string, Options) {
		node := flashtest.Partition(t, device)
		return node, Options{Yes: []string{node}}
	})},
	{"a partition by its label", "a partition; name the whole disk, /dev/loop", onLoop(func(t *testing.T, device, _ string) (string, Options) {
		return linkTo(t, flashtest.Partition(t, device)), byAnswer
	})},
	{"a folder", "neither a file nor a block device", called(func(t *testing.T) string { return t.TempDir() })},
	{"a character device", "neither a file nor a block device", called(func(*testing.T) string { return "/dev/null" })},
	{"a pipe", "neither a file nor a block device", called(func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), "pipe")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	})},
	{"a mistyped device", "no such device\nnext: devices", called(func(*testing.T) string { return "/dev/sdzz9" })},
	{"a card that is not there any more, by its label", "is a link to nothing", called(func(t *testing.T) string { return linkTo(t, "/dev/sdzz9") })},
	{"another board's kind of device", "it is a device of kind block; board.yml names for this board: tegra", func(t *testing.T, a images.Artifact) error {
		card, _ := flashtest.Loop(t, littleDevice)
		_, err := Write(t.Context(), images.Spec{Board: spec.Board, Flash: images.Flash{Kinds: []string{device.Tegra}}}, a, card, byAnswer)
		return err
	}},
	{"one device by two names", "are the same device", func(t *testing.T, a images.Artifact) error {
		device, _ := flashtest.Loop(t, littleDevice)
		_, err := WriteAll(t.Context(), spec, a, []string{device, linkTo(t, device)}, byAnswer)
		return err
	}},
	{"a card and a file at once", "flash them one after another", func(t *testing.T, a images.Artifact) error {
		device, _ := flashtest.Loop(t, littleDevice)
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
		card, file := flashtest.Loop(t, littleDevice)
		_, err := Write(t.Context(), spec, a, card, Options{Confirm: func([]device.Device) error {
			do(t, card, file)
			return nil
		}})
		if bytes.Contains(read(t, file), []byte("image...image...")) {
			t.Error("the image was written")
		}
		return err
	}
}

var swappedCases = []wrongCase{
	{"swapped after it was confirmed", "not the device any more", afterwards(func(t *testing.T, device, file string) {
		flashtest.Detach(t, device)
		// Another program, such as another package's test, may use the number meanwhile.
		flashtest.Eventually(t, device+" to be free", func() bool { return exec.Command("losetup", device, file).Run() == nil })
	})},
	{"swapped for a smaller one", "not the device any more", afterwards(func(t *testing.T, device, file string) {
		if err := os.Truncate(file, littleImage+mib); err != nil {
			t.Fatal(err)
		}
		flashtest.MustRun(t, "losetup", "--set-capacity", device)
	})},
	{"pulled out after it was confirmed", "", afterwards(func(t *testing.T, device, _ string) { flashtest.Detach(t, device) })},
	{"mounted after it was confirmed", "refused: in use: mounted on ", afterwards(mountedExt4)},
	{"made a part of an LVM after it was confirmed", "what is on it is not what was shown", afterwards(func(t *testing.T, device, _ string) {
		flashtest.Scribble(t, device, 512, flashtest.LvmLabel())
	})},
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

var fileCases = []wrongCase{
	{"the artifact's own image", "refused: it belongs to the artifact", onFile(func(t *testing.T, a images.Artifact) string { return filepath.Join(a.Dir(), "disk.img") })},
	{"the artifact's own block map", "refused: it belongs to the artifact", onFile(func(t *testing.T, a images.Artifact) string { return filepath.Join(a.Dir(), "disk.bmap") })},
	{"another board's virtual disk", "refused: it lies with the artifact of board other", onFile(func(t *testing.T, _ images.Artifact) string {
		dir := t.TempDir()
		if err := (images.Artifact{Board: "other"}).Save(dir); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "machine", "disk.img")
		flashtest.Put(t, path, "another board's")
		return path
	})},
	{"the file behind a loop device", "behind /dev/loop", onFile(func(t *testing.T, _ images.Artifact) string {
		_, file := flashtest.Loop(t, mib)
		return file
	})},
	{"a file that is swapped to", "in use: swap", func(t *testing.T, a images.Artifact) error {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to swap")
		}
		path := thesis(t, mib)
		return swappedTo(t, a, path, path)
	}},
	{"the disk of a virtual machine that is on", "in use by a program that has locked it", onFile(func(t *testing.T, _ images.Artifact) string {
		path := thesis(t, mib)
		lock := unix.Flock_t{Type: unix.F_RDLCK}
		if err := unix.FcntlFlock(flashtest.Open(t, path, 0).Fd(), unix.F_OFD_SETLK, &lock); err != nil {
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

// What only the kernel could lay out; here as its files would say it.
var kernelCases = []wrongCase{
	{"read-only", "refused: read-only; look for a write-protect switch", func(t *testing.T, a images.Artifact) error {
		device, _ := flashtest.Loop(t, littleDevice, "--read-only")
		_, err := Write(t.Context(), spec, a, device, byAnswer)
		return err
	}},
	{"without a medium", "refused: no medium in it", func(t *testing.T, a images.Artifact) error {
		device, file := flashtest.Loop(t, mib)
		if err := os.Truncate(file, 0); err != nil {
			t.Fatal(err)
		}
		flashtest.MustRun(t, "losetup", "--set-capacity", device)
		_, err := Write(t.Context(), spec, a, device, byAnswer)
		return err
	}},
	{"larger than any card", "nothing over 512 GiB is written for board toy", func(t *testing.T, a images.Artifact) error {
		device := attachSparse(t, 513<<30)
		_, err := Write(t.Context(), spec, a, device, byAnswer)
		return err
	}},
	{"larger than the board's", "nothing over 1 GiB is written for board toy", func(t *testing.T, a images.Artifact) error {
		device, small := attachSparse(t, 1<<30+mib), spec
		small.Flash.LargestGiB = 1
		_, err := Write(t.Context(), small, a, device, byAnswer)
		return err
	}},
	{"too small", "the image needs", func(t *testing.T, a images.Artifact) error {
		device, _ := flashtest.Loop(t, littleImage-4096)
		_, err := Write(t.Context(), spec, a, device, byAnswer)
		return err
	}},
}

// typing answers each question with the same line.
func typing(line string) Options {
	return Options{Confirm: func(devices []device.Device) error { return device.Ask(strings.NewReader(line), io.Discard)(devices) }}
}

var confirmCases = []wrongCase{
	{"one of two names typed", "was typed, not loop", func(t *testing.T, a images.Artifact) error {
		first, _ := flashtest.Loop(t, littleDevice)
		second, _ := flashtest.Loop(t, littleDevice)
		_, err := WriteAll(t.Context(), spec, a, []string{first, second}, typing(filepath.Base(first)+"\n"))
		return err
	}},
	{"one of two confirmed", "--yes names", func(t *testing.T, a images.Artifact) error {
		first, _ := flashtest.Loop(t, littleDevice)
		second, _ := flashtest.Loop(t, littleDevice)
		_, err := WriteAll(t.Context(), spec, a, []string{first, second}, Options{Yes: []string{first}})
		return err
	}},
}
