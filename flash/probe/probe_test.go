package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"slipway/layers/run"
)

const mib = 1 << 20

// makeDisk makes a file of zeros.
func makeDisk(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

// findTool returns the path of a program. If it is missing, the test names its package.
func findTool(t *testing.T, name, debian string) string {
	t.Helper()
	path, err := run.LookPath(name)
	if err != nil {
		t.Skipf("%s is missing (Debian package %s)", name, debian)
	}
	return path
}

func mustRun(t *testing.T, stdin, name, debian string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), findTool(t, name, debian), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func probe(t *testing.T, path string, sector int) Disk {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Read(f, info.Size(), sector)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// blkid returns util-linux's result for the same file, as KEY=value.
func blkid(t *testing.T, path string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(mustRun(t, "", "blkid", "util-linux", "-p", "-o", "export", path)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		found[key] = strings.ReplaceAll(value, `\ `, " ")
	}
	return found
}

// The test compares probe with blkid on real file systems.
func TestFileSystems(t *testing.T) {
	tests := []struct {
		name, program, debian string
		args                  []string // before the file's name
		size                  int64
		label                 string
	}{
		{name: "ext2", program: "mke2fs", debian: "e2fsprogs", args: []string{"-q", "-t", "ext2", "-L", "my root"}, label: "my root"},
		{name: "ext3", program: "mke2fs", debian: "e2fsprogs", args: []string{"-q", "-t", "ext3"}},
		{name: "ext4", program: "mke2fs", debian: "e2fsprogs", args: []string{"-q", "-t", "ext4", "-L", "0123456789abcdef"}, label: "0123456789abcdef"},
		{name: "FAT12", program: "mkfs.fat", debian: "dosfstools", args: []string{"-F12", "-n", "BOOT"}, size: 2 * mib, label: "BOOT"},
		{name: "FAT16", program: "mkfs.fat", debian: "dosfstools", args: []string{"-F16", "-n", "MY CARD"}, label: "MY CARD"},
		{name: "FAT16 without a name", program: "mkfs.fat", debian: "dosfstools", args: []string{"-F16"}},
		{name: "FAT32", program: "mkfs.fat", debian: "dosfstools", args: []string{"-F32", "-n", "ESP"}, size: 64 * mib, label: "ESP"},
		{name: "FAT32, large sectors", program: "mkfs.fat", debian: "dosfstools", args: []string{"-F32", "-S4096", "-n", "ESP4"}, size: 512 * mib, label: "ESP4"},
		{name: "exFAT", program: "mkfs.exfat", debian: "exfatprogs", args: []string{"-L", "SDXC"}, label: "SDXC"},
		{name: "NTFS", program: "mkfs.ntfs", debian: "ntfs-3g", args: []string{"-q", "-F", "-f", "-L", "Windows 11"}, label: "Windows 11"},
		{name: "btrfs", program: "mkfs.btrfs", debian: "btrfs-progs", args: []string{"-q", "-L", "pool"}, size: 128 * mib, label: "pool"},
		{name: "XFS", program: "mkfs.xfs", debian: "xfsprogs", args: []string{"-q", "-L", "srv"}, size: 512 * mib, label: "srv"},
		{name: "F2FS", program: "mkfs.f2fs", debian: "f2fs-tools", args: []string{"-q", "-l", "flash"}, size: 64 * mib, label: "flash"},
		{name: "swap", program: "mkswap", debian: "util-linux", args: []string{"-q", "-L", "swap0"}, label: "swap0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := makeDisk(t, max(test.size, 32*mib))
			mustRun(t, "", test.program, test.debian, append(test.args, path)...)
			compareWithBlkid(t, path, test.label)
		})
	}
}

func compareWithBlkid(t *testing.T, path, label string) {
	t.Helper()
	got, theirs := probe(t, path, 0), blkid(t, path)
	want := Content{Type: theirs["TYPE"], Label: theirs["LABEL"], Part: got.Part}
	if diff := cmp.Diff(want, got.Content); diff != "" || got.Type == "" {
		t.Errorf("Read (-blkid +ours):\n%s", diff)
	}
	if got.Label != label {
		t.Errorf("label = %q; want %q", got.Label, label)
	}
}

func TestReadOnlyFileSystems(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("squashfs", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "disk")
		mustRun(t, "", "mksquashfs", "squashfs-tools", dir, path, "-quiet")
		compareWithBlkid(t, path, "")
	})
	t.Run("erofs", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "disk")
		mustRun(t, "", "mkfs.erofs", "erofs-utils", path, dir)
		compareWithBlkid(t, path, "")
	})
	t.Run("iso9660", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "disk")
		mustRun(t, "", "xorriso", "xorriso", "-as", "mkisofs", "-quiet", "-V", "RESCUE", "-o", path, dir)
		compareWithBlkid(t, path, "RESCUE")
	})
}

