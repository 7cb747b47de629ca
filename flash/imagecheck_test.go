package flash

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/flash/probe"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/progress"
)

// packers make packed files of an image, of which nobody knows what it is before it is
// unpacked.
var packers = map[string]func(t *testing.T, p []byte) []byte{
	".img":     func(_ *testing.T, p []byte) []byte { return p },
	".img.gz":  gzipped,
	".img.zst": func(t *testing.T, p []byte) []byte { return piped(t, p, "zstd", "-q", "-c") },
	".img.xz":  func(t *testing.T, p []byte) []byte { return piped(t, p, "xz", "-c") },
	".img.bz2": func(t *testing.T, p []byte) []byte { return piped(t, p, "bzip2", "-c") },
}

func piped(t *testing.T, p []byte, argv ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Skipf("%s is missing (Debian package of that name)", argv[0])
	}
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(p)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestNoDiskImage tries what people give for the image of a disk, in each form. Nothing
// is written, and --raw writes what was meant.
func TestNoDiskImage(t *testing.T) {
	a := little(t)
	whole := image(t, a)
	copy(whole[tableAt:], tableOf(8*littleImage)) // for sectors of 512 bytes
	ext := filepath.Join(t.TempDir(), "rootfs.ext4")
	if err := os.WriteFile(ext, make([]byte, littleImage), 0o600); err != nil {
		t.Fatal(err)
	}
	flashtest.MustRun(t, flashtest.E2fs(t, "mke2fs"), "-q", "-F", "-t", "ext4", ext)
	tests := []struct {
		name, wantErr string
		image         []byte
	}{
		{"404", "a text that begins with \"404: Not Found\"", []byte("404: Not Found")},
		{"a root file system", "a single ext4 volume without a partition table", read(t, ext)},
		{"a cut image", "the image has 1048576 bytes: it is cut off", whole[:mib]},
		{"a program", "a program (ELF)", read(t, "/proc/self/exe")[:mib]},
		{"zeros", "bytes of zeros", make([]byte, littleImage)},
	}
	device, file := flashtest.Loop(t, littleDevice)
	for _, test := range tests {
		for ending, pack := range packers {
			t.Run(test.name+ending, func(t *testing.T) {
				s := newShelf(t, a)
				s.put(t, "x"+ending, pack(t, test.image))
				before := read(t, file)
				o := Options{Yes: []string{device}, Image: s.path("x" + ending)}
				for _, o.DryRun = range []bool{true, false} {
					_, err := Write(t.Context(), spec, a, device, o)
					cause, next, _ := strings.Cut(fmt.Sprint(err), "\nnext: ")
					if !strings.Contains(cause, test.wantErr) || !strings.Contains(cause, "; --raw writes it") || strings.Contains(next, "--raw") || !strings.Contains(next, s.path("x"+ending)) {
						t.Errorf("Write = %v; want an error with %q and --raw, and a next step that looks at the image", err, test.wantErr)
					}
				}
				same(t, "device", read(t, file), before)
				o.Raw = true
				receipt, err := Write(t.Context(), spec, a, device, o)
				if err != nil || !receipt.Raw {
					t.Fatalf("Write with Raw = %+v, %v", receipt, err)
				}
				same(t, "device", read(t, file)[:len(test.image)], test.image)
			})
		}
	}
}

// TestForeignFiles are packed in formats that nobody unpacks here, or disks of virtual
// machines: they are refused also with Raw.
func TestForeignFiles(t *testing.T) {
	a := little(t)
	device, file := flashtest.Loop(t, littleDevice)
	before := read(t, file)
	for magic, want := range map[string]string{
		"\x04\x22\x4d\x18": "packed by lz4",
		"QFI\xfb":          "a qcow2 disk",
		"KDMV":             "a VMware disk",
		"conectix":         "a VHD disk",
		"vhdxfile":         "a Hyper-V disk",
		strings.Repeat("<", 64) + "\x7f\x10\xda\xbe": "a VirtualBox disk",
		"7z\xbc\xaf\x27\x1c":                         "a 7z archive",
		strings.Repeat("\x00", 257) + "ustar":        "a tar archive",
	} {
		for ending, pack := range packers {
			s := newShelf(t, a)
			s.put(t, "x"+ending, pack(t, append([]byte(magic), make([]byte, 1000)...)))
			for _, raw := range []bool{true, false} {
				_, err := Write(t.Context(), spec, a, device, Options{Yes: []string{device}, Image: s.path("x" + ending), Raw: raw})
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s of %q: Write = %v; want an error with %q", ending, magic, err, want)
				}
			}
		}
	}
	same(t, "device", read(t, file), before)
}

