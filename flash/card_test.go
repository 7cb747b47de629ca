package flash

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/flash/probe"
)

// makeCard does what make-sdcard does for a file: the last partition fills it.
const makeCard = `#!/bin/sh
echo "Creating partitions"
truncate -s $(($2 * 512)) "$4" || exit 1
sgdisk "$4" --clear --new=2:0:+1M -c 2:A_kernel --largest-new=1 -c 1:APP >&2 || exit 1
echo "Writing partitions"
mke2fs -q -F -t ext4 -b 1024 -E offset=2097152 "$4" 8M || exit 1
echo "[OK: $4]"
`

func gptCards(t *testing.T) *jetsons {
	t.Helper()
	for _, name := range []string{"sgdisk", "sfdisk", "addpart"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is missing (Debian packages gdisk, fdisk and util-linux)", name)
		}
	}
	needMke2fs(t)
	j := newJetsons(t, nil)
	j.artifact = j.build(t, map[string]string{
		".env.initrd-flash": "CHIPID=\"0x23\"\nROOTFS_IMAGE=\"image.ext4\"\nFLASH_HELPER=tegra-flash-helper.sh\n",
		"flash.xml.in":      jetsonLayout, "image.ext4": "rootfs", "tegra-flash-helper.sh": "", "initrd-flash.img": "", "initrd-flash": "", "dosdcard.sh": makeCard,
	})
	return j
}

// The card that "fills to end" names is the image's file. The rest of the card is named
// before anything is written, with the commands by which it can be used.
func TestRestOfACard(t *testing.T) {
	const size = 128 * mib
	device, _ := flashtest.Loop(t, size, "--partscan")
	j := gptCards(t)
	_, said, err := j.flash(t.Context(), byAnswer, device)
	if err != nil {
		t.Fatalf("WriteAll = %v, shown %q", err, said)
	}
	_, line, ok := strings.Cut(said, "run this after the write: ")
	line, _, _ = strings.Cut(line, "\n")
	if !ok || !strings.Contains(said, "ends at 73 MiB, with partition 1 (APP)") || !strings.Contains(said, "55.0 MiB of "+device+" stay unused") {
		t.Fatalf("shown was %q; want where the image ends", said)
	}
	t.Cleanup(func() { flashtest.ClearPartitions(t, device) })
	growth := strings.Split(line, " && ")
	flashtest.MustRun(t, "sh", "-c", growth[0])
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	disk, err := probe.Read(f, size, 512)
	if err != nil || disk.Table == nil || len(disk.Table.Faults) > 0 || len(disk.Table.Partitions) != 2 {
		t.Fatalf("the grown card has %+v, %v", disk.Table, err)
	}
	if app := disk.Table.Partitions[1]; app.Name != "APP" || app.OffsetBytes+app.SizeBytes < size-mib {
		t.Errorf("partition %+v after %q; want it to end with the card", app, line)
	}
	node := knownPartition(t, device, disk.Table.Partitions[1])
	for _, command := range growth[1:] {
		flashtest.MustRun(t, "sh", "-c", strings.ReplaceAll(command, device+"p1", node))
	}
	if got := flashtest.MustRun(t, flashtest.E2fs(t, "dumpe2fs"), "-h", node); !strings.Contains(got, "Block count:              1290") {
		t.Errorf("the file system after %q is %s; want it to fill the partition", line, got)
	}
}

// knownPartition is a partition for the kernel, which may know no GPT.
func knownPartition(t *testing.T, device string, p probe.Partition) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join("/sys/class/block", filepath.Base(device)+"p1")); err != nil {
		flashtest.MustRun(t, "addpart", device, strconv.Itoa(p.Number), strconv.FormatInt(p.OffsetBytes/512, 10), strconv.FormatInt(p.SizeBytes/512, 10))
	}
	return flashtest.PartitionNode(t, device+"p1")
}

func TestRestOfACardInAFile(t *testing.T) {
	j := gptCards(t)
	j.spec.Flash.Kinds = []string{device.File}
	_, said, err := j.flash(t.Context(), Options{}, filepath.Join(t.TempDir(), "card.img"))
	if err != nil || !strings.Contains(said, "sfdisk -N 1 /dev/CARD && e2fsck -f -p /dev/CARD1 && resize2fs /dev/CARD1") {
		t.Errorf("WriteAll = %v, shown %q; want how the rest of a card is used", err, said)
	}
}

func TestGrowing(t *testing.T) {
	for _, tt := range []struct {
		path string
		last probe.Partition
		want string
	}{
		{"/dev/sdb", probe.Partition{Number: 1, Content: probe.Content{Type: "ext4"}}, "echo ', +' | sfdisk -N 1 /dev/sdb && e2fsck -f -p /dev/sdb1 && resize2fs /dev/sdb1"},
		{"/dev/mmcblk0", probe.Partition{Number: 12, Content: probe.Content{Type: "ext4"}}, "echo ', +' | sfdisk -N 12 /dev/mmcblk0 && e2fsck -f -p /dev/mmcblk0p12 && resize2fs /dev/mmcblk0p12"},
		{"/dev/sdb", probe.Partition{Number: 3, Content: probe.Content{Type: "btrfs"}}, "echo ', +' | sfdisk -N 3 /dev/sdb"},
	} {
		if got := growCommand(tt.path, tt.last); got != tt.want {
			t.Errorf("growing(%s, %+v) = %q; want %q", tt.path, tt.last, got, tt.want)
		}
	}
}