// crafted are members whose programs need support in the kernel. The test writes their
// superblocks itself, and blkid confirms them.
var crafted = []struct {
	name string
	size int64
	put  func(p []byte)
	want Content
}{
	{name: "RAID 1.2", size: 4 * mib, put: func(p []byte) { putMD(p, 4096) }, want: aRAID},
	{name: "RAID 1.1", size: 4 * mib, put: func(p []byte) { putMD(p, 0) }, want: aRAID},
	{name: "RAID 1.0", size: 4*mib + 512, put: func(p []byte) { putMD(p, 4*mib-8192) }, want: aRAID},
	{name: "RAID 0.90", size: 4*mib + 4096, put: func(p []byte) { putOldMD(p[4*mib-0x10000:], le) }, want: anOldRAID},
	{name: "RAID 0.90 of a big-endian machine", size: 4 * mib, put: func(p []byte) { putOldMD(p[4*mib-0x10000:], be) }, want: anOldRAID},
	{name: "LVM", size: 4 * mib, put: putLVM, want: Content{
		Type: "LVM2_member", Label: "vg0", Part: "an LVM volume group (vg0)",
	}},
	{name: "ZFS", size: 64 * mib, put: func(p []byte) { putZFS(p[:256<<10]) }, want: aPool},
	{name: "ZFS, its beginning overwritten", size: 64*mib + 4096, put: func(p []byte) { putZFS(p[64*mib-256<<10:]) }, want: aPool},
	{name: "bcache", size: 4 * mib, put: func(p []byte) {
		copy(p[4096+24:], "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")
		le.PutUint64(p[4096+8:], 8) // its own offset
		copy(p[4096+40:], "0123456789abcdef")
	}, want: Content{Type: "bcache", Part: "a bcache"}},
	{name: "LUKS 1", size: 4 * mib, put: func(p []byte) { putLUKS(p, 1) }, want: Content{Type: "crypto_LUKS"}},
	{name: "LUKS 2", size: 4 * mib, put: func(p []byte) { putLUKS(p, 2) }, want: Content{
		Type: "crypto_LUKS", Label: "safe",
	}},
	{name: "BitLocker", size: 4 * mib, put: putBitLocker, want: Content{Type: "BitLocker"}},
}

var (
	aRAID     = Content{Type: "linux_raid_member", Label: "nas:0", Part: "a RAID array (nas:0)"}
	anOldRAID = Content{Type: "linux_raid_member", Part: "a RAID array"}
	aPool     = Content{Type: "zfs_member", Label: "tank", Part: "a ZFS pool (tank)"}
)

func putMD(p []byte, at int) {
	sb := p[at:]
	copy(sb, mdMagic)
	le.PutUint32(sb[4:], 1)
	copy(sb[16:], "0123456789abcdef")
	copy(sb[32:], "nas:0")
	le.PutUint64(sb[144:], uint64(at/512))
	copy(sb[168:], "fedcba9876543210")
	var sum uint64 // of all words, with the sum itself as zero
	for i := 0; i < 256; i += 4 {
		sum += uint64(le.Uint32(sb[i:]))
	}
	le.PutUint32(sb[216:], uint32(sum)+uint32(sum>>32))
}

func putOldMD(sb []byte, order binary.ByteOrder) {
	for i, word := range map[int]uint32{0: 0xa92b4efc, 2: 90, 5: 0x01020304, 13: 0x11121314, 14: 0x21222324, 15: 0x31323334} {
		order.PutUint32(sb[4*i:], word)
	}
}

