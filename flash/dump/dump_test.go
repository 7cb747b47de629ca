package dump

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/flash/flashtest"
	"slipway/flash/probe"
	"slipway/flash/source"
	"slipway/images/bmap"
)

const mib = 1 << 20

// broken has a block of 4096 bytes that cannot be read.
type broken struct {
	io.ReaderAt
	at int64
}

var errSector = errors.New("input/output error")

func (b broken) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) <= b.at || off >= b.at+4096 {
		return b.ReaderAt.ReadAt(p, off)
	}
	n, _ := b.ReaderAt.ReadAt(p[:max(0, b.at-off)], off)
	return n, errSector
}

// diskOf opens a file as a disk.
func diskOf(t testing.TB, path string) Disk {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return Disk{Pieces: []Piece{{ReaderAt: f, End: info.Size(), File: f}}, SectorBytes: 512}
}

// written dumps a disk to a new file.
func written(t testing.TB, disk Disk, pack bool) (Image, *os.File) {
	t.Helper()
	to, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { to.Close() })
	made, err := Write(t.Context(), disk, to, io.Discard, pack, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	return made, to
}

// A disk without file systems is copied as it is, in both forms, and its map is that of the image.
func TestWrite(t *testing.T) {
	for _, size := range []int64{512, 4096, 8 * mib, 8*mib + 512, 33*mib + 4096} {
		path := filepath.Join(t.TempDir(), "disk")
		data := make([]byte, size)
		for range 20 {
			at := rand.Int64N(size)
			copy(data[at:], flashtest.Random(int(min(size-at, rand.Int64N(100<<10)))))
		}
		flashtest.Put(t, path, string(data))
		made, packed := written(t, diskOf(t, path), true)
		out, err := exec.Command("zstd", "-q", "-d", "-c", packed.Name()).Output()
		if err != nil || !bytes.Equal(out, data) {
			t.Fatalf("%d bytes: zstd -d = %d bytes, %v", size, len(out), err)
		}
		if image, err := source.Open(packed, "image"); err != nil || image.SizeBytes() != size {
			t.Errorf("%d bytes: source.Open = %v, %v", size, image, err)
		}
		plain, to := written(t, diskOf(t, path), false)
		if err := to.Truncate(size); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(to.Name())
		want, wrong := bmap.Create(t.Context(), to)
		if err := errors.Join(err, wrong); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes: the plain image has %d, %v", size, len(got), err)
		}
		for _, m := range []bmap.Map{made.Map, plain.Map} {
			if !slices.Equal(m.Ranges, want.Ranges) || m.ImageSize != size {
				t.Errorf("%d bytes: the map is %+v; want %+v", size, m, want)
			}
		}
	}
}

// The error of a disk that breaks off says where.
func TestWriteUnreadable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	flashtest.Put(t, path, string(flashtest.Random(20*mib)))
	disk := diskOf(t, path)
	disk.Pieces[0].ReaderAt = broken{disk.Pieces[0], 9*mib + 4096}
	_, err := Write(t.Context(), disk, flashtest.Open(t, os.DevNull, 0), io.Discard, true, func(int64) {})
	if !errors.As(err, new(ReadError)) || !strings.Contains(err.Error(), "9441280") {
		t.Errorf("Write = %v; want a ReadError at byte 9441280", err)
	}
}

// A file system that was not unmounted cleanly, or whose lists contradict each other, is read whole.
func TestUnclean(t *testing.T) {
	ext, fat, fat12 := filepath.Join(t.TempDir(), "ext"), filepath.Join(t.TempDir(), "fat"), filepath.Join(t.TempDir(), "fat12")
	for _, path := range []string{ext, fat, fat12} {
		flashtest.Put(t, path, strings.Repeat("\xa5", 40*mib))
	}
	flashtest.MustRun(t, flashtest.E2fs(t, "mke2fs"), "-q", "-F", "-t", "ext4", "-E", "nodiscard", ext)
	flashtest.MustRun(t, "/sbin/mkfs.vfat", "-F", "32", fat)
	flashtest.MustRun(t, "/sbin/mkfs.vfat", "-F", "12", "-s", "64", fat12)
	reserved := make([]byte, 2)
	if _, err := flashtest.Open(t, fat, 0).ReadAt(reserved, 14); err != nil {
		t.Fatal(err)
	}
	table := int64(le.Uint16(reserved)) * 512
	for name, test := range map[string]struct {
		path    string
		debugfs string // a request that changes it
		at      int64  // or the place of a byte
		value   byte
		by      string // "": its free blocks are left out
	}{
		"ext4":                 {path: ext},
		"ext4 mounted":         {path: ext, debugfs: "ssv state 0", by: "not unmounted"},
		"ext4 with a journal":  {path: ext, debugfs: "feature needs_recovery", by: "not unmounted"},
		"ext4 counts wrong":    {path: ext, debugfs: "ssv free_blocks_count 100", by: "number of free blocks"},
		"ext4 is too large":    {path: ext, debugfs: "ssv blocks_count 99999", by: "all blocks"},
		"FAT32":                {path: fat},
		"FAT32 mounted":        {path: fat, at: 0x41, value: 1, by: "not unmounted"},
		"FAT32 marked":         {path: fat, at: table + 7, value: 7, by: "not unmounted"},
		"FAT32 with two lists": {path: fat, at: table + 4000, value: 7, by: "not unmounted"},
		"FAT32 is too large":   {path: fat, at: 34, value: 0xff, by: "sizes do not fit"},
		"FAT12":                {path: fat12, by: "FAT12"},
	} {
		copied := filepath.Join(t.TempDir(), "copy")
		flashtest.MustRun(t, "cp", test.path, copied)
		if test.debugfs != "" {
			flashtest.MustRun(t, flashtest.E2fs(t, "debugfs"), "-w", "-R", test.debugfs, copied)
		}
		if test.at > 0 {
			flashtest.Scribble(t, copied, test.at, []byte{test.value})
		}
		made, _ := written(t, diskOf(t, copied), false)
		want := cmp.Or(test.by, "the blocks that its file system uses")
		if by := made.Parts[0].By; !strings.Contains(by, want) || (test.by == "") != (made.Map.Mapped() < 10*mib) {
			t.Errorf("%s: %q, %d bytes are used", name, by, made.Map.Mapped())
		}
	}
}

