package source

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"
)

const kib, mib = 1 << 10, 1 << 20

// random is n bytes that no form can shorten.
func random(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(p)
	return p
}

// sampleImage has all that matters to a form: data, zeros in it that are long and short,
// text, a short last block.
func sampleImage() []byte {
	return slices.Concat(
		random(700*kib), make([]byte, 3*mib), bytes.Repeat([]byte("a line of a log\n"), 40_000),
		make([]byte, 20*kib), random(300*kib), make([]byte, 9*mib), random(5000), make([]byte, 1000), []byte("end"),
	)
}

func writeFile(t testing.TB, name string, content []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// unpack opens a file and puts its pieces together, in the way that a flash does. It
// fails the test where a piece is not what the contract says.
func unpack(t testing.TB, f *os.File, want []Span, limit int64) ([]byte, *Image, error) {
	t.Helper()
	m, err := Open(f, filepath.Base(f.Name()))
	if err != nil {
		return nil, nil, err
	}
	if m.SizeBytes() > limit {
		return nil, m, errTestLimit
	}
	var image []byte
	for i, s := range m.Sections() {
		off := s.Off
		err := m.Decode(t.Context(), i, want, func(p Piece) error {
			defer p.Free()
			checkPiece(t, p, off)
			off = p.Off + p.Len
			if off > limit {
				return errTestLimit
			}
			image = append(image, make([]byte, max(0, off-int64(len(image))))...)
			copy(image[p.Off:off], p.Data)
			return nil
		})
		if err != nil {
			return nil, m, err
		}
	}
	return image, m, m.CheckUnchanged()
}

// A file that another process makes longer or shorter is no image any more.
func TestCheckUnchanged(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int64{2 << 20, 1 << 20, 3 << 20} {
		f.Truncate(2 << 20)
		m, err := Open(f, f.Name())
		if err != nil {
			t.Fatal(err)
		}
		f.Truncate(size)
		if err := m.CheckUnchanged(); errors.Is(err, errChanged) != (size != 2<<20) {
			t.Errorf("a file of 2 MiB that has %d MiB now: %v", size>>20, err)
		}
	}
}

var errTestLimit = errors.New("more than the test takes")

func checkPiece(t testing.TB, p Piece, from int64) {
	t.Helper()
	switch {
	case p.Off < from || p.Len <= 0:
		t.Errorf("a piece of %d at %d after %d", p.Len, p.Off, from)
	case p.Data == nil:
	case int64(len(p.Data)) != p.Len || p.Off/mib != (p.Off+p.Len-1)/mib:
		t.Errorf("a piece of %d at %d has %d bytes, or crosses a MiB", p.Len, p.Off, len(p.Data))
	case uintptr(unsafe.Pointer(&p.Data[0]))%alignment != 0:
		t.Errorf("the piece at %d begins at %p in memory", p.Off, &p.Data[0])
	}
}

func gzipped(t testing.TB, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRawFindsZeros(t *testing.T) {
	image := sampleImage()
	f := writeFile(t, "disk.img", image)
	m, err := Open(f, "disk.img")
	if err != nil {
		t.Fatal(err)
	}
	var zeros int64
	for i := range m.Sections() {
		err := m.Decode(t.Context(), i, nil, func(p Piece) error {
			if p.Data == nil {
				zeros += p.Len
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if least := int64(12*mib - 2*alignment); zeros < least {
		t.Errorf("%d zeros were found; want at least %d", zeros, least)
	}
	if m.SizeBytes() != int64(len(image)) || m.Form() != "raw" {
		t.Errorf("it is %s of %d bytes", m.Form(), m.SizeBytes())
	}
}

func TestSpans(t *testing.T) {
	image := sampleImage()
	want := []Span{{0, 4 * kib}, {4 * kib, 100}, {mib - 5, 10}, {3 * mib, 2 * mib}, {int64(len(image)) - 3, 3}}
	for name, content := range map[string][]byte{"disk.img": image, "disk.img.gz": gzipped(t, image)} {
		f := writeFile(t, name, content)
		got, _, err := unpack(t, f, want, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		expected := make([]byte, len(image))
		for _, s := range want {
			copy(expected[s.Off:s.Off+s.Len], image[s.Off:])
		}
		if !bytes.Equal(got, expected) {
			t.Errorf("%s: other bytes than those that were wanted", name)
		}
	}
}

// countedFile counts the bytes that are read of it.
type countedFile struct {
	*os.File
	n atomic.Int64
}

func (c *countedFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.File.ReadAt(p, off)
	c.n.Add(int64(n))
	return n, err
}

// Where the head of an image ends in zeros, what follows them is not unpacked.
func TestHeadThatEndsInZeros(t *testing.T) {
	for name, argv := range map[string][]string{"gz": {"gzip", "-1"}, "xz": {"xz", "-0"}, "zst": {"zstd", "-q"}, "bz2": {"bzip2", "-1"}} {
		t.Run(name, func(t *testing.T) {
			content := append(random(1<<20), make([]byte, 8<<20)...)
			content = append(content, random(6<<20)...)
			cmd := exec.CommandContext(t.Context(), argv[0], append(argv[1:], "-c")...)
			cmd.Stdin = bytes.NewReader(content)
			packed, err := cmd.Output()
			if err != nil {
				t.Skipf("%s: %v", argv[0], err)
			}
			f := &countedFile{File: writeFile(t, "x."+name, packed)}
			m, err := Open(f, f.Name())
			if err != nil {
				t.Fatal(err)
			}
			const limit = 2<<20 + 5
			h := m.Head(t.Context(), limit)
			for _, s := range []Span{{0, 512}, {1<<20 - 3, 7}, {0, limit}, {limit - 4, 4}} {
				f.n.Store(0)
				p := bytes.Repeat([]byte{0xa5}, int(s.Len))
				n, err := h.ReadAt(p, s.Off)
				if err != nil || !bytes.Equal(p[:n], content[s.Off:][:s.Len]) {
					t.Errorf("%v of the head = %d bytes, %v; want those of the image", s, n, err)
				}
				if read := f.n.Load(); read > 3<<20 || s.Off == limit-4 && read > 0 {
					t.Errorf("%v of the head read %d of %d bytes", s, read, len(packed))
				}
			}
			if n, err := h.ReadAt(make([]byte, 8), limit-4); n != 4 || err != io.EOF || h.Err() != nil {
				t.Errorf("the end of the head = %d bytes, %v, %v; want 4 and io.EOF", n, err, h.Err())
			}
			h.Close()
			closed := m.Head(t.Context(), limit) // in the middle
			closed.ReadAt(make([]byte, 1), 0)
			closed.Close()
			if least := m.LeastBytes(); least > int64(len(content)) || name == "gz" && least != int64(len(content)) {
				t.Errorf("LeastBytes = %d; the image has %d", least, len(content))
			}
		})
	}
}

func TestSinkStops(t *testing.T) {
	stop := errors.New("stop")
	for name, content := range map[string][]byte{"disk.img": sampleImage(), "disk.img.gz": gzipped(t, sampleImage())} {
		m, err := Open(writeFile(t, name, content), name)
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		err = m.Decode(t.Context(), 0, nil, func(p Piece) error { calls++; p.Free(); return stop })
		if err != stop || calls != 1 {
			t.Errorf("%s: after %d pieces %v; want 1, %v", name, calls, err, stop)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(io.ErrClosedPipe)
		if err := m.Decode(ctx, 0, nil, func(Piece) error { return nil }); err != io.ErrClosedPipe {
			t.Errorf("%s with an ended context: %v", name, err)
		}
	}
}

func TestRefused(t *testing.T) {
	tests := []struct{ name, content, wantErr string }{
		{"empty.img", "", "empty"},
		{"disk.img.gz", "<!DOCTYPE html>", "a web page"},
		{"disk.img.gz", strings.Repeat("x", 600), "its content is not that"},
		{"disk.qcow2", "QFI\xfb" + strings.Repeat("x", 600), "qemu-img convert"},
		{"disk.tar", strings.Repeat("\x00", 257) + "ustar" + strings.Repeat("x", 600), "a tar archive"},
		{"disk.img.gz", "\x1f\x8b\x08\x00", "cut off"},
	}
	for _, test := range tests {
		_, _, err := unpack(t, writeFile(t, test.name, []byte(test.content)), nil, mib)
		if err == nil || !strings.Contains(err.Error(), test.wantErr) || !strings.HasPrefix(err.Error(), test.name) {
			t.Errorf("%s: %v; want an error with its name and %q", test.name, err, test.wantErr)
		}
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := Open(dir, "folder"); err == nil || !strings.Contains(err.Error(), "a folder") {
		t.Errorf("a folder: %v", err)
	}
}
