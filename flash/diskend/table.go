// Package diskend moves the end of a disk: its partition table, the last partition, and an ext4 file
// system in that. Nothing but an ext4 leaves memory.
package diskend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"slipway/flash/probe"
)

// Mark is the size of each end of a disk. No partition that this package changes lies in one.
const Mark = 1 << 20

// Ends are the first and last Mark bytes of a disk, with its partition table.
type Ends struct {
	First, Last            []byte
	SizeBytes, SectorBytes int64
}

// copyAt calls do with the bytes of each end that p at off overlaps. It returns the number of bytes.
func (e Ends) copyAt(p []byte, off int64, do func(end, p []byte)) (n int) {
	for i, end := range [][]byte{e.First, e.Last} {
		at := int64(i) * (e.SizeBytes - Mark)
		if from, to := max(at, off), min(at+int64(len(end)), off+int64(len(p))); from < to {
			do(end[from-at:to-at], p[from-off:to-off])
			n += int(to - from)
		}
	}
	return n
}

// ReadAt reads the ends, and zeros between them. It never fails.
func (e Ends) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	e.copyAt(p, off, func(end, p []byte) { copy(p, end) })
	return len(p), nil
}

// write changes bytes of the ends. Others are an error.
func (e Ends) write(p []byte, off int64) error {
	if n := e.copyAt(p, off, func(end, p []byte) { copy(end, p) }); n < len(p) {
		return fmt.Errorf("a part of it, at byte %d, is not in the first or last MiB", off)
	}
	return nil
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
	head := slices.Clone(e.First[e.SectorBytes:][:e.SectorBytes])
	hdr, n, each, from := int64(le.Uint32(head[12:])), int64(le.Uint32(head[80:])), int64(le.Uint32(head[84:])), int64(le.Uint64(head[72:]))
	at, end := int64(last.Number-1)*each, e.SizeBytes/e.SectorBytes-1
	if string(head[:8]) != "EFI PART" || hdr < 92 || hdr > 512 || each < 128 || at+each > n*each || n*each > Mark || from < 2 || from > end {
		return errors.New("its first copy is damaged, or for other sectors")
	}
	entries := make([]byte, n*each)
	_, _ = e.ReadAt(entries, from*e.SectorBytes)
	le.PutUint64(entries[at+40:], uint64((last.OffsetBytes+partBytes)/e.SectorBytes-1))
	second := end - (n*each+e.SectorBytes-1)/e.SectorBytes
	if last.OffsetBytes+partBytes > second*e.SectorBytes {
		return errors.New("it has no room for its second copy")
	}
	le.PutUint64(head[48:], uint64(second-1))
	le.PutUint32(head[88:], crc32.ChecksumIEEE(entries))
	for _, c := range []struct{ at, other, entries int64 }{{1, end, from}, {end, 1, second}} {
		le.PutUint64(head[24:], uint64(c.at))
		le.PutUint64(head[32:], uint64(c.other))
		le.PutUint64(head[72:], uint64(c.entries))
		clear(head[16:20])
		le.PutUint32(head[16:], crc32.ChecksumIEEE(head[:hdr]))
		if err := errors.Join(e.write(entries, c.entries*e.SectorBytes), e.write(head, c.at*e.SectorBytes)); err != nil {
			return err
		}
	}
	for entry := e.First[446:510]; len(entry) > 0; entry = entry[16:] {
		if entry[4] == 0xee {
			le.PutUint32(entry[12:], uint32(min(end, 1<<32-1)))
		}
	}
	return nil
}
