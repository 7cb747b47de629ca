// Package probe identifies a disk's content: partition table, file systems, membership in RAID or
// LVM. It reads a few dozen places of limited size. It trusts no value there and writes nothing.
package probe

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"slipway/layers/plaintext"
)

// Content is what a disk or a partition holds. The names are blkid's.
type Content struct {
	Type  string `json:"type,omitempty"`  // ext4, vfat, LVM2_member, ...; "" unknown or empty
	Label string `json:"label,omitempty"` // of a member: the name of its array or pool

	// Part names the larger thing this is part of, in use or not: "an LVM volume group (vg0)".
	Part string `json:"part,omitempty"`
}

// Disk is the content of a whole disk. An ISO image for USB sticks has a file system and a table.
type Disk struct {
	Content
	Table *Table `json:"table,omitempty"`
}

// Table is a partition table.
type Table struct {
	Type       string      `json:"type"` // gpt or dos
	Hybrid     bool        `json:"hybrid,omitempty"`
	Faults     []string    `json:"faults,omitempty"`
	Partitions []Partition `json:"partitions,omitempty"` // in the disk's order
}

// Partition is a part of a disk by its table, which the kernel may not have read.
type Partition struct {
	Number      int    `json:"number"`
	OffsetBytes int64  `json:"offsetBytes"`
	SizeBytes   int64  `json:"sizeBytes"`
	Name        string `json:"name,omitempty"`
	Content
}

// Read identifies the content of the first sizeBytes of r. sectorBytes is the device's,
// or 0 if unknown. After a read error it returns what it found elsewhere.
func Read(r io.ReaderAt, sizeBytes int64, sectorBytes int) (Disk, error) {
	s := &source{r: r, size: sizeBytes, failure: new(error)}
	disk := Disk{Content: s.identifyContent()}
	disk.Table = s.readTable(int64(sectorBytes), disk.Type)
	if disk.Table != nil {
		for i := range disk.Table.Partitions {
			p := &disk.Table.Partitions[i]
			p.Content = s.newSection(p.OffsetBytes, min(p.SizeBytes, sizeBytes-p.OffsetBytes)).identifyContent()
		}
	}
	return disk, *s.failure
}

// source is a part of a disk.
type source struct {
	r         io.ReaderAt
	off, size int64
	head      []byte // the first bytes, which most reads need; read at once
	failure   *error // the whole disk's first read error
}

// headBytes is read at once: up to btrfs's superblock and the end of a 64 KiB swap page.
const headBytes = 68 << 10

func (s *source) newSection(off, size int64) *source {
	return &source{r: s.r, off: s.off + off, size: size, failure: s.failure}
}

// bytesAt returns n bytes, all zero if one is outside the source or unreadable. Never change them.
func (s *source) bytesAt(off int64, n int) []byte {
	switch {
	case off < 0 || n <= 0 || off > s.size-int64(n):
		return make([]byte, max(n, 0))
	case off+int64(n) > headBytes:
		return s.readAt(off, n)
	case s.head == nil:
		s.head = s.readAt(0, int(min(headBytes, s.size)))
	}
	return s.head[off : off+int64(n) : off+int64(n)]
}

// readAt reads n bytes at off; zeros after a read error, which it keeps if it is the first.
func (s *source) readAt(off int64, n int) []byte {
	p := make([]byte, n)
	if got, err := s.r.ReadAt(p, s.off+off); got < n {
		*s.failure = cmp.Or(*s.failure, fmt.Errorf("read %d bytes at %d: %w", n, s.off+off, cmp.Or(err, io.ErrUnexpectedEOF)))
		clear(p)
	}
	return p
}

// identifyContent returns the first format that matches, if any. It tests for members of arrays
// before file systems, because a half of a mirror looks like the file system on it.
func (s *source) identifyContent() Content {
	for _, k := range slices.Concat(members, fileSystems) {
		if c, ok := k.detect(s); ok {
			c.Type = cmp.Or(c.Type, k.name)
			return c
		}
	}
	return Content{}
}

// format is one kind of content that a disk can hold.
type format struct {
	name  string
	magic string
	at    []int64                                   // offsets of the magic; from the end where negative
	read  func(s *source, at int64) (Content, bool) // nil: the magic is enough
	label textAt                                    // without read: where the label is
	part  string                                    // without read: Content.Part
}

// textAt is the offset and length of a text.
type textAt struct {
	off int64
	n   int
}

// detect returns the content if the source has the format's magic, if any, and read accepts it.
func (k format) detect(s *source) (Content, bool) {
	if len(k.at) == 0 {
		return k.read(s, 0)
	}
	for _, at := range k.at {
		if at < 0 {
			at += s.size
		}
		if string(s.bytesAt(at, len(k.magic))) != k.magic {
			continue
		}
		if k.read == nil {
			return Content{Label: cleanText(s.bytesAt(k.label.off, k.label.n)), Part: k.part}, true
		}
		if c, ok := k.read(s, at); ok {
			return c, true
		}
	}
	return Content{}, false
}

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// cleanText returns an untrusted name up to its first zero byte, without control characters.
func cleanText(p []byte) string {
	s, _, _ := strings.Cut(string(p), "\x00")
	return strings.TrimSpace(plaintext.OneLine(strings.ToValidUTF8(s, "")))
}

// cleanUTF16 returns a UTF-16 name as UTF-8, up to its first zero, without control characters.
func cleanUTF16(p []byte) string {
	var b []byte
	for ; len(p) >= 2 && le.Uint16(p) != 0; p = p[2:] {
		b = utf8.AppendRune(b, rune(le.Uint16(p))) // a surrogate pair becomes two U+FFFD
	}
	return cleanText(b)
}

// withName appends a name in brackets, unless it is "".
func withName(what, name string) string {
	if name == "" {
		return what
	}
	return what + " (" + name + ")"
}
