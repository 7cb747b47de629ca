package probe

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// makeWic returns an image as wic makes it: a GPT with a copy at its end.
func makeWic(t *testing.T, script string) []byte {
	t.Helper()
	p, err := os.ReadFile(makePartitioned(t, script))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// changedGPT changes the first header or its entries, and its checksums with them.
func changedGPT(p []byte, change func(header, entries []byte)) []byte {
	p = slices.Clone(p)
	header, entries := p[512:604], p[1024:1024+128*128]
	change(header, entries)
	le.PutUint32(header[88:], crc32.ChecksumIEEE(entries))
	clear(header[16:20])
	le.PutUint32(header[16:], crc32.ChecksumIEEE(header))
	return p
}

// makeMBR returns a disk with an MBR. Each part is the start and count of a partition.
func makeMBR(size int, parts ...[2]uint32) []byte {
	p := make([]byte, size)
	for i, part := range parts {
		e := p[446+16*i:]
		e[4] = 0x83
		le.PutUint32(e[8:], part[0])
		le.PutUint32(e[12:], part[1])
	}
	p[510], p[511] = 0x55, 0xaa
	return p
}

// makeExtended returns a disk with an MBR, an extended partition and one logical partition.
func makeExtended(logicalSectors uint32) []byte {
	p := makeMBR(4*mib, [2]uint32{2048, 4096})
	p[446+4] = 0x0f
	copy(p[mib:], makeMBR(512, [2]uint32{2048, logicalSectors}))
	return p
}

// moveEntries returns the GPT with its entries after the first MiB.
func moveEntries(gpt []byte) []byte {
	entries := slices.Clone(gpt[1024 : 1024+128*128])
	p := changedGPT(gpt, func(h, _ []byte) { le.PutUint64(h[72:], 14*mib/512) })
	copy(p[14*mib:], entries)
	return p
}

// with4096 returns a disk with a GPT for sectors of 4096 bytes.
func with4096(size int) []byte {
	p := make([]byte, size)
	p[446+4], p[510], p[511] = protective, 0x55, 0xaa
	le.PutUint32(p[446+8:], 1)
	le.PutUint32(p[446+12:], 0xffffffff)
	header, entries := p[4096:4096+92], p[8192:8192+128*128]
	copy(header, "EFI PART\x00\x00\x01\x00\x5c")
	for at, n := range map[int]uint64{24: 1, 32: uint64(size/4096 - 1), 72: 2} {
		le.PutUint64(header[at:], n)
	}
	le.PutUint32(header[80:], 128)
	le.PutUint32(header[84:], 128)
	copy(entries, "a kind of its own")
	le.PutUint64(entries[32:], 16)
	le.PutUint64(entries[40:], 31)
	le.PutUint32(header[88:], crc32.ChecksumIEEE(entries))
	le.PutUint32(header[16:], crc32.ChecksumIEEE(header))
	return p
}

func TestCheckImageTables(t *testing.T) {
	gpt, dos := makeWic(t, gptScript), makeWic(t, dosScript)
	tests := []struct {
		name    string
		image   []byte
		sector  int64
		wantErr string // "": no error
	}{
		{name: "GPT", image: gpt},
		{name: "GPT on a disk with sectors of 512 bytes", image: gpt, sector: 512},
		{name: "GPT on a 4Kn disk", image: gpt, sector: 4096, wantErr: "made for sectors of 512 bytes, and the device has sectors of 4096"},
		{name: "GPT of a smaller disk", image: append(slices.Clone(gpt), make([]byte, mib)...)},
		{name: "GPT for 4096 bytes", image: with4096(mib)},
		{name: "GPT for 4096 bytes on a 4Kn disk", image: with4096(mib), sector: 4096},
		{name: "GPT for 4096 bytes on another disk", image: with4096(mib), sector: 512, wantErr: "made for sectors of 4096 bytes, and the device has sectors of 512"},
		{name: "cut in a partition", image: gpt[:5*mib], wantErr: "its partition 2 ends at byte 8388608, and the image has 5242880 bytes"},
		{name: "cut before a partition", image: gpt[:2*mib], wantErr: "its partition 1 ends at byte 3145728, and the image has 2097152 bytes"},
		{name: "cut behind the last partition", image: gpt[:8*mib], wantErr: "the second copy of its partition table ends at byte 33554432, and the image has 8388608 bytes"},
		{name: "cut by a sector", image: gpt[:len(gpt)-512], wantErr: "the second copy of its partition table"},
		{name: "cut in the table", image: gpt[:1500], wantErr: "it is cut off"},
		{name: "GPT without a copy", image: changedGPT(gpt, func(h, _ []byte) { le.PutUint64(h[32:], 1) })[:8*mib]},
		{name: "GPT with a copy beyond all disks", image: changedGPT(gpt, func(h, _ []byte) { le.PutUint64(h[32:], 1<<64-1) }), wantErr: "the second copy of its partition table ends at byte 1125899906842624 or more"},
		{name: "a partition beyond all disks", image: changedGPT(gpt, func(_, e []byte) { le.PutUint64(e[40:], 1<<64-1) }), wantErr: "its partition 1 ends at byte 1125899906842624 or more"},
		{name: "a partition that begins beyond all disks", image: changedGPT(gpt, func(_, e []byte) { le.PutUint64(e[32:], 1<<60); le.PutUint64(e[40:], 1<<60) }), wantErr: "its partition 1 ends at byte"},
		{name: "no partitions", image: changedGPT(gpt, func(_, e []byte) { clear(e) }), wantErr: "has no partitions"},
		{name: "damaged GPT", image: func() []byte { p := slices.Clone(gpt); p[520] ^= 1; return p }(), wantErr: "the GPT at its beginning is damaged"},
		{name: "GPT without an MBR", image: func() []byte { p := slices.Clone(gpt); clear(p[:512]); return p }(), wantErr: "no protective MBR"},
		{name: "old table", image: dos},
		{name: "old table on a disk with sectors of 512 bytes", image: dos, sector: 512},
		{name: "old table on a 4Kn disk", image: dos, sector: 4096, wantErr: "made for sectors of 512 bytes"},
		{name: "small old table in a large image on a 4Kn disk", image: makeMBR(64*mib, [2]uint32{2048, 4096}), sector: 4096, wantErr: "made for sectors of 512 bytes"},
		{name: "old table for 4096 bytes on a 4Kn disk", image: makeMBR(16*mib, [2]uint32{256, 3840}), sector: 4096},
		{name: "old table, cut", image: dos[:6*mib], wantErr: "its partition 2 ends at byte 25165824, and the image has 6291456 bytes"},
		{name: "old table, cut before a partition", image: makeMBR(3*mib, [2]uint32{2048, 2048}, [2]uint32{8192, 2048}), wantErr: "its partition 2 ends at byte 5242880"},
		{name: "old table beyond all", image: makeMBR(mib, [2]uint32{1<<32 - 1, 1<<32 - 1}), wantErr: "its partition 1 ends at byte"},
		{name: "a boot sector without a table", image: makeMBR(mib), wantErr: "no partition table"},
		{name: "an old table, and the GPT of an earlier use", image: func() []byte { p := slices.Clone(gpt); copy(p[440:512], dos[440:512]); return p[:24*mib] }()},
		{name: "a cut old table, and the GPT of an earlier use", image: func() []byte { p := slices.Clone(gpt); copy(p[440:512], dos[440:512]); return p[:22*mib] }(), wantErr: "its partition 2 ends at byte 25165824"},
		{name: "a copy of the GPT from the end", image: changedGPT(gpt, func(h, _ []byte) { le.PutUint64(h[24:], uint64(len(gpt)/512-1)) }), wantErr: "the GPT at its beginning is damaged"},
		{name: "hybrid", image: func() []byte { p := slices.Clone(gpt); copy(p[446+16:], dos[446:462]); return p }()},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := CheckImage(bytes.NewReader(test.image), int64(len(test.image)), test.sector)
			checkError(t, err, test.wantErr)
			// Of a packed image only the beginning is known.
			head := test.image[:min(len(test.image), mib)]
			checkError(t, CheckImage(bytes.NewReader(head), int64(len(test.image)), test.sector), test.wantErr)
		})
	}
}

