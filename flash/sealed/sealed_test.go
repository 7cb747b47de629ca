package sealed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
)

func random(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(p)
	return p
}

func sum(p []byte) string {
	s := sha256.Sum256(p)
	return hex.EncodeToString(s[:])
}

// written is an open file with a content.
func written(t *testing.T, content []byte) (*File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, path
}

func none(int64) {}

var sizes = []int{0, 1, chunkBytes - 1, chunkBytes, chunkBytes + 1, 3 * chunkBytes, 3*chunkBytes + 17}

func TestSeal(t *testing.T) {
	for _, size := range sizes {
		want := random(size)
		f, _ := written(t, want)
		counted := int64(0)
		got, err := f.Seal(t.Context(), func(n int64) { counted += n })
		if err != nil || got != sum(want) || counted != int64(size) {
			t.Errorf("Seal of %d bytes = %s, %v, %d counted; want %s", size, got, err, counted, sum(want))
		}
		if err := iotest.TestReader(io.NewSectionReader(f, 0, f.SizeBytes()), want); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if again, err := f.Seal(t.Context(), none); again != got || err != nil {
			t.Errorf("again: %s, %v", again, err)
		}
	}
}

// Any single changed byte is seen by whoever reads it, in any way, and by nobody else.
func TestChangedByte(t *testing.T) {
	for _, size := range sizes[1:] {
		content := random(size)
		for _, at := range []int{0, size / 2, size - 1} {
			f, path := written(t, content)
			if _, err := f.Seal(t.Context(), none); err != nil {
				t.Fatal(err)
			}
			other := bytes.Clone(content)
			other[at] ^= 1
			if err := os.WriteFile(path, other, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, span := range [][2]int{{0, size}, {at, at + 1}, {max(0, at-1), size}} {
				if n, err := f.ReadAt(make([]byte, span[1]-span[0]), int64(span[0])); !errors.Is(err, ErrChanged) {
					t.Errorf("%d bytes, another one at %d: ReadAt %v = %d, %v", size, at, span, n, err)
				}
			}
			if _, err := io.Copy(io.Discard, f.Reader(t.Context(), none)); !errors.Is(err, ErrChanged) {
				t.Errorf("Reader ends with %v", err)
			}
			if chunk := at / chunkBytes; chunk > 0 {
				p := make([]byte, chunkBytes)
				if _, err := f.ReadAt(p, 0); err != nil || !bytes.Equal(p, content[:chunkBytes]) {
					t.Errorf("another chunk: %v", err)
				}
			}
		}
	}
}

// A chunk that moves to another's place is another chunk.
func TestSwappedChunks(t *testing.T) {
	content := random(2 * chunkBytes)
	f, path := written(t, content)
	if _, err := f.Seal(t.Context(), none); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(bytes.Clone(content[chunkBytes:]), content[:chunkBytes]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, chunkBytes), 0); !errors.Is(err, ErrChanged) {
		t.Errorf("ReadAt = %v", err)
	}
}

func TestRenamedFileStays(t *testing.T) {
	content := random(chunkBytes + 5)
	f, path := written(t, content)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, random(chunkBytes+5), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Seal(t.Context(), none); got != sum(content) || err != nil {
		t.Errorf("Seal = %s, %v", got, err)
	}
}

// A file that grows or shrinks while it is sealed is not sealed.
func TestSizeChangesMeanwhile(t *testing.T) {
	for name, size := range map[string]int64{"shrinks": chunkBytes, "grows": 40 * chunkBytes} {
		content := random(32 * chunkBytes)
		f, path := written(t, content)
		_, err := f.Seal(t.Context(), func(int64) {
			if err := os.Truncate(path, size); err != nil {
				t.Error(err)
			}
		})
		if !errors.Is(err, ErrChanged) {
			t.Errorf("%s: Seal = %v", name, err)
		}
	}
	f, path := written(t, random(3*chunkBytes))
	if _, err := f.Seal(t.Context(), none); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, 10), 2*chunkBytes); !errors.Is(err, ErrChanged) {
		t.Errorf("cut off: ReadAt = %v", err)
	}
}

func TestWritten(t *testing.T) {
	content := random(2*chunkBytes + 9)
	path := filepath.Join(t.TempDir(), "file")
	to, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	d := NewDigest()
	for rest := content; len(rest) > 0; rest = rest[min(len(rest), 1000):] { // in odd pieces
		if _, err := io.MultiWriter(to, d).Write(rest[:min(len(rest), 1000)]); err != nil {
			t.Fatal(err)
		}
	}
	f := Written(to, path, d)
	defer f.Close()
	if err := iotest.TestReader(io.NewSectionReader(f, 0, f.SizeBytes()), content); err != nil {
		t.Error(err)
	}
	if _, err := to.WriteAt([]byte("x"), chunkBytes); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, 9), chunkBytes+100); !errors.Is(err, ErrChanged) {
		t.Errorf("ReadAt = %v", err)
	}
}

func TestSealEnds(t *testing.T) {
	f, _ := written(t, random(chunkBytes))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Seal(ctx, none); !errors.Is(err, context.Canceled) {
		t.Errorf("Seal = %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a folder is opened")
	}
}

func BenchmarkSeal(b *testing.B) {
	path := filepath.Join(b.TempDir(), "file")
	if err := os.WriteFile(path, random(64<<20), 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	b.Run("SHA-256 alone", func(b *testing.B) {
		b.SetBytes(f.SizeBytes())
		for b.Loop() {
			h := sha256.New()
			if _, err := io.CopyBuffer(struct{ io.Writer }{h}, io.NewSectionReader(f.file, 0, f.size), make([]byte, 1<<20)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("seal", func(b *testing.B) {
		b.SetBytes(f.SizeBytes())
		for b.Loop() {
			f.digest = nil
			if _, err := f.Seal(b.Context(), none); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(f.SizeBytes())
		for b.Loop() {
			if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.NewSectionReader(f, 0, f.size), make([]byte, 256<<10)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