func putLVM(p []byte) {
	label := p[512:1024]
	copy(label, "LABELONE")
	le.PutUint64(label[8:], 1)
	le.PutUint32(label[20:], 32)
	copy(label[24:], "LVM2 001")
	copy(label[32:], "abcdefghijklmnopqrstuvwxyzABCDEF")
	le.PutUint64(label[64:], uint64(len(p)))
	le.PutUint64(label[72:], mib)   // data
	le.PutUint64(label[104:], 4096) // the group's description, behind an end of list
	le.PutUint64(label[112:], mib-4096)
	le.PutUint32(label[16:], lvmSum(label[20:]))
	copy(p[4096+4:], " LVM2 x[5A%r0N*>")
	le.PutUint64(p[4096+40:], 512)
	copy(p[4096+512:], "vg0 {\nid = \"…\"\n")
}

// lvmSum is CRC-32 begun with LVM's own number, and not inverted.
func lvmSum(p []byte) uint32 {
	crc := uint32(0xf597a6cf)
	for _, b := range p {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ 0xedb88320*(crc&1)
		}
	}
	return crc
}

// putZFS writes one label: properties, and the uberblocks that blkid looks for.
func putZFS(label []byte) {
	var b bytes.Buffer
	b.Write([]byte{1, 1, 0, 0})
	word := func(n ...uint32) { binary.Write(&b, be, n) }
	word(0, 1)
	pair := func(name string, kind uint32, value []byte) {
		padded := (len(name) + 3) &^ 3
		word(uint32(8+4+padded+8+len(value)), 64, uint32(len(name)))
		b.WriteString(name + "\x00\x00\x00"[:padded-len(name)])
		word(kind, 1)
		b.Write(value)
	}
	pair("version", 8, be.AppendUint64(nil, 5000))
	pair("name", 9, append(be.AppendUint32(nil, 4), "tank"...))
	pair("pool_guid", 8, be.AppendUint64(nil, 1234567890123456789))
	pair("guid", 8, be.AppendUint64(nil, 42))
	word(0, 0)
	copy(label[16<<10:], b.Bytes())
	for i := 128 << 10; i < 256<<10; i += 1024 {
		le.PutUint64(label[i:], 0x00bab10c)
	}
}

func putLUKS(p []byte, version byte) {
	copy(p, "LUKS\xba\xbe\x00")
	p[7] = version
	be.PutUint64(p[8:], 16384)
	if version == 2 {
		copy(p[24:], "safe")
	}
	copy(p[168:], "6e2c9f0e-0d7b-4b5c-9c3e-000000000001")
}

func putBitLocker(p []byte) {
	copy(p, "\xeb\x58\x90-FVE-FS-\x00\x02\x08")
	copy(p[160:], "\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01") // its GUID
	le.PutUint64(p[176:], 65536)
	copy(p[510:], "\x55\xaa")
	copy(p[65536:], "-FVE-FS-")
	le.PutUint16(p[65536+8:], 80)
	le.PutUint16(p[65536+10:], 2)
}

func TestMembers(t *testing.T) {
	for _, test := range crafted {
		t.Run(test.name, func(t *testing.T) {
			p := make([]byte, test.size)
			test.put(p)
			got, err := Read(bytes.NewReader(p), test.size, 512)
			if diff := cmp.Diff(test.want, got.Content); diff != "" || err != nil {
				t.Errorf("Read: %v (-want +got):\n%s", err, diff)
			}
			path := filepath.Join(t.TempDir(), "disk")
			if err := os.WriteFile(path, p, 0o600); err != nil {
				t.Fatal(err)
			}
			theirs := blkid(t, path)
			if theirs["TYPE"] != got.Type {
				t.Errorf("blkid takes it for %v", theirs)
			}
		})
	}
}

