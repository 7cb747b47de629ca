package ldcache

import (
	"slices"
	"strings"

	"slipway/runtime-hook/internal/elf"
)

// linker says how the dynamic linkers of one machine are known.
type linker struct {
	glibc []string // where programs name it; Yocto's x86-64 has it in /lib
	flags uint32   // in an ld.so.cache
	musl  string   // its word for the machine
	dir   string   // Debian's folder for the machine's libraries
}

var linkers = map[elf.Machine]linker{
	elf.AArch64: {[]string{"/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-aarch64.so.1"}, 0x0a03, "aarch64", "aarch64-linux-gnu"},
	elf.ARM:     {[]string{"/lib/ld-linux.so.3"}, 0x0b03, "arm", "arm-linux-gnueabi"},
	elf.ARMHF:   {[]string{"/lib/ld-linux-armhf.so.3"}, 0x0903, "armhf", "arm-linux-gnueabihf"},
	elf.I386:    {[]string{"/lib/ld-linux.so.2"}, 0x0003, "i386", "i386-linux-gnu"},
	elf.X8664:   {[]string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-x86-64.so.2"}, 0x0303, "x86_64", "x86_64-linux-gnu"},
}

// signedChars are the flags of the machines whose C has them: names with other
// than ASCII characters sort by that.
var signedChars = map[uint32]bool{0x0003: true, 0x0303: true}

// muslDefault is the search path of musl without a path file.
const muslDefault = "/lib:/usr/local/lib:/usr/lib"

// muslPath adds folders to the content of a path file. ok is false if there is nothing
// to add. The image's own come first, as a library of the board is rarely one for musl.
func muslPath(old string, folders []string) (path string, ok bool) {
	if old == "" {
		old = muslDefault
	}
	have := strings.FieldsFunc(old, func(r rune) bool { return r == ':' || r == '\n' })
	path = strings.TrimRight(old, "\n:") + "\n"
	for _, f := range folders {
		if !slices.Contains(have, f) && !strings.Contains(f, ":") {
			path, ok = path+f+"\n", true
		}
	}
	return path, ok
}