// An image for sectors of 512 bytes is none for a disk with sectors of 4096.
func TestSectorsOfAnotherDisk(t *testing.T) {
	a := artifact(t)
	damaged := image(t, a)
	copy(damaged[tableAt:], tableOf(4*mib))
	path := filepath.Join(t.TempDir(), "disk.wic")
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	device, file := flashtest.Loop(t, deviceSize, "--sector-size=4096")
	before := read(t, file)
	_, err := Write(t.Context(), spec, a, device, Options{Yes: []string{device}, Image: path})
	if want := "made for sectors of 512 bytes, and the device has sectors of 4096"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Write = %v; want an error with %q", err, want)
	}
	same(t, "device", read(t, file), before)
	small, _ := flashtest.Loop(t, deviceSize)
	if _, err := Write(t.Context(), spec, a, small, Options{Yes: []string{small}, Image: path}); err != nil {
		t.Errorf("on a disk with sectors of 512 bytes: %v", err)
	}
	_, err = WriteAll(t.Context(), spec, a, []string{small, device}, Options{Yes: []string{small, device}, Image: path})
	if err == nil || !strings.Contains(err.Error(), device+": its partition table") {
		t.Errorf("WriteAll = %v; want it to name %s", err, device)
	}
}

// A block map can leave out the partition table: of an image that was copied while its
// blocks were not on the disk yet, or by a file system that reports all of it as a hole.
func TestMapWithoutTable(t *testing.T) {
	a := little(t)
	whole := image(t, a)
	device, file := flashtest.Loop(t, littleDevice)
	before := read(t, file)
	for ending, pack := range packers {
		s := newShelf(t, a)
		s.put(t, "x"+ending, pack(t, whole))
		m := mapFrom(t, s.path("disk.bmap"))
		o := Options{Yes: []string{device}, Image: s.path("x" + ending), BlockMap: s.path("x.bmap")}
		for _, ranges := range [][]bmap.Range{nil, {{First: 1, Last: 1, Sum: sumOf(whole[m.BlockSize : 2*m.BlockSize])}}} {
			m.Ranges = ranges
			var b bytes.Buffer
			if _, err := m.WriteTo(&b); err != nil {
				t.Fatal(err)
			}
			s.put(t, "x.bmap", b.Bytes())
			_, err := Write(t.Context(), spec, a, device, o)
			if err == nil || !errors.Is(err, ErrImage) || !strings.Contains(err.Error(), "the block map leaves out the partition table") {
				t.Errorf("%s, ranges %v: Write = %v; want the map refused", ending, ranges, err)
			}
			if _, next, _ := strings.Cut(fmt.Sprint(err), "\nnext: "); !strings.HasPrefix(next, "ls -ls "+s.path("x"+ending)) {
				t.Errorf("%s: next: %s; want it to look at the image", ending, next)
			}
		}
	}
	same(t, "device", read(t, file), before)
}

