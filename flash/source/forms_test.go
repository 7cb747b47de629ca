package source

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// by packs with a program that reads what it packs from its standard input.
func by(t testing.TB, p []byte, hint, program string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is missing (Debian package %s)", program, hint)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdin = bytes.NewReader(p)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// bySimg makes a sparse image with the real program, which works on files.
func bySimg(t testing.TB, p []byte) []byte {
	t.Helper()
	if _, err := exec.LookPath("img2simg"); err != nil {
		t.Skip("img2simg is missing (Debian package android-sdk-libsparse-utils)")
	}
	from := writeFile(t, "disk.img", p)
	to := filepath.Join(t.TempDir(), "disk.simg")
	if out, err := exec.CommandContext(t.Context(), "img2simg", from.Name(), to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// simg puts a sparse image together; chunks are as chunk makes them.
func simg(blocks, sum uint32, chunks ...[]byte) []byte {
	p := []byte(sparseMagic + "\x01\x00\x00\x00\x1c\x00\x0c\x00\x00\x10\x00\x00")
	for _, n := range []uint32{blocks, uint32(len(chunks)), sum} {
		p = binary.LittleEndian.AppendUint32(p, n)
	}
	return append(p, bytes.Join(chunks, nil)...)
}

func chunk(kind uint16, blocks uint32, content []byte) []byte {
	p := binary.LittleEndian.AppendUint16(nil, kind)
	p = binary.LittleEndian.AppendUint32(append(p, 0, 0), blocks)
	return append(binary.LittleEndian.AppendUint32(p, uint32(12+len(content))), content...)
}

func zipOf(t testing.TB, method uint16, content []byte, members ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range members {
		m, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "/") {
			_, _ = m.Write(content)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// smallImage is sampleImage for programs that are slow, and tests that unpack often.
func smallImage() []byte {
	return slices.Concat(random(130*kib), make([]byte, mib), bytes.Repeat([]byte("a line of a log\n"), 5000), make([]byte, 20*kib), random(30*kib), make([]byte, 900), []byte("end"))
}

// summedSparse returns a sparse image with checksums, and its unpacked content.
func summedSparse(image []byte) ([]byte, []byte) {
	fill := bytes.Repeat([]byte("fill"), 2*1024)
	all := slices.Concat(image[:8192], fill, make([]byte, 3*4096), image[8192:8192+4096])
	le := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	head := crc32.ChecksumIEEE(all[:8192+len(fill)])
	return simg(8, crc32.ChecksumIEEE(all),
		chunk(storedChunk, 2, image[:8192]), chunk(fillChunk, 2, []byte("fill")), chunk(sumChunk, 0, le(head)),
		chunk(skipChunk, 3, nil), chunk(storedChunk, 1, image[8192:8192+4096]), chunk(sumChunk, 0, le(crc32.ChecksumIEEE(all)))), all
}

func TestForms(t *testing.T) {
	image := smallImage() // the real programs are slow
	blocks := image[:len(image)&^4095]
	summed, ofSummed := summedSparse(image)
	plain := bytes.Clone(summed[:len(summed)-16]) // without the checksum at the end and in the head
	binary.LittleEndian.PutUint32(plain[20:], 5)
	tests := []struct {
		name, form  string
		file, image []byte
	}{
		{"bzip2", "bz2", by(t, image, "bzip2", "bzip2", "-c"), image},
		{"bzip2 in several streams", "bz2", append(by(t, image[:100*kib], "bzip2", "bzip2", "-c"), by(t, image[100*kib:], "bzip2", "bzip2", "-c")...), image},
		{"zip", "zip", zipOf(t, zip.Deflate, image, "disk.img"), image},
		{"zip, stored, in a folder", "zip", zipOf(t, zip.Store, image, "image/", "image/disk.img"), image},
		{"zip of a stream", "zip", by(t, image, "zip", "zip", "-q", "-", "-"), image},
		{"sparse", "sparse", bySimg(t, blocks), blocks},
		{"sparse with checksums", "sparse", summed, ofSummed},
		{"sparse with a checksum in the middle", "sparse", plain, ofSummed},
		{"sparse in gz", "sparse in gz", gzipped(t, bySimg(t, blocks)), blocks},
		{"sparse in zst", "sparse in zst", byOther(t, summed), ofSummed},
		{"sparse in bz2", "sparse in bz2", by(t, bySimg(t, blocks), "bzip2", "bzip2", "-c"), blocks},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := writeFile(t, "image", test.file)
			got, m, err := unpack(t, f, nil, 1<<40)
			if err != nil {
				t.Fatal(err)
			}
			if m.Form() != test.form || m.SizeBytes() >= 0 && m.SizeBytes() != int64(len(test.image)) {
				t.Errorf("%s of %d bytes; want %s of %d", m.Form(), m.SizeBytes(), test.form, len(test.image))
			}
			if !bytes.Equal(got, test.image) {
				t.Error("another image was unpacked")
			}
			end := int64(len(test.image))
			if got, _, err = unpack(t, f, []Span{{end - 5, 5}}, 1<<40); err != nil || !bytes.Equal(got[end-5:], test.image[end-5:]) {
				t.Errorf("its end alone: %v", err)
			}
			for _, at := range []int{len(test.file) - 1, len(test.file) / 2, 40} {
				if _, _, err := unpack(t, writeFile(t, "image", test.file[:at]), nil, 1<<40); err == nil {
					t.Errorf("cut after %d of %d bytes: no error", at, len(test.file))
				}
			}
			trailing := append(bytes.Clone(test.file), "trailing"...)
			if _, _, err := unpack(t, writeFile(t, "image", trailing), []Span{}, 1<<40); err == nil {
				t.Error("something that follows: no error")
			}
		})
	}
}

func TestFormsRefused(t *testing.T) {
	image := smallImage()
	summed, _ := summedSparse(image)
	flipped := func(p []byte, at int) []byte {
		p = bytes.Clone(p)
		p[at] ^= 1
		return p
	}
	stored := zipOf(t, zip.Store, image, "disk.img")
	tarball := append(make([]byte, 257), "ustar and what follows it"...)
	tests := []struct {
		name, wantErr string
		file          []byte
	}{
		{"image.zip", "holds 2 files (\"a.img\", \"b.img\")", zipOf(t, zip.Store, image, "a.img", "b.img")},
		{"image.zip", "holds 7 files", zipOf(t, zip.Store, image, "1", "2", "3", "4", "5", "6", "7")},
		{"image.zip", "holds 0 files", zipOf(t, zip.Store, image, "a/")},
		{"image.zip", "damaged", flipped(stored, 100*kib)},
		{"image.bz2", "damaged", flipped(by(t, image, "bzip2", "bzip2", "-c"), 50*kib)},
		{"image.simg", "damaged", flipped(summed, 100)},
		{"image.simg", "damaged", flipped(summed, 24)},
		{"image.simg", "version 2", flipped(flipped(simg(0, 0), 4), 4)},
		{"image.simg", "as much as it says", simg(9, 0, chunk(skipChunk, 8, nil))},
		{"image.simg", "damaged", simg(7, 0, chunk(skipChunk, 8, nil))},
		{"image.simg", "damaged", simg(7, 0, chunk(storedChunk, 7, []byte("short")))},
		{"image.simg", "damaged", simg(7, 0, chunk(0xcac9, 7, nil))},
		{"super.img.0", "several parts", summed},
		{"system.img_sparsechunk.3", "several parts", summed},
		{"system.img_sparsechunk.3.gz", "several parts", gzipped(t, summed)},
		{"image.tar.gz", "a tar archive", gzipped(t, tarball)},
		{"image.gz.zst", "packed twice, by zst and by gz", byOther(t, gzipped(t, image))},
		{"image.bz2", "its content is not that", image},
	}
	tests[7].file[4] = 2
	for _, test := range tests {
		_, _, err := unpack(t, writeFile(t, test.name, test.file), nil, 1<<40)
		if err == nil || !strings.Contains(err.Error(), test.wantErr) || !strings.HasPrefix(err.Error(), test.name+": ") {
			t.Errorf("%s: %v; want an error with %q", test.name, err, test.wantErr)
		}
	}
}

// The real program makes the same of what we read as sparse, and of what it does not
// know: whatever does not matter is zeros.
func TestSparseAsSimg2img(t *testing.T) {
	if _, err := exec.LookPath("simg2img"); err != nil {
		t.Skip("simg2img is missing (Debian package android-sdk-libsparse-utils)")
	}
	summed, _ := summedSparse(sampleImage())
	for _, file := range [][]byte{summed, bySimg(t, longImage()[:6*mib])} {
		f := writeFile(t, "disk.simg", file)
		to := filepath.Join(t.TempDir(), "disk.img")
		if out, err := exec.CommandContext(t.Context(), "simg2img", f.Name(), to).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		want, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := unpack(t, f, nil, 1<<40); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v; simg2img makes others, %d", len(got), err, len(want))
		}
	}
}
