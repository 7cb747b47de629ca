package probe

import (
	"fmt"
	"math/bits"
)

var fileSystems = []format{
	{name: "crypto_LUKS", magic: "LUKS\xba\xbe", at: []int64{0}, read: readLUKS},
	{name: "BitLocker", magic: "-FVE-FS-", at: []int64{3}},
	{name: "swap", magic: "SWAPSPACE2", at: swapEnds, label: textAt{1052, 16}},
	{name: "swap", magic: "SWAP-SPACE", at: swapEnds},
	{name: "swsuspend", magic: "S1SUSPEND", at: swapEnds},
	{name: "xfs", magic: "XFSB", at: []int64{0}, read: readXFS},
	{name: "squashfs", magic: "hsqs", at: []int64{0}},
	{name: "erofs", magic: "\xe2\xe1\xf5\xe0", at: []int64{1024}, label: textAt{1024 + 64, 16}},
	{name: "f2fs", magic: "\x10\x20\xf5\xf2", at: []int64{1024}, read: readF2FS},
	{name: "exfat", magic: "EXFAT   ", at: []int64{3}, read: readExFAT},
	{name: "ntfs", magic: "NTFS    ", at: []int64{3}, read: readNTFS},
	{name: "ext2", magic: "\x53\xef", at: []int64{1024 + 0x38}, read: readExt},
	{name: "btrfs", magic: "_BHRfS_M", at: []int64{0x10040}, read: readBtrfs},
	{name: "apfs", magic: "NXSB", at: []int64{32}},
	{name: "hfsplus", magic: "H+\x00\x04", at: []int64{1024}},
	{name: "iso9660", magic: "\x01CD001", at: []int64{32768}, label: textAt{32768 + 40, 32}},
	{name: "udf", magic: "\x00BEA01", at: []int64{32768}},
	{name: "vfat", read: readFAT}, // has no usable magic, so it comes last
}

var swapEnds = []int64{4096 - 10, 8192 - 10, 16384 - 10, 32768 - 10, 65536 - 10}

// readLUKS reads the label, which version 1 lacks, of a header that detect found. It returns true.
func readLUKS(s *source, _ int64) (Content, bool) {
	p := s.bytesAt(0, 72)
	if be.Uint16(p[6:]) != 2 { // version 1 has no label
		return Content{}, true
	}
	return Content{Label: cleanText(p[24:72])}, true
}

// readXFS reads the label; false if the block size is no power of two.
func readXFS(s *source, _ int64) (Content, bool) {
	p := s.bytesAt(0, 120)
	if bits.OnesCount32(be.Uint32(p[4:])) != 1 { // block size
		return Content{}, false
	}
	return Content{Label: cleanText(p[108:120])}, true
}

func readF2FS(s *source, at int64) (Content, bool) {
	p := s.bytesAt(at, 124+1024)
	return Content{Label: cleanUTF16(p[124:])}, true
}

// The features that ext2 or ext3 lack tell the three apart.
const (
	extJournal       = 0x4
	extJournalDevice = 0x8
	ext3Incompatible = 0x2 | 0x4 | 0x10
	ext3ReadOnly     = 0x1 | 0x2 | 0x4
)

// readExt reads the label and sets Type to ext2, ext3, ext4 or, with Part, jbd; false if invalid.
func readExt(s *source, _ int64) (Content, bool) {
	p := s.bytesAt(1024, 0x88)
	if le.Uint32(p) == 0 || le.Uint32(p[0x18:]) > 6 { // inodes; block size above 64 KiB
		return Content{}, false
	}
	c := Content{Type: "ext2", Label: cleanText(p[0x78:0x88])}
	compatible, incompatible, readOnly := le.Uint32(p[0x5c:]), le.Uint32(p[0x60:]), le.Uint32(p[0x64:])
	switch {
	case incompatible&extJournalDevice != 0:
		c.Type, c.Part = "jbd", "an ext4 file system, as its journal"
	case incompatible&^ext3Incompatible != 0 || readOnly&^ext3ReadOnly != 0:
		c.Type = "ext4"
	case compatible&extJournal != 0:
		c.Type = "ext3"
	}
	return c, true
}

// readBtrfs reads the label, sets Part if there are several devices, and returns true.
func readBtrfs(s *source, at int64) (Content, bool) {
	p := s.bytesAt(at-0x40, 0x12b+256)
	c := Content{Label: cleanText(p[0x12b:])}
	if n := le.Uint64(p[0x88:]); n > 1 {
		c.Part = withName(fmt.Sprintf("a btrfs over %d devices", n), c.Label)
	}
	return c, true
}

// directoryBytes is how much of a root directory is searched for the label.
const directoryBytes = 32 << 10