// The entries of a GPT can lie far behind its header. Of a packed image, they are
// looked at all the same.
func TestTableFarBack(t *testing.T) {
	a := little(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, make([]byte, 16*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("sgdisk"); err != nil {
		t.Skip("sgdisk is missing (Debian package gdisk)")
	}
	flashtest.MustRun(t, "sgdisk", "-j", "16384", "--new=1:20480:+4M", path)
	whole := read(t, path)
	for ending, pack := range packers {
		s := newShelf(t, a)
		s.put(t, "x"+ending, pack(t, whole))
		disk := filepath.Join(t.TempDir(), "disk.img")
		if _, err := Write(t.Context(), spec, a, disk, Options{Image: s.path("x" + ending)}); err != nil {
			t.Errorf("%s: %v", ending, err)
			continue
		}
		same(t, "disk", read(t, disk), whole)
	}
}

// The entries of a GPT are mostly zeros, which a block map leaves out. What the disk held
// there would make the table invalid, so it is not kept.
func TestKeepLeavesTheTableWhole(t *testing.T) {
	if _, err := exec.LookPath("sgdisk"); err != nil {
		t.Skip("sgdisk is missing (Debian package gdisk)")
	}
	a := little(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, make([]byte, littleImage), 0o600); err != nil {
		t.Fatal(err)
	}
	flashtest.MustRun(t, "sgdisk", "--new=1:2048:0", path)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := mapOf(t, f).WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	for ending, pack := range packers {
		s := newShelf(t, a)
		s.put(t, "x"+ending, pack(t, read(t, path)))
		s.put(t, "x.bmap", b.Bytes())
		device, file := flashtest.Loop(t, littleDevice)
		o := Options{Yes: []string{device}, Image: s.path("x" + ending), BlockMap: s.path("x.bmap"), Holes: "keep"}
		if _, err := Write(t.Context(), spec, a, device, o); err != nil {
			t.Fatal(err)
		}
		held := read(t, file)
		if kept := held[mib : littleImage-5*4096]; bytes.Count(kept, []byte{0xa5}) != len(kept) {
			t.Errorf("%s: what the map leaves out was not kept", ending)
		}
		disk, err := probe.Read(bytes.NewReader(held), littleImage, 512)
		if err != nil || disk.Table == nil || len(disk.Table.Faults) > 0 || len(disk.Table.Partitions) != 1 {
			t.Errorf("%s: Read = %+v, %v; want a whole table", ending, disk.Table, err)
		}
	}
}

// An empty image is refused in each form, also where it is meant.
func TestEmptyImage(t *testing.T) {
	a := little(t)
	for ending, pack := range packers {
		s := newShelf(t, a)
		s.put(t, "x"+ending, pack(t, nil))
		for _, raw := range []bool{true, false} {
			if _, err := Write(t.Context(), spec, a, filepath.Join(t.TempDir(), "x.img"), Options{Image: s.path("x" + ending), Raw: raw}); err == nil || !strings.Contains(err.Error(), "empty") {
				t.Errorf("%s: Write = %v; want it refused as empty", ending, err)
			}
		}
	}
}

// Slipway asks before it unpacks an image, also to learn its size. It refuses a card that is too
// small, and leaves it as it was.
func TestAskedBeforeItIsUnpacked(t *testing.T) {
	a := little(t)
	img := image(t, a)
	two := func(t *testing.T, p []byte) []byte { // the file's end has the size of the second member alone
		return append(gzipped(t, p[:mib]), gzipped(t, p[mib:])...)
	}
	for _, tt := range []struct {
		name, ending string
		pack         func(*testing.T, []byte) []byte
		measured     bool
		shown        string
		soon         bool // the file proves that it is too large, so Slipway does not unpack it
	}{
		{"raw", ".img", packers[".img"], false, ": 2.0 MiB", true},
		{"xz", ".img.xz", packers[".img.xz"], false, ": 2.0 MiB", true},
		{"gz", ".img.gz", gzipped, true, ": at least 2.0 MiB", false},
		{"gz of two members", ".img.gz", two, true, ": at least 1.0 MiB", false},
		{"bz2", ".img.bz2", packers[".img.bz2"], true, ": of a size that is known once it is unpacked", false},
		{"zst of a pipe", ".img.zst", packers[".img.zst"], true, ": of a size that is known once it is unpacked", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newShelf(t, a)
			s.put(t, "x"+tt.ending, tt.pack(t, img))
			var order []string
			ctx := progress.With(t.Context(), progress.New(sink(func(e progress.Event) {
				if e.State == progress.Running && (len(order) == 0 || order[len(order)-1] != e.Step) {
					order = append(order, e.Step)
				}
			})))
			var out bytes.Buffer
			o := Options{Image: s.path("x" + tt.ending), Out: &out, Confirm: func([]device.Device) error { order = append(order, "asked"); return nil }}
			file := filepath.Join(t.TempDir(), "disk.img")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			want := []string{"asked", "measure x" + tt.ending, "flash"}
			if !tt.measured {
				want = []string{"asked", "flash"}
			}
			receipt, err := Write(ctx, spec, a, file, o)
			if err != nil || !slices.Equal(order, want) || receipt.ImageBytes != littleImage || !strings.Contains(out.String(), tt.shown) {
				t.Fatalf("Write = %d bytes, %v, in the order %q; want %q, and %q in\n%s", receipt.ImageBytes, err, order, want, tt.shown, out.String())
			}
			same(t, "file", read(t, file), img)

			card, kept := flashtest.Loop(t, littleImage-512)
			before, last := read(t, kept), read(t, images.ReceiptPath(stateDir(t, a)))
			order, o.Yes, o.Confirm = nil, []string{card}, nil
			_, err = Write(ctx, spec, a, card, o)
			if err == nil || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "the image needs 2.0 MiB") || (len(order) > 0) == tt.soon {
				t.Errorf("on a card that is too small: %v, after %q", err, order)
			}
			same(t, "card", read(t, kept), before)
			same(t, "receipt", read(t, images.ReceiptPath(stateDir(t, a))), last)
		})
	}
}

// The last bytes of a file that is cut off are no size. Slipway does not want a larger card.
func TestCutGzipIsNoLargeImage(t *testing.T) {
	a := little(t)
	packed := gzipped(t, image(t, a))
	s := newShelf(t, a)
	s.put(t, "cut.img.gz", append(packed[:len(packed)-9], "\xff\xff\xff\xff"...))
	card, _ := flashtest.Loop(t, littleImage)
	_, err := Write(t.Context(), spec, a, card, Options{Image: s.path("cut.img.gz"), Out: io.Discard, Yes: []string{card}})
	if !errors.Is(err, ErrImage) {
		t.Errorf("Write = %v; want an error of the image", err)
	}
}

func stateDir(t *testing.T, a images.Artifact) string {
	t.Helper()
	dir, err := a.StateDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// The boot files of boards are never checked as disks.
func TestRawIsForDisks(t *testing.T) {
	_, err := Write(t.Context(), spec, little(t), "/dev/rshim0", Options{Raw: true, Out: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "leave --raw out") {
		t.Errorf("Write = %v; want --raw refused", err)
	}
}
