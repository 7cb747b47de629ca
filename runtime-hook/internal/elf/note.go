package elf

import (
	"bytes"
	"io"
)

// The largest real libraries have some dozen sections, and notes of some hundred bytes.
const (
	maxSections = 512
	maxNames    = 64 << 10
	maxNote     = 64 << 10
)

const (
	sectionSize = 64
	sectionNote = 7
	noteHeader  = 12
)

// Note returns the text of the first note in a section of 64-bit library f; nil if not the owner's.
func Note(f io.ReaderAt, section, owner string) []byte {
	head := make([]byte, 64)
	if !readFull(f, head, 0) || !bytes.HasPrefix(head, []byte("\x7fELF\x02\x01")) || le.Uint16(head[58:]) != sectionSize {
		return nil
	}
	count, names := int(le.Uint16(head[60:])), int(le.Uint16(head[62:]))
	if count > maxSections || names >= count {
		return nil
	}
	table := make([]byte, count*sectionSize)
	if !readFull(f, table, le.Uint64(head[40:])) {
		return nil
	}
	text, _ := sectionData(f, table[names*sectionSize:], maxNames)
	for ; len(table) > 0; table = table[sectionSize:] {
		at := uint64(le.Uint32(table))
		if le.Uint32(table[4:]) != sectionNote || at >= uint64(len(text)) || !bytes.HasPrefix(text[at:], []byte(section+"\x00")) {
			continue
		}
		if data, ok := sectionData(f, table, maxNote); ok {
			return noteText(data, le.Uint64(table[48:]), owner)
		}
	}
	return nil
}

// sectionData returns the content of the section with this header, if it has at most max bytes.
func sectionData(f io.ReaderAt, header []byte, max uint64) ([]byte, bool) {
	size := le.Uint64(header[32:])
	if size > max {
		return nil, false
	}
	data := make([]byte, size)
	return data, readFull(f, data, le.Uint64(header[24:]))
}

// noteText returns the first note's text, without NULs around it; nil if it is not the owner's.
func noteText(data []byte, align uint64, owner string) []byte {
	if len(data) < noteHeader || align != 1 && align != 4 && align != 8 {
		return nil
	}
	nameSize, size := uint64(le.Uint32(data)), uint64(le.Uint32(data[4:]))
	rest := data[noteHeader:]
	from := (nameSize + align - 1) / align * align
	if from > uint64(len(rest)) || size > uint64(len(rest))-from {
		return nil
	}
	if string(bytes.Trim(rest[:nameSize], "\x00")) != owner {
		return nil
	}
	return bytes.Trim(rest[from:from+size], "\x00")
}