func TestCheckImageLogicalPartitions(t *testing.T) {
	for sectors, want := range map[uint32]string{2048: "", 4096: "", 4097: "its partition 5 ends at byte 4194816, and the image has 4194304 bytes"} {
		checkError(t, CheckImage(bytes.NewReader(makeExtended(sectors)), 4*mib, 512), want)
	}
}

// The entries of a GPT can lie anywhere before the first partition, as on boards that
// load their boot loader from there.
func TestFindGPTEntries(t *testing.T) {
	const all = 128 * 128
	gpt, stale := makeWic(t, gptScript), makeWic(t, gptScript)
	copy(stale[440:512], makeWic(t, dosScript)[440:512])
	for _, test := range []struct {
		image []byte
		want  [3]int64
	}{
		{gpt, [3]int64{1024, all, int64(len(gpt)) - 512 - all}},
		{moveEntries(gpt), [3]int64{14 * mib, all, int64(len(gpt)) - 512 - all}},
		{with4096(mib), [3]int64{8192, all, mib - 4096 - all}},
		{changedGPT(gpt, func(h, _ []byte) { le.PutUint64(h[32:], 1) }), [3]int64{1024, all, 0}},
		{changedGPT(gpt, func(h, _ []byte) { le.PutUint64(h[72:], 1<<63) }), [3]int64{}},
		{stale, [3]int64{}},
		{gpt[:512], [3]int64{}},
		{nil, [3]int64{}},
	} {
		var got [3]int64
		got[0], got[1], got[2] = FindGPTEntries(bytes.NewReader(test.image))
		if got != test.want {
			t.Errorf("Entries = %v; want %v", got, test.want)
		}
	}
	checkError(t, CheckImage(bytes.NewReader(moveEntries(gpt)), int64(len(gpt)), 512), "")
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("CheckImage = %v; want %q", err, want)
	case err != nil && !strings.Contains(err.Error(), "\nnext: "):
		t.Errorf("CheckImage = %v; want a next step", err)
	case err != nil && strings.Contains(err.Error(), "--raw"):
		t.Errorf("CheckImage = %v; want no flag of flash", err)
	}
}

