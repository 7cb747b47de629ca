// Package probe says what a disk holds: its partition table, file systems, and
// what makes it a part of something larger. It reads a few dozen places, each of
// bounded size, believes none of what stands there, and writes nothing.
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
	Type  string `json:"type,omitempty"`  // ext4, vfat, LVM2_member, ...; "" where nothing is known to be there
	Label string `json:"label,omitempty"` // of a member of an array or a pool: that one's name
	UUID  string `json:"uuid,omitempty"`

	// Part says what larger thing this is a part of, whether or not that is in use
	// at the moment: "an LVM volume group (vg0)".
	Part string `json:"part,omitempty"`
}

// Disk is what a whole disk holds. There may be both: an ISO image that is also
// partitioned, for USB sticks.
type Disk struct {
	Content
	Table *Table `json:"table,omitempty"`
}

// Table is a partition table.
type Table struct {
	Type       string      `json:"type"` // gpt or dos
	Hybrid     bool        `json:"hybrid,omitempty"`
	UUID       string      `json:"uuid,omitempty"`
	Faults     []string    `json:"faults,omitempty"`
	Partitions []Partition `json:"partitions,omitempty"` // as they lie on the disk
}

// Partition is a part of a disk by its table, which the kernel may not have read.
type Partition struct {
	Number      int    `json:"number"`
	OffsetBytes int64  `json:"offsetBytes"`
	SizeBytes   int64  `json:"sizeBytes"`
	Type        string `json:"type"` // GUID, or two hexadecimal digits
	Name        string `json:"name,omitempty"`
	UUID        string `json:"uuid,omitempty"`
	Content
}

// Read finds out what r holds, of which only sizeBytes count. sectorBytes is the
// device's; 0 where that is not known. With an error comes what was found all the
// same: a card with a bad spot still has a name.
func Read(r io.ReaderAt, sizeBytes int64, sectorBytes int) (Disk, error) {
	s := &source{r: r, size: sizeBytes}
	disk := Disk{Content: s.content()}
	disk.Table = s.table(int64(sectorBytes), disk.Type)
	if disk.Table != nil {
		for i := range disk.Table.Partitions {
			p := &disk.Table.Partitions[i]
			p.Content = s.part(p.OffsetBytes, min(p.SizeBytes, sizeBytes-p.OffsetBytes)).content()
		}
	}
	return disk, *s.failure()
}

// source is a part of a disk. What cannot be read counts as not there, and the
// first such place is remembered.
type source struct {
	r         io.ReaderAt
	off, size int64
	head      []byte // most of what is asked for lies here; read at once
	whole     *source
	err       error
}

// headBytes reaches behind btrfs's superblock and 64 KiB pages of swap.
const headBytes = 68 << 10

func (s *source) part(off, size int64) *source {
	return &source{r: s.r, off: s.off + off, size: size, whole: s}
}

func (s *source) failure() *error {
	if s.whole != nil {
		return s.whole.failure()
	}
	return &s.err
}

// at returns n bytes, or nil where the source has none there.
func (s *source) at(off int64, n int) []byte {
	if off < 0 || n <= 0 || int64(n) > s.size || off > s.size-int64(n) {
		return nil
	}
	if off+int64(n) > headBytes {
		return s.read(off, n)
	}
	if s.head == nil {
		s.head = s.read(0, int(min(headBytes, s.size)))
	}
	if off+int64(n) > int64(len(s.head)) {
		return nil
	}
	return s.head[off : off+int64(n) : off+int64(n)]
}

func (s *source) read(off int64, n int) []byte {
	p := make([]byte, n)
	got, err := s.r.ReadAt(p, s.off+off)
	if got < n {
		if failure := s.failure(); *failure == nil {
			*failure = fmt.Errorf("read %d bytes at %d: %w", n, s.off+off, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		return nil
	}
	return p
}

// content asks for members of something larger first: the first half of a mirror
// looks like the file system on it.
func (s *source) content() Content {
	for _, k := range slices.Concat(members, fileSystems) {
		if c, ok := k.find(s); ok {
			c.Type = cmp.Or(c.Type, k.name)
			return c
		}
	}
	return Content{}
}

// kind is one thing that a disk can hold.
type kind struct {
	name  string
	magic string
	at    []int64                                   // where the magic may stand; from the end where negative
	read  func(s *source, at int64) (Content, bool) // nil: the magic says all
}

func (k kind) find(s *source) (Content, bool) {
	if len(k.at) == 0 {
		return k.read(s, 0)
	}
	for _, at := range k.at {
		if at < 0 {
			at += s.size
		}
		if string(s.at(at, len(k.magic))) != k.magic {
			continue
		}
		if k.read == nil {
			return Content{}, true
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

// text is a name from outside, up to its first zero byte.
func text(p []byte) string {
	s, _, _ := strings.Cut(string(p), "\x00")
	return strings.TrimSpace(plaintext.OneLine(strings.ToValidUTF8(s, "")))
}

// wide is text in UTF-16.
func wide(p []byte) string {
	var b []byte
	for ; len(p) >= 2 && le.Uint16(p) != 0; p = p[2:] {
		b = utf8.AppendRune(b, rune(le.Uint16(p))) // what lies beyond 16 bits becomes U+FFFD, twice
	}
	return text(b)
}

// uuid writes 16 bytes in the usual way; 16 zeros are none.
func uuid(p []byte) string {
	if len(p) != 16 || strings.Trim(string(p), "\x00") == "" {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", p[:4], p[4:6], p[6:8], p[8:10], p[10:])
}

// named puts a name behind what it is the name of.
func named(what, name string) string {
	if name == "" {
		return what
	}
	return what + " (" + name + ")"
}