// readFAT reads the label from the root directory or else the boot sector; false if it is no FAT.
func readFAT(s *source, _ int64) (Content, bool) {
	p := s.bytesAt(0, 512)
	if !isFAT(p) {
		return Content{}, false
	}
	sector, cluster := int64(le.Uint16(p[11:])), int64(p[13])
	reserved, tables, rootEntries := int64(le.Uint16(p[14:])), int64(p[16]), int64(le.Uint16(p[17:]))
	perTable, extra := int64(le.Uint16(p[22:])), p[0x24:]
	root, rootBytes := reserved*sector, rootEntries*32
	if perTable == 0 { // FAT32 has its root directory among the files
		perTable, extra = int64(le.Uint32(p[36:])), p[0x40:]
		root += (int64(le.Uint32(p[44:])) - 2) * cluster * sector
		rootBytes = cluster * sector
	}
	root += tables * perTable * sector
	c := Content{}
	if extra[2] == 0x29 || extra[2] == 0x28 { // serial and label follow
		c.Label = cleanText(extra[7:18])
	}
	if label := findFATLabel(s.bytesAt(root, int(min(rootBytes, directoryBytes)))); label != "" {
		c.Label = label
	}
	if c.Label == "NO NAME" {
		c.Label = ""
	}
	return c, true
}

// isFAT reports whether p is a FAT boot sector, by the values of its fields. The last two bytes are
// not enough, because the first sector of a boot loader has them too.
func isFAT(p []byte) bool {
	sector, cluster, media := le.Uint16(p[11:]), p[13], p[21]
	return p[510] == 0x55 && p[511] == 0xaa && (p[0] == 0xeb || p[0] == 0xe9) &&
		bits.OnesCount16(sector) == 1 && sector >= 512 && sector <= 4096 &&
		bits.OnesCount8(cluster) == 1 && le.Uint16(p[14:]) > 0 && (p[16] == 1 || p[16] == 2) &&
		(media == 0xf0 || media >= 0xf8)
}

// findFATLabel returns the label that a FAT root directory has as an entry, or "".
func findFATLabel(dir []byte) string {
	for ; len(dir) >= 32 && dir[0] != 0; dir = dir[32:] {
		if dir[0] != 0xe5 && dir[11]&0x3f == 0x08 { // not deleted, and nothing but a label
			return cleanText(dir[:11])
		}
	}
	return ""
}

// readExFAT reads the label from the root directory; false for invalid sizes.
func readExFAT(s *source, _ int64) (Content, bool) {
	p := s.bytesAt(0, 512)
	if p[108] < 9 || p[108] > 12 || p[109] > 25-p[108] {
		return Content{}, false
	}
	c := Content{}
	cluster := int64(1) << (p[108] + p[109])
	root := int64(le.Uint32(p[88:]))<<p[108] + (int64(le.Uint32(p[96:]))-2)*cluster
	for dir := s.bytesAt(root, int(min(cluster, directoryBytes))); len(dir) >= 32 && dir[0] != 0; dir = dir[32:] {
		if n := int(dir[1]); dir[0] == 0x83 && n <= 11 {
			c.Label = cleanUTF16(dir[2 : 2+2*n])
		}
	}
	return c, true
}

// readNTFS reads the label from the master file table's fourth record; false for invalid sectors.
func readNTFS(s *source, _ int64) (Content, bool) {
	p := s.bytesAt(0, 512)
	if bits.OnesCount16(le.Uint16(p[11:])) != 1 {
		return Content{}, false
	}
	c := Content{}
	cluster := int64(le.Uint16(p[11:])) * int64(p[13])
	record := int64(int8(p[0x40])) * cluster // of clusters, or a power of two where negative
	if n := int8(p[0x40]); n < 0 {
		record = 1 << min(-int(n), 16)
	}
	table := le.Uint64(p[0x30:])
	if record < 512 || record > 64<<10 || cluster == 0 || table > uint64(s.size/cluster) {
		return c, true
	}
	c.Label = findNTFSLabel(s.bytesAt(int64(table)*cluster+3*record, int(record)))
	return c, true
}

// findNTFSLabel returns the volume name attribute of a file record; "" if it has none.
func findNTFSLabel(p []byte) string {
	const volumeName = 0x60
	if len(p) < 24 || string(p[:4]) != "FILE" {
		return ""
	}
	for at := int(le.Uint16(p[20:])); at+24 <= len(p); {
		length := int(le.Uint32(p[at+4:]))
		if length < 24 || length > len(p)-at {
			return ""
		}
		if a := p[at : at+length]; le.Uint32(a) == volumeName {
			from, n := int(le.Uint16(a[20:])), int(le.Uint32(a[16:]))
			if n < 0 || from > len(a) || n > len(a)-from {
				return ""
			}
			return cleanUTF16(a[from : from+n])
		}
		at += length
	}
	return ""
}