func TestCheckImageOtherFormats(t *testing.T) {
	named := func(at int, magic string) []byte {
		p := bytes.Repeat([]byte{0x81, 0, 1}, mib/3)
		copy(p[at:], magic)
		return p
	}
	tests := []struct {
		name, wantErr string
		image         []byte
	}{
		{"404", "a text that begins with \"404: Not Found\"", []byte("404: Not Found")},
		{"an error as JSON", "a text that begins with \"{\"", []byte("{\n  \"error\": \"gone\"\n}\n")},
		{"a text with a sequence for terminals", "a text that begins with \"[2Jx\"", []byte("\x1b[2Jx")},
		{"nothing", "it is empty", nil},
		{"zeros", "1048576 bytes of zeros", make([]byte, 4*mib)},
		{"one zero", "1 bytes of zeros", make([]byte, 1)},
		{"random", "no partition table", named(0, "\xff\x00\x10")},
		{"deb", "a Debian package", named(0, "!<arch>\ndebian-binary   ")},
		{"ar", "an archive of ar", named(0, "!<arch>\nx.o")},
		{"cpio", "a cpio archive", named(0, "070701")},
		{"swu", "a bundle of SWUpdate\nnext: update --help", append([]byte("070702"+strings.Repeat("0", 104)+"sw-description"), 0)},
		{"elf", "a program (ELF)", named(0, "\x7fELF")},
		{"Android's boot image", "an Android boot image", named(0, "ANDROID!")},
		{"BFB", "next: bfb list IMAGE", named(0, "\x42\x66\x02\x13")},
		{"kernel", "a Linux kernel", named(56, "ARMd")},
		{"kernel of a PC, which ends its first sector as a table does", "a Linux kernel", func() []byte { p := make([]byte, mib); copy(p[0x202:], "HdrS"); p[510], p[511] = 0x55, 0xaa; return p }()},
		{"fixed VHD", "a fixed VHD disk", append(makeMBR(mib, [2]uint32{1, 2}), append([]byte("conectix"), make([]byte, 504)...)...)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkError(t, CheckImage(bytes.NewReader(test.image), int64(len(test.image)), 512), test.wantErr)
		})
	}
}

