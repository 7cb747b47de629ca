package device

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"slipway/flash/flashtest"
)

// A Jetson in recovery mode, and a running one. What the kernel shows of them was recorded
// on other machines' buses and is laid out here.
const recovering = `
sys/bus/usb/devices/1-4.2 -> sys/devices/pci0/usb1/1-4/1-4.2
sys/devices/pci0/usb1/1-4/1-4.2/idVendor = 0955
sys/devices/pci0/usb1/1-4/1-4.2/idProduct = 7523
sys/devices/pci0/usb1/1-4/1-4.2/product = APX
sys/devices/pci0/usb1/1-4/1-4.2/devnum = 12
sys/bus/usb/devices/1-6 -> sys/devices/pci0/usb1/1-6
sys/devices/pci0/usb1/1-6/idVendor = 0955
sys/devices/pci0/usb1/1-6/idProduct = 7020
`

func TestListJetsons(t *testing.T) {
	got, err := fake(t, recovering).listAll(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{{
		Path: "usb:1-4.2", Kind: Tegra, Bus: "usb", Port: "usb:1-4.2", Chip: "t234", Model: "Jetson Orin Nano 8GB",
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Device{})); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

// What the driver of an rshim says in its file misc.
const misc = `DISPLAY_LEVEL   1 (0:basic, 1:advanced, 2:log)
BOOT_MODE       1 (0:rshim, 1:emmc, 2:emmc-boot-swap)
DEV_NAME        pcie-0000:03:00.2
DEV_INFO        BlueField-2(Rev 1)
`

func TestListRShims(t *testing.T) {
	m := fake(t, "")
	flashtest.Put(t, filepath.Join(m.nodes, "rshim0/misc"), misc)
	got, err := m.listAll(t.Context(), nil)
	want := []Device{{Path: "/dev/rshim0", Kind: RShim, Bus: "pcie", Port: "pcie-0000:03:00.2", Chip: "BlueField-2(Rev 1)"}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Device{})); diff != "" || err != nil {
		t.Errorf("list: %v (-want +got):\n%s", err, diff)
	}
}

// Whoever reads a pipe that somebody holds open for writing waits for ever.
func TestListSilentRShim(t *testing.T) {
	m := fake(t, "")
	m.patience = time.Millisecond
	pipe := filepath.Join(m.nodes, "rshim1/misc")
	if err := errors.Join(os.MkdirAll(filepath.Dir(pipe), 0o755), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	flashtest.Open(t, pipe, 0)
	got, err := m.listAll(t.Context(), nil)
	if err != nil || len(got) != 1 || got[0].Path != "/dev/rshim1" || got[0].Unread == "" {
		t.Errorf("list = %+v, %v; want to be told that rshim1 does not answer", got, err)
	}
}

func TestListVirtualDisks(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk.img")
	flashtest.Put(t, disk, "")
	if err := os.Truncate(disk, 8*mib); err != nil {
		t.Fatal(err)
	}
	flashtest.Scribble(t, disk, 512, flashtest.LvmLabel())
	got, err := fake(t, "").listAll(t.Context(), []string{disk, filepath.Join(dir, "none.img"), dir})
	if err != nil || len(got) != 1 || got[0].Path != disk || got[0].Kind != File || got[0].SizeBytes != 8*mib || got[0].Content.Type != "LVM2_member" {
		t.Errorf("list = %+v, %v; want %s alone, with what is on it", got, err, disk)
	}
}

// A file of sysfs opens, but the kernel returns fewer bytes than its size says.
func TestListUnreadableVirtualDisk(t *testing.T) {
	const short = "/sys/kernel/uevent_seqnum"
	if info, err := os.Stat(short); err != nil || info.Size() == 0 {
		t.Skipf("needs sysfs: mount -t sysfs sysfs /sys: %v", err)
	}
	got, err := fake(t, "").listAll(t.Context(), []string{short})
	if err != nil || len(got) != 1 || !strings.Contains(got[0].Unread, " bytes at 0: ") {
		t.Errorf("list = %+v, %v; want the error of reading %s", got, err, short)
	}
}

// What is on a real device is shown, by the kernel's partitions and by the table's.
func TestDevicesShowsContent(t *testing.T) {
	device, _ := flashtest.Loop(t, 8*mib)
	flashtest.MustRun(t, flashtest.E2fs(t, "mke2fs"), "-q", "-F", "-t", "ext4", "-L", "my card", device)
	all, err := List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if d.Path == device {
			if d.Content.Type != "ext4" || d.Label != "my card" || d.ContentSummary() != `ext4 "my card"` {
				t.Errorf("device = %+v; want ext4 with its label", d)
			}
			return
		}
	}
	t.Errorf("Devices = %+v; want %s among them", all, device)
}

func TestDescribe(t *testing.T) {
	m := fake(t, laptop+stick+"/sda1/start = 2048")
	node := filepath.Join(m.nodes, "sda")
	flashtest.Scribble(t, node, 446, []byte("\x00\x00\x00\x00\x0c\x00\x00\x00\x00\x08\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x82\x00\x00\x00\x00\x10\x00\x00\x00\x04\x00\x00"))
	flashtest.Scribble(t, node, 510, []byte("\x55\xaa"))
	flashtest.Scribble(t, node, 2*mib+4096-10, []byte("SWAPSPACE2"))
	flashtest.Scribble(t, node, 2*mib+1052, []byte("old\x1b[2Jswap"))
	dir, err := m.sysfsDir("sda")
	if err != nil {
		t.Fatal(err)
	}
	d, err := m.blockAt(dir)
	if err != nil {
		t.Fatal(err)
	}
	d.Given = "/dev/disk/by-id/usb-SanDisk"
	var b strings.Builder
	d.Describe(&b)
	got, want := strings.Split(strings.TrimSpace(b.String()), "\n"), []string{
		"/dev/sda: block, 1.0 GiB, bus usb, model SanDisk Ultra[31m, serial 4C530001, port usb:1-2, table dos",
		"  given as /dev/disk/by-id/usb-SanDisk",
		"  sda1  512.0 KiB",
		`  sda#2  512.0 KiB swap "old[2Jswap"`, // the kernel has not read it
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("describe (-want +got):\n%s", diff)
	}
}
