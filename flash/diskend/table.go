// Package diskend moves the end of a disk: its partition table, the last partition, and an ext4 file
// system in that. Nothing but an ext4 leaves memory. sfdisk 2.38 does not see a GPT whose disk became
// smaller, and in a file it sees no sectors of 4096 bytes.
package diskend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"slipway/flash/probe"
)

// Mark is the size of each end of a disk. No partition that this package changes lies in one.
const Mark = 1 << 20

// RoundUp returns the next multiple of Mark, or n if it is one.
func RoundUp(n int64) int64 { return (n + Mark - 1) &^ (Mark - 1) }

// Ends are the first and last Mark bytes of a disk, with its partition table.
type Ends struct {
	First, Last            []byte
	SizeBytes, SectorBytes int64
}

// NewEnds returns the ends of a disk of these sizes that begins as r does. All else is zero, also
// bytes that cannot be read. The error is that of r, io.EOF if r is shorter than Mark.
func NewEnds(r io.ReaderAt, sizeBytes, sectorBytes int64) (Ends, error) {
	e := Ends{make([]byte, Mark), make([]byte, Mark), sizeBytes, sectorBytes}
	_, err := r.ReadAt(e.First, 0)
	return e, err
}

// ReadAt reads the ends, and zeros between them. It never fails.
func (e Ends) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	copy(p, e.First[min(off, Mark):])
	behind := off - (e.SizeBytes - Mark)
	copy(p[min(max(-behind, 0), int64(len(p))):], e.Last[min(max(behind, 0), Mark):])
	return len(p), nil
}

// Last returns the last partition of a disk, or an error if a change of its entry is not enough.
func Last(t *probe.Table) (probe.Partition, error) {
	if t == nil || len(t.Partitions) == 0 || t.Hybrid {
		return probe.Partition{}, errors.New("it has no partitions, or a GPT and an MBR at once (hybrid)")
	}
	last := t.Partitions[len(t.Partitions)-1]
	for _, p := range t.Partitions[:len(t.Partitions)-1] {
		if p.OffsetBytes+p.SizeBytes > last.OffsetBytes || t.Type == "dos" && last.Number > 4 {
			return last, fmt.Errorf("its last partition, %d, overlaps another one or is a logical one", last.Number)
		}
	}
	if last.OffsetBytes < Mark {
		return last, fmt.Errorf("its last partition, %d, begins in the first MiB", last.Number)
	}
	return last, nil
}

// Fit changes the table to one for a disk of SizeBytes: the second copy of a GPT is at the end, and
// the last partition ends before the last MiB. Unless it may shrink, it keeps its size at least. Fit
// returns the partition as it was, and its new size. After an error the ends must not be used.
func (e Ends) Fit(shrink bool) (was probe.Partition, partBytes int64, err error) {
	before, _ := probe.Read(e, e.SizeBytes, int(e.SectorBytes)) // memory can be read
	if was, err = Last(before.Table); err != nil {
		return was, 0, err
	}
	end, set := e.SizeBytes-Mark, e.setGPT
	if before.Table.Type == "dos" {
		end, set = min(end, (1<<32-1)*e.SectorBytes), e.setMBR
	}
	partBytes = (end - was.OffsetBytes) &^ (Mark - 1)
	if !shrink {
		partBytes = max(partBytes, was.SizeBytes)
	}
	if err := set(was, partBytes); err != nil {
		return was, 0, fmt.Errorf("change the partition table: %w", err)
	}
	want := slices.Clone(before.Table.Partitions)
	want[len(want)-1].SizeBytes = partBytes
	if now, _ := probe.Read(e, e.SizeBytes, int(e.SectorBytes)); now.Table == nil || len(now.Table.Faults) > 0 || !slices.Equal(now.Table.Partitions, want) {
		return was, 0, fmt.Errorf("the changed partition table is not right: %+v", now.Table)
	}
	return was, partBytes, nil
}

var le = binary.LittleEndian

// setMBR changes the size of a primary partition.
func (e Ends) setMBR(last probe.Partition, partBytes int64) error {
	entry := e.First[446+16*(last.Number-1):]
	if slices.Contains([]byte{0x05, 0x0f, 0x85}, entry[4]) {
		return errors.New("the last partition is an extended one")
	}
	copy(entry[5:8], "\xfe\xff\xff") // its end in cylinders, which says nothing
	le.PutUint32(entry[12:], uint32(partBytes/e.SectorBytes))
	return nil
}

// setGPT changes the size of a partition in both copies, and the size in the protective MBR.
func (e Ends) setGPT(last probe.Partition, partBytes int64) error {
	head, end := e.First[e.SectorBytes:], e.SizeBytes/e.SectorBytes-1
	hdr, n, each, from := int64(le.Uint32(head[12:])), int64(le.Uint32(head[80:])), int64(le.Uint32(head[84:])), int64(le.Uint64(head[72:]))*e.SectorBytes
	at, size := int64(last.Number-1)*each, n*each
	if string(head[:8]) != "EFI PART" || hdr < 92 || hdr > 512 || each < 128 || at+each > size || size > Mark/2 || from < 2*e.SectorBytes || from > Mark-size {
		return errors.New("its first copy is damaged, for other sectors, or not at the beginning")
	}
	entries, second := e.First[from:][:size], end-(size+e.SectorBytes-1)/e.SectorBytes
	le.PutUint64(entries[at+40:], uint64((last.OffsetBytes+partBytes)/e.SectorBytes-1))
	if last.OffsetBytes+partBytes > second*e.SectorBytes {
		return errors.New("it has no room for its second copy")
	}
	le.PutUint64(head[48:], uint64(second-1))
	le.PutUint32(head[88:], crc32.ChecksumIEEE(entries))
	tail := e.Last[Mark+second*e.SectorBytes-e.SizeBytes:] // the second copy's entries, and its header
	copy(tail, entries)
	other := tail[(end-second)*e.SectorBytes:]
	copy(other, head[:e.SectorBytes])
	for _, c := range []struct {
		head               []byte
		at, other, entries int64
	}{{head, 1, end, from / e.SectorBytes}, {other, end, 1, second}} {
		le.PutUint64(c.head[24:], uint64(c.at))
		le.PutUint64(c.head[32:], uint64(c.other))
		le.PutUint64(c.head[72:], uint64(c.entries))
		clear(c.head[16:20])
		le.PutUint32(c.head[16:], crc32.ChecksumIEEE(c.head[:hdr]))
	}
	for entry := e.First[446:510]; len(entry) > 0; entry = entry[16:] {
		if entry[4] == 0xee {
			le.PutUint32(entry[12:], uint32(min(end, 1<<32-1)))
		}
	}
	return nil
}
