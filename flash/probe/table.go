package probe

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
)

const (
	maxPartitions = 256 // Linux shows no more
	maxEntryBytes = 512 << 10
	maxLogical    = 64
)

// readTable returns the GPT or MBR, sorted and with its faults, or nil if there is none. fsType
// is the file system's on the whole source, whose first sector can look like a table.
func (s *source) readTable(sector int64, fsType string) *Table {
	mbr := s.readMBR(max(sector, 512), fsType)
	t := cmp.Or(s.readGPT(sector, mbr), mbr)
	if t == nil {
		return nil
	}
	slices.SortStableFunc(t.Partitions, func(a, b Partition) int { return cmp.Compare(a.OffsetBytes, b.OffsetBytes) })
	for _, p := range t.Partitions {
		if p.SizeBytes > s.size-p.OffsetBytes {
			t.addFault("partition %d ends behind the disk's end", p.Number)
		}
	}
	return t
}

func (t *Table) addFault(format string, args ...any) {
	t.Faults = append(t.Faults, fmt.Sprintf(format, args...))
}

// gptHeader is one of a GPT's two copies.
type gptHeader struct {
	sector  int64
	other   uint64 // sector of the other copy
	entries []byte
	each    int
}

// readGPT reads both copies of the GPT, for sectors of 512 and 4096 bytes, and returns the first
// valid copy's partitions with the faults of both. If both are damaged, it returns nil, and adds
// that as a fault to a protective mbr. Any other mbr hides a GPT from Linux.
func (s *source) readGPT(sector int64, mbr *Table) *Table {
	if mbr != nil && mbr.Type != "gpt" { // Linux then ignores a GPT
		return nil
	}
	sizes := []int64{512, 4096}
	if sector == 4096 {
		sizes = []int64{4096, 512}
	}
	for _, size := range sizes {
		first, last := s.readGPTHeader(size, size), s.readGPTHeader(size, s.size-s.size%size-size)
		if first == nil && last == nil {
			continue
		}
		if first != nil && last == nil && int64(first.other) < s.size/size {
			last = s.readGPTHeader(size, int64(first.other)*size)
		}
		t := &Table{Type: "gpt", Hybrid: mbr != nil && mbr.Hybrid}
		t.compareCopies(first, last, s.size/size)
		if mbr == nil {
			t.addFault("no protective MBR before it")
		}
		if sector != 0 && size != sector {
			t.addFault("made for sectors of %d bytes, while the device has %d: the kernel does not see it", size, sector)
		}
		h := cmp.Or(first, last)
		t.Partitions = h.listPartitions(s.size)
		return t
	}
	if mbr != nil && mbr.Type == "gpt" {
		mbr.addFault("both copies of the GPT are damaged or gone")
	}
	return nil
}

// compareCopies adds a fault to t if one copy of the GPT is missing, differs, or is not at the end.
func (t *Table) compareCopies(first, last *gptHeader, sectors int64) {
	switch {
	case first == nil:
		t.addFault("the first copy of the partition table is damaged, the second one at the end is whole")
	case last == nil:
		t.addFault("the second copy of the partition table, at the end, is damaged or missing")
	case string(first.entries) != string(last.entries):
		t.addFault("the two copies of the partition table differ")
	case int64(first.other) != sectors-1:
		t.addFault("the second copy of the partition table is not at the end: the table was made for a smaller disk")
	}
}

// readGPTHeader reads the GPT copy at an offset. It returns nil for wrong checksums or fields.
func (s *source) readGPTHeader(sector, at int64) *gptHeader {
	p := s.bytesAt(at, 512)
	if string(p[:8]) != "EFI PART" {
		return nil
	}
	size, n, each := le.Uint32(p[12:]), le.Uint32(p[80:]), le.Uint32(p[84:])
	if size < 92 || size > 512 || each < 128 || each > 4096 || each%8 != 0 || n == 0 || n > maxEntryBytes/each {
		return nil
	}
	header := slices.Clone(p[:size])
	clear(header[16:20])
	from := le.Uint64(p[72:])
	if crc32.ChecksumIEEE(header) != le.Uint32(p[16:]) || int64(le.Uint64(p[24:])) != at/sector || from > uint64(s.size/sector) {
		return nil
	}
	entries := s.bytesAt(int64(from)*sector, int(n*each))
	if crc32.ChecksumIEEE(entries) != le.Uint32(p[88:]) {
		return nil
	}
	return &gptHeader{sector: sector, other: le.Uint64(p[32:]), entries: entries, each: int(each)}
}

