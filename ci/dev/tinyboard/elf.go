package tinyboard

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
)

// sharedObject is a library of that soname which holds nothing and needs others: as
// much of ELF as ld.so and ldconfig look at.
func sharedObject(soname string, needed ...string) []byte {
	const headers = 64 + 3*56
	names := []byte{0}
	var dynamic []elf.Dyn64
	name := func(tag elf.DynTag, s string) {
		dynamic = append(dynamic, elf.Dyn64{Tag: int64(tag), Val: uint64(len(names))})
		names = append(append(names, s...), 0)
	}
	name(elf.DT_SONAME, soname)
	for _, n := range needed {
		name(elf.DT_NEEDED, n)
	}
	// In this order: headers, an empty table of symbols, its hash, the dynamic section,
	// the names.
	symbols, hash, section := uint64(headers), uint64(headers+24), uint64(headers+24+16)
	size := 16 * uint64(len(dynamic)+6)
	end := section + size + uint64(len(names))
	dynamic = append(dynamic, []elf.Dyn64{
		{Tag: int64(elf.DT_HASH), Val: hash},
		{Tag: int64(elf.DT_STRTAB), Val: section + size},
		{Tag: int64(elf.DT_SYMTAB), Val: symbols},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))},
		{Tag: int64(elf.DT_SYMENT), Val: 24},
		{Tag: int64(elf.DT_NULL)},
	}...)
	read, write := uint32(elf.PF_R), uint32(elf.PF_W)
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			_ = binary.Write(&b, binary.LittleEndian, v) // into memory, of fixed sizes
		}
	}
	put(
		header(),
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: read | write, Filesz: end, Memsz: end, Align: 1 << 16},
		elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Flags: read | write, Off: section, Vaddr: section, Filesz: size, Memsz: size, Align: 8},
		elf.Prog64{Type: uint32(elf.PT_GNU_STACK), Flags: read | write, Align: 16},
		elf.Sym64{}, [4]uint32{1, 1}, dynamic, names,
	)
	return b.Bytes()
}

// header is that of a library with three program headers.
func header() elf.Header64 {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	h := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 3, Shentsize: 64,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	return h
}
