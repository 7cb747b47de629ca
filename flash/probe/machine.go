package probe

import (
	"errors"
	"io"
	"slices"
	"strings"
)

// searchedBytes is how much of an image FindMachines searches for boot files.
const searchedBytes = 256 << 20

// guidMachines are types of partitions that only one architecture has: GRUB's BIOS boot
// partition, and root and usr of the discoverable partitions.
var guidMachines = map[string]string{
	"21686148-6449-6e6f-744e-656564454649": "amd64",
	"4f68bce3-e8cd-4db1-96e7-fbcaf984b709": "amd64", "8484680c-9521-48c6-9c11-b0720656f69e": "amd64",
	"b921b045-1df0-41c3-af44-4c6f280d3fae": "arm64", "b0e01050-ee5f-4390-949a-9101b17104e9": "arm64",
}

// FindMachines returns the architectures, by Go's names, of the boot files, programs and partition
// types in an image's first searchedBytes. It reads no file system, but looks at the beginning of
// each sector, where files begin. It stops at want, since an image can hold files for others too.
func FindMachines(r io.ReaderAt, sizeBytes int64, want string) (found []string) {
	const step, more = 1 << 20, 64
	block := make([]byte, step+more)
	for off := int64(0); off < min(sizeBytes, searchedBytes); off += step {
		clear(block)
		if n, err := r.ReadAt(block[:min(step+more, sizeBytes-off)], off); n == 0 && errors.Is(err, io.EOF) {
			break // what cannot be read otherwise says nothing
		}
		for at := 0; at < step && off+int64(at) < sizeBytes; at += 512 {
			m := sectorMachine(block[at:at+512+more], off == 0 && at < 64<<10)
			if m != "" && !slices.Contains(found, m) {
				found = append(found, m)
			}
			if m == want && m != "" {
				return found
			}
		}
	}
	return found
}

// sectorMachine returns the architecture of the file or FAT directory in a sector, with table also
// of a GPT's entries; "" if none is known. The last bytes of p are the next sector's.
func sectorMachine(p []byte, table bool) string {
	switch pe := int(le.Uint32(p[60:])); {
	case string(p[:7]) == "\x7fELF\x02\x01\x01" && (p[16] == 2 || p[16] == 3): // of 64 bits, a program or a library
		return map[uint16]string{62: "amd64", 183: "arm64"}[le.Uint16(p[18:])]
	case string(p[:2]) == "MZ" && pe <= 448 && string(p[pe:pe+4]) == "PE\x00\x00":
		return map[uint16]string{0x8664: "amd64", 0xaa64: "arm64"}[le.Uint16(p[pe+4:])]
	case string(p[56:60]) == "ARMd":
		return "arm64"
	case string(p[510:512]) == "\x55\xaa" && string(p[514:518]) == "HdrS" && p[566]&1 != 0: // xloadflags of Linux: 64 bits
		return "amd64"
	}
	for at := 0; at < 512; at += 32 { // names of FAT, and types of a GPT
		switch name := string(p[at : at+11]); {
		case strings.EqualFold(name, "BOOTX64 EFI"):
			return "amd64"
		case strings.EqualFold(name, "BOOTAA64EFI"):
			return "arm64"
		case table && at%128 == 0 && guidMachines[formatGUID(p[at:])] != "":
			return guidMachines[formatGUID(p[at:])]
		}
	}
	return ""
}