// listPartitions returns the partitions that begin within size, at most maxPartitions.
func (h *gptHeader) listPartitions(size int64) []Partition {
	var all []Partition
	for i := 0; (i+1)*h.each <= len(h.entries) && len(all) < maxPartitions; i++ {
		e := h.entries[i*h.each:]
		first, last := le.Uint64(e[32:]), le.Uint64(e[40:])
		if formatGUID(e[:16]) == "" || first > last || first >= uint64(size/h.sector) {
			continue
		}
		all = append(all, Partition{
			Number: i + 1, OffsetBytes: int64(first) * h.sector,
			SizeBytes: (int64(min(last, 1<<50)) - int64(first) + 1) * h.sector,
			Name:      cleanUTF16(e[56:128]),
		})
	}
	return all
}

// formatGUID formats a UUID whose first three numbers are little-endian; "" if all are zero.
func formatGUID(p []byte) string {
	if strings.Trim(string(p[:16]), "\x00") == "" {
		return ""
	}
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", le.Uint32(p), le.Uint16(p[4:]), le.Uint16(p[6:]), p[8:10], p[10:16])
}

const protective = 0xee

// readMBR reads an MBR and its logical partitions; nil without one, and if fsType is one
// that begins like an MBR. A protective MBR has type gpt.
func (s *source) readMBR(sector int64, fsType string) *Table {
	p := s.bytesAt(0, 512)
	if p[510] != 0x55 || p[511] != 0xaa || slices.Contains([]string{"vfat", "ntfs", "exfat", "BitLocker"}, fsType) {
		return nil
	}
	t := &Table{Type: "dos"}
	guarded := false
	for i, e := range parseMBREntries(p) {
		if e.boot&0x7f != 0 { // a boot sector, not a table
			return nil
		}
		guarded = guarded || e.kind == protective
		if !e.isValid(s.size / sector) {
			continue
		}
		if e.kind != protective {
			t.Partitions = append(t.Partitions, e.toPartition(i+1, 0, sector))
		}
		if e.isExtended() {
			t.Partitions = append(t.Partitions, s.readLogical(e.start, sector)...)
		}
	}
	if guarded {
		t.Type, t.Hybrid = "gpt", len(t.Partitions) > 0
	}
	if !guarded && len(t.Partitions) == 0 {
		return nil
	}
	return t
}

// mbrEntry is one of the four entries of an MBR.
type mbrEntry struct {
	boot, kind   byte
	start, count int64 // sectors
}

// parseMBREntries returns the four entries in a sector, unchecked.
func parseMBREntries(p []byte) []mbrEntry {
	all := make([]mbrEntry, 4)
	for i := range all {
		e := p[446+16*i:]
		all[i] = mbrEntry{boot: e[0], kind: e[4], start: int64(le.Uint32(e[8:])), count: int64(le.Uint32(e[12:]))}
	}
	return all
}

func (e mbrEntry) isValid(sectors int64) bool {
	return e.kind != 0 && e.count > 0 && e.start > 0 && e.start < sectors
}

func (e mbrEntry) isExtended() bool { return e.kind == 0x05 || e.kind == 0x0f || e.kind == 0x85 }

func (e mbrEntry) toPartition(n int, base, sector int64) Partition {
	return Partition{Number: n, OffsetBytes: (base + e.start) * sector, SizeBytes: e.count * sector}
}

// readLogical follows the chain of tables in an extended partition, up to maxLogical. Each has one
// partition and the offset of the next table from the first one. The chain may only move forward.
func (s *source) readLogical(extended, sector int64) []Partition {
	var all []Partition
	for at, last := extended, int64(-1); at > last && len(all) < maxLogical; {
		p := s.bytesAt(at*sector, 512)
		if p[510] != 0x55 || p[511] != 0xaa {
			break
		}
		e := parseMBREntries(p)
		if e[0].isValid(s.size/sector-at) && !e[0].isExtended() {
			all = append(all, e[0].toPartition(5+len(all), at, sector))
		}
		if !e[1].isExtended() || !e[1].isValid(s.size/sector-extended) {
			break
		}
		last, at = at, extended+e[1].start
	}
	return all
}
