package elf

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"testing"
)

// real are some libraries of the machine that runs the test.
func real(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("/usr/lib/*-linux-gnu*/lib*.so*")
	if err != nil || len(files) == 0 {
		t.Skip("needs libraries in /usr/lib/<triplet> (Debian package libc6)")
	}
	return files[:min(len(files), 100)]
}

// The machine's libraries have the names that Go's own package reads.
func TestReadReal(t *testing.T) {
	read := 0
	for _, file := range real(t) {
		f, err := elf.Open(file)
		if err != nil {
			continue // a linker script
		}
		names, err := f.DynString(elf.DT_SONAME)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		if len(names) > 0 {
			want = names[0]
		}
		library, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer library.Close()
		if lib, ok := Read(library); !ok || lib.Soname != want || lib.Machine == "" {
			t.Errorf("Read(%s) = %+v, %v; want %q", file, lib, ok, want)
		}
		read++
	}
	if read == 0 {
		t.Skip("needs libraries in /usr/lib/<triplet> (Debian package libc6)")
	}
}

func TestMachine(t *testing.T) {
	tests := []struct {
		number uint16
		class  byte
		flags  uint32
		want   Machine
	}{
		{183, 2, 0, AArch64},
		{62, 2, 0, X8664},
		{62, 1, 0, ""}, // x32
		{3, 1, 0, I386},
		{40, 1, 0x05000400, ARMHF},
		{40, 1, 0x05000200, ARM},
		{243, 2, 0, ""}, // RISC-V
	}
	for _, tt := range tests {
		if got, ok := machineOf(tt.number, tt.class, tt.flags); got != tt.want || ok != (tt.want != "") {
			t.Errorf("machine(%d, %d, %x) = %q, %v; want %q", tt.number, tt.class, tt.flags, got, ok, tt.want)
		}
	}
}

func TestReadOther(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty": nil, "text": []byte("/* GNU ld script */ INPUT(libc.so.6)"), "half a header": []byte("\x7fELF\x02\x01"),
		"a program": program[:4096], "a header alone": program[:64],
	} {
		if lib, ok := Read(bytes.NewReader(data)); ok {
			t.Errorf("%s: Read = %+v; want that it is no library", name, lib)
		}
	}
}

// Whatever the file says, a name that comes out can stand in a line of a file.
func FuzzRead(f *testing.F) {
	for _, file := range real(f)[:1] {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:min(len(data), 16<<10)])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if lib, ok := Read(bytes.NewReader(data)); ok && lib.Soname != "" && !isPlainName([]byte(lib.Soname)) {
			t.Errorf("soname %q", lib.Soname)
		}
	})
}

func TestIsPlainName(t *testing.T) {
	for name, want := range map[string]bool{"libc.so.6": true, "": false, "a/b": false, "a b": false, "a\x7f": false, "a\xff": false, "ä": false} {
		if got := isPlainName([]byte(name)); got != want {
			t.Errorf("isPlainName(%q) = %v; want %v", name, got, want)
		}
	}
}
