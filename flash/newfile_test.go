package flash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/flash/device"
)

// A name that cannot be that of a file with an image makes none. Each name is tried in
// an empty folder, which stays empty.
func TestNamesThatMakeNoFile(t *testing.T) {
	a := little(t)
	for name, want := range map[string]string{
		"root@192.0.2.7:/dev/mmcblk0":      "a place on another machine",
		"root@192.0.2.7:/tmp/disk.img":     "a place on another machine",
		"board:disk.wic":                   "a place on another machine",
		"[fe80::1]:/dev/sda":               "a place on another machine",
		"ssh://root@192.0.2.7/dev/sda.img": "a place on another machine",
		"https://192.0.2.7/disk.img":       "a place on another machine",
		"USB:1-2":                          "a place on another machine",
		`C:\disk.img`:                      "a path of Windows",
		`\\.\PhysicalDrive1`:               "a path of Windows",
		`\\.\PhysicalDrive1.img`:           "a path of Windows",
		"dev/sdb":                          "no such device, and no name of an image file",
		"sdb":                              "no such device, and no name of an image file",
		"mmcblk0":                          "no such device, and no name of an image file",
		"mmcblk0p1":                        "no such device, and no name of an image file",
		"disk0":                            "no such device, and no name of an image file",
		"out":                              "no such device, and no name of an image file",
		"disk.img.gz":                      "no such device, and no name of an image file",
		"disk.wic.zst":                     "no such device, and no name of an image file",
		"disk.qcow2":                       "no such device, and no name of an image file",
		"disk.img/":                        "no such folder",
		"..":                               "neither a file nor a block device",
		"":                                 "neither a file nor a block device",
		"/dev/sdzz":                        "no such device",
		"/dev/sdzz.img":                    "no such device",
		"/dev/../dev/foo.img":              "no such device",
		"/dev/shm/../foo.img":              "no such device",
		"/dev/shm/sdzz":                    "no name of an image file",
		"/proc/self/root/dev/sdzz.img":     "no such device",
		"/dev/nothing/there/disk.img":      "no such device",
		"file:/dev/sdzz.img":               "no such device",
		"file:/dev/null":                   "neither a file nor a block device",
		"file:":                            "no name after file:",
		" disk.img":                        "begins or ends with a blank",
		"nodir/disk.img":                   "there is no folder nodir; nothing was written\nnext: mkdir -p nodir",
		"file:no dir/sdb":                  "next: mkdir -p 'no dir'",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			_, err := Write(t.Context(), spec, a, name, byAnswer)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Write = %v; want an error with %q", err, want)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("it made %v", left)
			}
		})
	}
}

// What a person calls a file is one.
func TestNamesThatMakeAFile(t *testing.T) {
	a := little(t)
	for _, name := range []string{
		"out.img", "./disk.wic", "new/card.raw", "OUT.IMG", "disk.sdcard", "./disk-12:30.img", "file:out", "file:mmcblk0", "file:disk-12:30.img", "file:new/sdb",
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.Mkdir("new", 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := Write(t.Context(), spec, a, name, Options{}); err != nil {
				t.Fatal(err)
			}
			same(t, name, read(t, strings.TrimPrefix(name, device.FilePrefix)), image(t, a))
		})
	}
}

// A chroot's /dev is the same folder as this machine's.
func TestFileInAnotherPlaceOfDevices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	a, root := little(t), t.TempDir()
	dev := filepath.Join(root, "dev")
	if err := os.Mkdir(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/dev", dev, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dev, unix.MNT_DETACH) })
	link := filepath.Join(root, "link")
	if err := os.Symlink("/dev", link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dev, link} {
		path := filepath.Join(dir, "sdzz.img")
		if _, err := Write(t.Context(), spec, a, path, byAnswer); err == nil || !strings.Contains(err.Error(), "no such device") {
			t.Errorf("%s: Write = %v; want it refused", path, err)
			_ = os.Remove(path)
		}
	}
}
