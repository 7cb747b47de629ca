// Package elf reads from a shared library its name (DT_SONAME) and its machine, which a dynamic
// linker looks for, and notes. It allocates memory only up to fixed limits.
package elf

import (
	"bytes"
	"encoding/binary"
	"io"
)

// Machine is a processor with its calling convention. Programs load libraries of one only.
type Machine string

// The machines of boards and of developers' computers.
const (
	AArch64 Machine = "aarch64"
	ARM     Machine = "arm"
	ARMHF   Machine = "armhf"
	I386    Machine = "i386"
	X8664   Machine = "x86-64"
)

// Library is one shared library.
type Library struct {
	Soname  string // "" if it has none
	Machine Machine
}

// The largest real libraries have some dozen segments and some hundred dynamic entries.
const (
	maxSegments = 128
	maxDynamic  = 64 << 10
	maxName     = 255 // NAME_MAX
)

const (
	typeShared  = 3
	segmentLoad = 1
	segmentDyn  = 2
	tagStrings  = 5
	tagSoname   = 14
)

// Read reads the shared library f; ok if it is whole, little-endian, and for one of the machines.
func Read(f io.ReaderAt) (lib Library, ok bool) {
	head := make([]byte, 64)
	if n, err := f.ReadAt(head, 0); n < 52 || err != nil && err != io.EOF {
		return Library{}, false
	}
	const little = 1
	if !bytes.HasPrefix(head, []byte("\x7fELF")) || head[5] != little || le.Uint16(head[16:]) != typeShared {
		return Library{}, false
	}
	w, ok := layouts[head[4]]
	if !ok {
		return Library{}, false
	}
	if lib.Machine, ok = machineOf(le.Uint16(head[18:]), head[4], le.Uint32(head[w.flags:])); !ok {
		return Library{}, false
	}
	lib.Soname, ok = w.findSoname(f, head)
	return lib, ok
}

var le = binary.LittleEndian

// layout holds the offsets of the fields of one ELF class.
type layout struct {
	word                     int // bytes of an address
	segmentsAt, flags, count int
	segment                  int // bytes of a segment's entry, and the fields in it
	offset, address, size    int
}

var layouts = map[byte]layout{
	1: {4, 28, 36, 44, 32, 4, 8, 16},
	2: {8, 32, 48, 56, 56, 8, 16, 32},
}

// readWord returns the number at the start of b, of 4 bytes in a 32-bit file and 8 in a 64-bit one.
func (w layout) readWord(b []byte) uint64 {
	if w.word == 4 {
		return uint64(le.Uint32(b))
	}
	return le.Uint64(b)
}

// machineOf returns the Machine for an ELF header's machine number, class and flags.
func machineOf(number uint16, class byte, flags uint32) (Machine, bool) {
	const (
		eabi    = 0xff000000
		version = 0x05000000
		hard    = 0x400
	)
	switch {
	case number == 183 && class == 2:
		return AArch64, true
	case number == 62 && class == 2:
		return X8664, true
	case number == 3 && class == 1:
		return I386, true
	case number == 40 && class == 1 && flags&eabi == version && flags&hard != 0:
		return ARMHF, true
	case number == 40 && class == 1:
		return ARM, true
	}
	return "", false
}

type segment struct{ offset, address, size uint64 }

// findSoname reads the soname through the segments, as the dynamic linker does, because a stripped
// library needs no sections. It is "" if the library has none, false if the file is invalid.
func (w layout) findSoname(f io.ReaderAt, head []byte) (string, bool) {
	count := int(le.Uint16(head[w.count:]))
	if count > maxSegments {
		return "", false
	}
	table := make([]byte, count*w.segment)
	if !readFull(f, table, w.readWord(head[w.segmentsAt:])) {
		return "", false
	}
	var loads []segment
	var dynamic segment
	for ; len(table) > 0; table = table[w.segment:] {
		s := segment{w.readWord(table[w.offset:]), w.readWord(table[w.address:]), w.readWord(table[w.size:])}
		switch le.Uint32(table) {
		case segmentLoad:
			loads = append(loads, s)
		case segmentDyn:
			dynamic = s
		}
	}
	strings, name, ok := w.readDynamic(f, dynamic)
	if !ok || name == 0 {
		return "", ok
	}
	return nameAt(f, loads, strings+name)
}

// readDynamic returns the address of the string table and the soname's offset in it. Each is 0 if
// missing, as no name has that offset.
func (w layout) readDynamic(f io.ReaderAt, dynamic segment) (strings, name uint64, ok bool) {
	if dynamic.size == 0 || dynamic.size > maxDynamic {
		return 0, 0, false
	}
	table := make([]byte, dynamic.size)
	if !readFull(f, table, dynamic.offset) {
		return 0, 0, false
	}
	for ; len(table) >= 2*w.word; table = table[2*w.word:] {
		value := w.readWord(table[w.word:])
		switch w.readWord(table) {
		case 0:
			return strings, name, true
		case tagStrings:
			strings = value
		case tagSoname:
			name = value
		}
	}
	return strings, name, true
}

// nameAt returns the C string at a virtual address; false if longer than maxName or no plain name.
func nameAt(f io.ReaderAt, loads []segment, address uint64) (string, bool) {
	for _, s := range loads {
		if address < s.address || address-s.address >= s.size {
			continue
		}
		b := make([]byte, min(maxName+1, s.size-(address-s.address)))
		n, _ := readAt(f, b, s.offset+(address-s.address))
		name, _, whole := bytes.Cut(b[:n], []byte{0})
		return string(name), whole && isPlainName(name)
	}
	return "", false
}

// isPlainName reports whether a name is ASCII without blanks and slashes, as linkers' files need.
func isPlainName(name []byte) bool {
	return len(name) > 0 && !bytes.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '/' })
}

func readFull(f io.ReaderAt, b []byte, at uint64) bool {
	n, _ := readAt(f, b, at)
	return n == len(b)
}

// readAt reads f at the offset at; io.EOF if that is larger than any file.
func readAt(f io.ReaderAt, b []byte, at uint64) (int, error) {
	if at > 1<<62 {
		return 0, io.EOF
	}
	return f.ReadAt(b, int64(at))
}