// A disk of a mirror is a member, although a file system begins at its start.
func TestMemberBeforeFileSystem(t *testing.T) {
	path := makeDisk(t, 32*mib)
	mustRun(t, "", "mke2fs", "e2fsprogs", "-q", "-t", "ext4", path, "31M")
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	putMD(p, 32*mib-8192)
	if got, err := Read(bytes.NewReader(p), int64(len(p)), 512); got.Type != "linux_raid_member" || err != nil {
		t.Errorf("Read = %+v, %v; want a member of a RAID", got.Content, err)
	}
}

func TestRealLVM(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a loop device")
	}
	pvcreate, vgcreate := findTool(t, "pvcreate", "lvm2"), findTool(t, "vgcreate", "lvm2")
	path := makeDisk(t, 64*mib)
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", path).CombinedOutput()
	device := strings.TrimSpace(string(out))
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	// Without udev, and with no file of its own that would know of the device later.
	config := fmt.Sprintf(`devices { filter = [ "a|^%s$|", "r|.*|" ] use_devicesfile = 0 external_device_info_source = "none" obtain_device_list_from_udev = 0 } backup { backup = 0 archive = 0 } activation { udev_sync = 0 udev_rules = 0 }`, device)
	for _, argv := range [][]string{
		{pvcreate, "--yes", "--config", config, device},
		{vgcreate, "--yes", "--config", config, "slipway_probe_test", device},
	} {
		if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Skipf("lvm2 does not work here: %v\n%s", err, out)
		}
	}
	got := probe(t, path, 0)
	if got.Label != "slipway_probe_test" {
		t.Errorf("Read = %+v; want group slipway_probe_test", got.Content)
	}
}

func TestBtrfsOverTwoDisks(t *testing.T) {
	a, b := makeDisk(t, 128*mib), makeDisk(t, 128*mib)
	mustRun(t, "", "mkfs.btrfs", "btrfs-progs", "-q", "-L", "both", "-d", "raid1", "-m", "raid1", a, b)
	for _, path := range []string{a, b} {
		if got := probe(t, path, 0); got.Part != "a btrfs over 2 devices (both)" {
			t.Errorf("Read = %+v; want a part of a btrfs over 2 devices", got.Content)
		}
	}
}

// badSectors is a disk with an unreadable part.
type badSectors struct {
	p    []byte
	from int64
	to   int64
}

var errBad = errors.New("input/output error")

func (b badSectors) ReadAt(p []byte, off int64) (int, error) {
	if off < b.to && off+int64(len(p)) > b.from {
		return 0, errBad
	}
	return bytes.NewReader(b.p).ReadAt(p, off)
}

func TestUnreadable(t *testing.T) {
	p := make([]byte, 4*mib)
	putMD(p, 4*mib-8192)
	got, err := Read(badSectors{p, 0, 4096}, int64(len(p)), 512)
	if !errors.Is(err, errBad) || got.Type != "linux_raid_member" {
		t.Errorf("Read = %+v, %v; want the member, and the error", got.Content, err)
	}
}

func FuzzRead(f *testing.F) {
	for _, c := range crafted {
		p := make([]byte, c.size)
		c.put(p)
		// The beginning covers most formats. Megabytes would only slow the fuzzer down.
		f.Add(p[:min(len(p), 72<<10)], 512)
	}
	f.Fuzz(func(t *testing.T, p []byte, sector int) {
		d, _ := Read(bytes.NewReader(p), int64(len(p)), sector)
		texts := []string{d.Type, d.Label, d.Part}
		if d.Table != nil {
			if len(d.Table.Partitions) > maxPartitions+maxLogical {
				t.Errorf("%d partitions", len(d.Table.Partitions))
			}
			for _, part := range d.Table.Partitions {
				texts = append(texts, part.Name, part.Label, part.Part)
				if part.OffsetBytes <= 0 || part.OffsetBytes >= int64(len(p)) || part.SizeBytes <= 0 {
					t.Errorf("partition %d: %d bytes at %d of %d", part.Number, part.SizeBytes, part.OffsetBytes, len(p))
				}
			}
		}
		for _, s := range texts {
			if strings.ContainsFunc(s, unicode.IsControl) || len(s) > 4096 {
				t.Errorf("%q would go to a terminal", s)
			}
		}
	})
}
