package source

import (
	"archive/zip"
	"bytes"
	"os/exec"
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

func TestForms(t *testing.T) {
	image := smallImage() // the real programs are slow
	tests := []struct {
		name, form  string
		file, image []byte
	}{
		{"bzip2", "bz2", by(t, image, "bzip2", "bzip2", "-c"), image},
		{"bzip2 in several streams", "bz2", append(by(t, image[:100*kib], "bzip2", "bzip2", "-c"), by(t, image[100*kib:], "bzip2", "bzip2", "-c")...), image},
		{"zip", "zip", zipOf(t, zip.Deflate, image, "disk.img"), image},
		{"zip, stored, in a folder", "zip", zipOf(t, zip.Store, image, "image/", "image/disk.img"), image},
		{"zip of a stream", "zip", by(t, image, "zip", "zip", "-q", "-", "-"), image},
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
		{"image.simg", "simg2img", []byte("\x3a\xff\x26\xed\x01")},
		{"image.simg.gz", "simg2img", gzipped(t, []byte("\x3a\xff\x26\xed\x01"))},
		{"image.tar.gz", "a tar archive", gzipped(t, tarball)},
		{"image.gz.zst", "packed twice, by zst and by gz", byOther(t, gzipped(t, image))},
		{"image.bz2", "its content is not that", image},
	}
	for _, test := range tests {
		_, _, err := unpack(t, writeFile(t, test.name, test.file), nil, 1<<40)
		if err == nil || !strings.Contains(err.Error(), test.wantErr) || !strings.HasPrefix(err.Error(), test.name+": ") {
			t.Errorf("%s: %v; want an error with %q", test.name, err, test.wantErr)
		}
	}
}