// The images are made by real programs.
func TestCheckImageFileSystems(t *testing.T) {
	checkFile := func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return CheckImage(f, info.Size(), 512)
	}
	t.Run("ext4", func(t *testing.T) {
		path := makeDisk(t, 8*mib)
		mustRun(t, "", "mke2fs", "e2fsprogs", "-q", "-t", "ext4", "-L", "rootfs", path)
		checkError(t, checkFile(path), "a single ext4 volume without a partition table (rootfs)")
	})
	t.Run("vfat", func(t *testing.T) {
		path := makeDisk(t, 8*mib)
		mustRun(t, "", "mkfs.vfat", "dosfstools", path)
		checkError(t, checkFile(path), "a single vfat volume without a partition table")
	})
	t.Run("squashfs, and a bundle of RAUC", func(t *testing.T) {
		dir, path := t.TempDir(), filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(filepath.Join(dir, "manifest.raucm"), []byte("[update]\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		mustRun(t, "", "mksquashfs", "squashfs-tools", dir, path)
		checkError(t, checkFile(path), "a single squashfs volume without a partition table")
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(append(append([]byte{0x30}, make([]byte, 99)...), 0, 0, 0, 0, 0, 0, 0, 100)); err != nil {
			t.Fatal(err)
		}
		checkError(t, checkFile(path), "a bundle of RAUC\nnext: update --help")
	})
	t.Run("ISO", func(t *testing.T) {
		dir, path := t.TempDir(), filepath.Join(t.TempDir(), "x.iso")
		if err := os.WriteFile(filepath.Join(dir, "a"), []byte("a"), 0o644); err != nil {
			t.Fatal(err)
		}
		mustRun(t, "", "xorriso", "xorriso", "-as", "mkisofs", "-o", path, dir)
		checkError(t, checkFile(path), "an ISO image that only optical drives boot")
		for _, hybrid := range [][]string{{"--protective-msdos-label"}, {"-partition_offset", "16"}} {
			mustRun(t, "", "xorriso", "xorriso", append(append([]string{"-as", "mkisofs"}, hybrid...), "-o", path, dir)...)
			f, _ := os.ReadFile(path)
			t.Logf("%v: %x", hybrid, f[446:512])
			checkError(t, checkFile(path), "")
		}
	})
}

func FuzzCheckImage(f *testing.F) {
	f.Add(with4096(128<<10), int64(128<<10), int64(4096))
	f.Add(makeMBR(mib, [2]uint32{8, 16})[:4096], int64(mib), int64(0))
	f.Add([]byte("404: Not Found"), int64(14), int64(512))
	f.Fuzz(func(t *testing.T, p []byte, size, sector int64) {
		if size < 0 || sector != 0 && sector != 4096 {
			sector = 512
		}
		size = max(0, size)
		err := CheckImage(bytes.NewReader(p), size, sector)
		if err == nil && size < 512 {
			t.Errorf("an image of %d bytes is taken", size)
		}
		if err != nil && (strings.ContainsFunc(strings.ReplaceAll(err.Error(), "\n", ""), unicode.IsControl) || len(err.Error()) > 4096) {
			t.Errorf("%q would go to a terminal", err)
		}
		if got := fmt.Sprint(CheckImage(bytes.NewReader(p), size, sector)); got != fmt.Sprint(err) {
			t.Errorf("%v, then %s", err, got)
		}
	})
}
