package ldcache

import "slipway/runtime-hook/internal/elf"

// linker describes the dynamic linkers of one machine.
type linker struct {
	glibc []string // paths of glibc's linker; Yocto's x86-64 has it in /lib
	flags uint32   // flags of entries in an ld.so.cache
	dir   string   // Debian's folder for the machine's libraries
}

var linkers = map[elf.Machine]linker{
	elf.AArch64: {[]string{"/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-aarch64.so.1"}, 0x0a03, "aarch64-linux-gnu"},
	elf.ARM:     {[]string{"/lib/ld-linux.so.3"}, 0x0b03, "arm-linux-gnueabi"},
	elf.ARMHF:   {[]string{"/lib/ld-linux-armhf.so.3"}, 0x0903, "arm-linux-gnueabihf"},
	elf.I386:    {[]string{"/lib/ld-linux.so.2"}, 0x0003, "i386-linux-gnu"},
	elf.X8664:   {[]string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-x86-64.so.2"}, 0x0303, "x86_64-linux-gnu"},
}

// signedChars are flags of machines with a signed char, where names beyond ASCII sort differently.
var signedChars = map[uint32]bool{0x0003: true, 0x0303: true}