// Partitions that overlap, or are smaller than their file system, are read whole: what one calls
// free, another may use.
func TestOverlap(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	flashtest.Put(t, disk, strings.Repeat("\xa5", 40*mib))
	flashtest.MustRun(t, flashtest.E2fs(t, "mke2fs"), "-q", "-F", "-t", "ext4", "-E", "nodiscard,offset=1048576", disk, "30M")
	for name, entries := range map[string]string{
		"alone":   "\x00\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\xf0\x00\x00",
		"overlap": "\x00\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\xf0\x00\x00\x00\x00\x00\x00\x83\x00\x00\x00\x00\xa0\x00\x00\x00\x10\x00\x00",
		"cut":     "\x00\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\x50\x00\x00",
		"below":   "\x00\x00\x00\x00\x83\x00\x00\x00\x00\x04\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\xf0\x00\x00",
	} {
		flashtest.Scribble(t, disk, 446, append(bytes.Repeat([]byte{0}, 64), 0x55, 0xaa))
		flashtest.Scribble(t, disk, 446, []byte(entries))
		made, _ := written(t, diskOf(t, disk), false)
		if made.Map.Mapped() < 30*mib != (name == "alone") {
			t.Errorf("%s: %+v, %d bytes are used", name, made.Parts, made.Map.Mapped())
		}
	}
}

// Any FAT gives ascending spans inside of its partition, or an error.
func FuzzFAT(f *testing.F) {
	for _, args := range [][]string{{"-F", "16", "-s", "2"}, {"-F", "32", "-s", "1"}, {"-F", "12", "-s", "32"}} {
		path := filepath.Join(f.TempDir(), "fat")
		if err := os.WriteFile(path, make([]byte, 34*mib), 0o600); err != nil {
			f.Fatal(err)
		}
		if out, err := exec.Command("/sbin/mkfs.vfat", append(args, path)...).CombinedOutput(); err != nil {
			f.Skipf("mkfs.vfat (Debian package dosfstools): %v %s", err, out)
		}
		data, _ := os.ReadFile(path)
		f.Add(data[:40*512], int64(34*mib))
	}
	f.Fuzz(func(t *testing.T, data []byte, size int64) {
		size = max(int64(len(data)), size&(1<<27-1))
		disk := Disk{Pieces: []Piece{{ReaderAt: padded(data), End: size}}, SectorBytes: 512}
		holds, _ := probe.Read(disk, size, 512)
		if holds.Type != "vfat" {
			return
		}
		free, err := freeOfFAT(t.Context(), disk, probe.Partition{SizeBytes: size})
		ascend(t, free, size, err)
	})
}

// padded has zeros after its end.
type padded []byte

func (p padded) ReadAt(b []byte, off int64) (int, error) {
	clear(b)
	if off < int64(len(p)) {
		copy(b, p[off:])
	}
	return len(b), nil
}

// ascend fails unless spans ascend between 0 and size, or err is not nil.
func ascend(t *testing.T, free []source.Span, size int64, err error) {
	end := int64(0)
	for _, s := range free {
		if err == nil && (s.Off < end || s.Len <= 0 || s.Off+s.Len > size) {
			t.Fatalf("%+v in %d bytes", free, size)
		}
		end = s.Off + s.Len
	}
}

// Any output of dumpe2fs gives ascending spans inside of the partition, or an error.
func FuzzFree(f *testing.F) {
	const head = "Filesystem volume name:   <none>\nFilesystem features:      extent\nFilesystem state:         clean\nBlock count:              20480\nFree blocks:              12\nBlock size:               4096\n\n\nGroup 0:\n"
	f.Add(head+"  Free blocks: 1460-1465\n  Free inodes: 12-1704\n  Free blocks: 9378, 9380-9384\n  Free blocks: \n", int64(20480*4096))
	f.Add(head+"  Free blocks: 5-4, 3, -1, 99999999999999999999, 7-\n", int64(20480*4096))
	f.Fuzz(func(t *testing.T, out string, size int64) {
		size &= 1<<50 - 1
		free, err := parseFree(out, probe.Partition{SizeBytes: size})
		ascend(t, free, size, err)
	})
}
