package flash

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A block map is made of disks and file systems alone, and a refusal writes nothing.
func TestMapImage(t *testing.T) {
	dir := t.TempDir()
	table := make([]byte, 1<<20)
	table[446+4], table[446+8], table[446+12], table[510], table[511] = 0x83, 1, 8, 0x55, 0xaa
	volume := filepath.Join(dir, "volume.ext4")
	if err := os.WriteFile(volume, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("/sbin/mkfs.ext4", "-q", "-F", volume).CombinedOutput(); err != nil {
		t.Skipf("mkfs.ext4 (Debian package e2fsprogs): %v\n%s", err, out)
	}
	ext4, err := os.ReadFile(volume)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		data []byte
		want string
	}{
		"README.md": {[]byte("# Slipway\n"), `is no disk image: it is a text that begins with "# Slipway"`},
		"zeros.img": {make([]byte, 1<<20), "bytes of zeros at its beginning"},
		"a.deb":     {[]byte("!<arch>\ndebian-binary   "), "it is a Debian package"},
		"bytes.img": {bytes.Repeat([]byte{1, 2, 3, 0}, 1<<10), "it has no partition table\nnext: file "},
		"empty.img": {nil, "the file is empty"},
		"disk.img":  {table, ""},
		"root.ext4": {ext4, ""},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, tt.data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := MapImage(t.Context(), file)
		_, none := os.Stat(file + ".bmap")
		if (err == nil) != (tt.want == "") || (none == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "--raw") || strings.Contains(err.Error(), " IMAGE")) {
			t.Errorf("MapImage(%s) = %v, and its map: %v; want %q", name, err, none, tt.want)
		}
	}
}

// The map of an artifact has its digest in artifact.json, which may be signed.
func TestMapImageOfArtifact(t *testing.T) {
	a := artifact(t)
	file := filepath.Join(a.Dir(), "disk.bmap")
	before := read(t, file)
	if err := os.Symlink("disk.img", filepath.Join(a.Dir(), "disk")); err != nil {
		t.Fatal(err)
	}
	_, err := MapImage(t.Context(), filepath.Join(a.Dir(), "disk"))
	if want := "belongs to the artifact of board toy"; err == nil || !strings.Contains(err.Error(), want) || !bytes.Equal(before, read(t, file)) {
		t.Errorf("MapImage = %v, and its map changed: %t; want %q", err, !bytes.Equal(before, read(t, file)), want)
	}
}
