package dump

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"slipway/flash/probe"
	"slipway/flash/source"
	"slipway/layers/run"
)

// Part is a partition, or a file system on the whole disk, and how its blocks were chosen.
type Part struct {
	Number int    `json:"number,omitempty"` // 0: the whole disk
	Type   string `json:"type,omitempty"`
	By     string `json:"by"`
}

// A file system's list of free blocks is believed only if all agrees: a block that is used and left
// out would be lost. Otherwise all blocks are read, as for other file systems. partclone 0.3.23 reads
// more kinds, but accepts FATs that differ and journals to replay, and needs a loop device for each.

// findFree returns the ascending spans that the disk's file systems do not use, and the partitions.
func findFree(ctx context.Context, disk Disk) (free []source.Span, parts []Part, err error) {
	size := disk.SizeBytes()
	holds, err := probe.Read(disk, size, int(disk.SectorBytes))
	if err != nil {
		return nil, nil, ReadError{err}
	}
	all := []probe.Partition{{SizeBytes: size, Content: holds.Content}}
	if holds.Table != nil {
		all = holds.Table.Partitions
	}
	end := int64(0)
	for i, p := range all {
		p.SizeBytes = min(p.SizeBytes, size-p.OffsetBytes)
		found, why := []source.Span(nil), errors.New("no file system that Slipway reads")
		if p.OffsetBytes < end || i+1 < len(all) && all[i+1].OffsetBytes < p.OffsetBytes+p.SizeBytes {
			why = errors.New("it overlaps another one")
		} else if read := readers[p.Type]; read != nil {
			found, why = read(ctx, disk, p)
		}
		part := Part{Number: p.Number, Type: p.Type, By: "the blocks that its file system uses"}
		if why != nil {
			part.By, found = "all blocks that are not zero: "+why.Error(), nil
		}
		free, parts, end = append(free, found...), append(parts, part), max(end, p.OffsetBytes+p.SizeBytes)
	}
	return free, parts, context.Cause(ctx)
}

// readers return the free spans of a file system on a partition, by its type.
var readers = map[string]func(context.Context, Disk, probe.Partition) ([]source.Span, error){
	"ext2": freeOfExt, "ext3": freeOfExt, "ext4": freeOfExt, "vfat": freeOfFAT,
}

var le = binary.LittleEndian

// freeOfExt returns the blocks that dumpe2fs calls free.
func freeOfExt(ctx context.Context, disk Disk, p probe.Partition) ([]source.Span, error) {
	piece := disk.Pieces[slices.IndexFunc(disk.Pieces, func(piece Piece) bool { return p.OffsetBytes < piece.End })]
	at := fmt.Sprintf("/proc/self/fd/3?offset=%d", p.OffsetBytes-piece.Off) // e2fsprogs' own form; fd 3 is Hold
	out, err := run.Output(ctx, run.Command{Argv: []string{"dumpe2fs", at}, Hold: piece.File, Env: []string{"LC_ALL=C"}})
	if err != nil {
		return nil, fmt.Errorf("dumpe2fs (Debian package e2fsprogs): %s", run.LastLine(err))
	}
	return parseFree(string(out), p)
}

// parseFree returns the spans in dumpe2fs's lines of free blocks: "  Free blocks: 12-40, 57". The file
// system must have been unmounted cleanly, and its superblock must have their number.
func parseFree(out string, p probe.Partition) (free []source.Span, err error) {
	head, groups, _ := strings.Cut(out, "\nGroup 0:")
	field := func(name string) string {
		_, rest, _ := strings.Cut(head, "\n"+name+":")
		value, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(value)
	}
	var block, blocks, left, next int64
	_, err = fmt.Sscan(field("Block size")+" "+field("Block count")+" "+field("Free blocks"), &block, &blocks, &left)
	switch {
	case err != nil || block < 1024 || block > 64<<10:
		return nil, fmt.Errorf("dumpe2fs says %.40q", head)
	case field("Filesystem state") != "clean" || strings.Contains(field("Filesystem features"), "needs_recovery"):
		return nil, errors.New("it was not unmounted cleanly")
	case blocks > p.SizeBytes/block:
		return nil, errors.New("it is larger than its partition")
	}
	for line := range strings.Lines(groups) {
		list, ok := strings.CutPrefix(strings.TrimSpace(line), "Free blocks: ")
		if !ok {
			continue
		}
		for text := range strings.SplitSeq(list, ", ") {
			a, b, ok := strings.Cut(text, "-")
			if !ok {
				b = a
			}
			first, err := strconv.ParseInt(a, 10, 64)
			last, wrong := strconv.ParseInt(b, 10, 64)
			if err := errors.Join(err, wrong); err != nil || first < next || last < first || last >= blocks {
				return nil, fmt.Errorf("dumpe2fs says %.40q", text)
			}
			next, left = last+1, left-(last+1-first)
			free = append(free, source.Span{Off: p.OffsetBytes + first*block, Len: (next - first) * block})
		}
	}
	if left != 0 {
		return nil, errors.New("its number of free blocks is wrong")
	}
	return free, nil
}

// maxTableBytes is the limit of a FAT: 64 Mi clusters.
const maxTableBytes = 256 << 20

// freeOfFAT returns the free clusters of a FAT16 or FAT32 that was unmounted cleanly and whose
// tables are equal. probe has judged the boot sector.
func freeOfFAT(_ context.Context, disk Disk, p probe.Partition) (free []source.Span, err error) {
	b := make([]byte, 512)
	if _, err := disk.ReadAt(b, p.OffsetBytes); err != nil {
		return nil, err
	}
	sector, per, reserved, tables := int64(le.Uint16(b[11:])), int64(b[13]), int64(le.Uint16(b[14:])), int64(b[16])
	sectors, perTable := cmp.Or(int64(le.Uint16(b[19:])), int64(le.Uint32(b[32:]))), int64(le.Uint16(b[22:]))
	width, mask, dirty, shift := int64(2), uint32(1<<16-1), b[0x25], 6 // of an entry, and where the marks of a clean one are
	if perTable == 0 {
		perTable, width, mask, dirty, shift = int64(le.Uint32(b[36:])), 4, 1<<28-1, b[0x41], 2
	}
	data := reserved + tables*perTable + (int64(le.Uint16(b[17:]))*32+sector-1)/sector
	clusters, tableBytes := (sectors-data)/per, perTable*sector
	switch {
	case width == 2 && clusters > 0 && clusters < 4085:
		return nil, errors.New("it is FAT12, whose entries Slipway does not read")
	case sectors*sector > p.SizeBytes || clusters < 1 || (clusters+2)*width > tableBytes || tableBytes > maxTableBytes:
		return nil, errors.New("its sizes do not fit")
	}
	all := make([]byte, tables*tableBytes+2) // an entry of FAT16 is read with the next one
	if _, err := disk.ReadAt(all[:tables*tableBytes], p.OffsetBytes+reserved*sector); err != nil {
		return nil, err
	}
	second := all[(tables-1)*tableBytes:][:tableBytes]
	if clean := all[2*width-1]>>shift&3 == 3; dirty&1 != 0 || !clean || !bytes.Equal(all[:tableBytes], second) {
		return nil, errors.New("it was not unmounted cleanly")
	}
	for i := range clusters {
		at := p.OffsetBytes + (data+i*per)*sector
		if n := len(free); le.Uint32(all[(i+2)*width:])&mask != 0 {
			continue
		} else if n > 0 && free[n-1].Off+free[n-1].Len == at {
			free[n-1].Len += per * sector
		} else {
			free = append(free, source.Span{Off: at, Len: per * sector})
		}
	}
	return free, nil
}
