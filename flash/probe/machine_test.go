package probe

import (
	"bytes"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"testing"
)

// put lays content at an offset of an image.
func put(size, off int, content string) []byte {
	p := make([]byte, size)
	copy(p[off:], content)
	return p
}

// peHead is a program for EFI.
func peHead(at byte, machine string) string {
	p := make([]byte, 512)
	copy(p, "MZ")
	p[60] = at
	copy(p[at:], "PE\x00\x00"+machine)
	return string(p)
}

func guid(t *testing.T, text string) string {
	t.Helper()
	p, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

func TestFindMachines(t *testing.T) {
	const mib = 1 << 20
	elf := func(class, kind, machine string) string {
		return "\x7fELF" + class + "\x01\x01" + strings.Repeat("\x00", 9) + kind + "\x00" + machine + "\x00"
	}
	bz := "\x55\xaa\xeb\x6aHdrS" + strings.Repeat("\x00", 48) + "\x01"
	tests := []struct {
		name  string
		image []byte
		want  []string
	}{
		{"nothing", make([]byte, 2*mib), nil},
		{"a program", put(2*mib, 8192, elf("\x02", "\x02", "\x3e")), []string{"amd64"}},
		{"a library", put(2*mib, mib+512, elf("\x02", "\x03", "\xb7")), []string{"arm64"}},
		{"a program of 32 bits", put(2*mib, 8192, elf("\x01", "\x02", "\x03")), nil},
		{"an object file", put(2*mib, 8192, elf("\x02", "\x01", "\x3e")), nil},
		{"firmware for another machine", put(2*mib, 8192, elf("\x02", "\x02", "\xf3")), nil},
		{"a program within a sector", put(2*mib, 8200, elf("\x02", "\x02", "\x3e")), nil},
		{"EFI, amd64", put(mib, 1024, peHead(128, "\x64\x86")), []string{"amd64"}},
		{"EFI, arm64", put(mib, 1024, peHead(64, "\x64\xaa")), []string{"arm64"}},
		{"EFI, ia32", put(mib, 1024, peHead(64, "\x4c\x01")), nil},
		{"a kernel of arm64", put(mib, 512+56, "ARMd"), []string{"arm64"}},
		{"a kernel of amd64", put(2*mib, mib-2, bz), []string{"amd64"}},
		{"a kernel of i386", put(2*mib, mib-2, bz[:len(bz)-1]), nil},
		{"a loader's name", put(mib, 2048+64, "BOOTX64 EFI"), []string{"amd64"}},
		{"a loader's name, beside an entry", put(mib, 2048+65, "BOOTX64 EFI"), nil},
		{"a BIOS boot partition", put(mib, 1024, guid(t, "4861682149646f6e744e656564454649")), []string{"amd64"}},
		{"root of arm64", put(mib, 1024+128, guid(t, "45b021b9f01dc341af444c6f280d3fae")), []string{"arm64"}},
		{"a type within an entry", put(mib, 1024+32, guid(t, "4861682149646f6e744e656564454649")), nil},
		{"a type where no table is", put(mib, 128<<10, guid(t, "4861682149646f6e744e656564454649")), nil},
		{"both", slices.Concat(put(mib, 56, "ARMd"), put(mib, 0, "BOOTX64 EFI")), []string{"arm64", "amd64"}},
		{"cut", []byte("MZ"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := FindMachines(bytes.NewReader(tt.image), int64(len(tt.image)), ""); !slices.Equal(got, tt.want) {
				t.Errorf("FindMachines = %q; want %q", got, tt.want)
			}
		})
	}
	both := slices.Concat(put(mib, 56, "ARMd"), put(mib, 0, "BOOTX64 EFI"))
	if got := FindMachines(bytes.NewReader(both), 2*mib, "arm64"); len(got) != 1 {
		t.Errorf("it went on after the wanted one: %q", got)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if got := FindMachines(bytes.NewReader(self), int64(len(self)), ""); len(got) != 1 {
		t.Errorf("this test program is for %q; want one architecture", got)
	}
}

func FuzzFindMachines(f *testing.F) {
	f.Add([]byte("MZ"), 60)
	f.Add([]byte(peHead(255, "\x64\x86")), 512)
	f.Fuzz(func(t *testing.T, p []byte, off int) {
		if off < 0 || off > 1<<16 || len(p) > 1<<16 {
			t.Skip()
		}
		image := append(make([]byte, off), p...)
		for _, m := range FindMachines(bytes.NewReader(image), int64(len(image))+513, "riscv64") {
			if m != "amd64" && m != "arm64" {
				t.Errorf("an architecture %q", m)
			}
		}
	})
}
