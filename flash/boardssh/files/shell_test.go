package files

import (
	"testing"
)

func TestParseFree(t *testing.T) {
	tests := []struct {
		name, in string
		want     uint64
		known    bool
	}{
		{"coreutils", "Filesystem     1024-blocks     Used Available Capacity Mounted on\n/dev/root          1000000   400000    600000      40% /\n", 600000 << 10, true},
		{"no size", "Filesystem 1024-blocks Used Available Capacity Mounted on\noverlay 10 10 0 100% /var/lib\n", 0, true},
		{"spaces", "Filesystem 1024-blocks Used Available Capacity Mounted on\n//host/a 1 2 b 100 40 60 40% /mnt/a 7 8 9 1% b\n", 60 << 10, true},
		{"a pseudo file system", "Filesystem 1024-blocks Used Available Capacity Mounted on\nproc 0 0 0 - /proc\n", 0, true},
		{"too large", "x 1 1 99999999999999999999 1% /\n", 0, false},
		{"nothing", "", 0, false},
		{"other words", "df: not found\n", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, known := parseFree([]byte(tt.in)); got != tt.want || known != tt.known {
				t.Errorf("parseFree(%q) = %d, %v; want %d, %v", tt.in, got, known, tt.want, tt.known)
			}
		})
	}
}

func FuzzParseFree(f *testing.F) {
	f.Add("Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/root 1000000 400000 600000 40% /\n")
	f.Add("x 1 1 999999999999999 1% /")
	f.Fuzz(func(t *testing.T, out string) {
		if free, known := parseFree([]byte(out)); !known && free != 0 || free%1024 != 0 {
			t.Errorf("parseFree(%q) = %d, %v", out, free, known)
		}
	})
}
