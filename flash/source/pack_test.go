package source

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/images/bmap"
)

func TestPack(t *testing.T) {
	for name, image := range map[string][]byte{"sample": sampleImage(), "long": longImage(), "a byte": []byte("x"), "zeros": make([]byte, 17*mib+1)} {
		t.Run(name, func(t *testing.T) {
			plain := writeFile(t, "disk.img", image)
			made, err := PackFile(t.Context(), plain.Name(), "", 3)
			if err != nil {
				t.Fatal(err)
			}
			if made.Packed != plain.Name()+".zst" || made.ImageBytes != int64(len(image)) {
				t.Errorf("made %+v", made)
			}
			unpackedByZstd(t, made.Packed, image)
			proveFrames(t, made, image)
			got := readMap(t, made.Map)
			want, err := bmap.Create(t.Context(), plain)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the map of the plain image and this one (-plain +packed):\n%s", diff)
			}
		})
	}
}

func unpackedByZstd(t *testing.T, path string, want []byte) {
	t.Helper()
	if _, err := exec.LookPath("zstd"); err != nil {
		t.Skip("zstd is missing (Debian package zstd)")
	}
	got, err := exec.CommandContext(t.Context(), "zstd", "-q", "-d", "-c", path).Output()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("zstd -d makes %d other bytes of it, %v", len(got), err)
	}
}

// proveFrames unpacks our own form, and finds each range of the map in a section of its
// own, or with others: none lies in two.
func proveFrames(t *testing.T, made Made, want []byte) {
	t.Helper()
	f, err := os.Open(made.Packed)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, m, err := unpack(t, f, nil, 1<<40)
	if err != nil || !bytes.Equal(got, want) || m.Form() != "framed zst" {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	blocks := readMap(t, made.Map)
	for _, r := range blocks.Ranges {
		off, length := blocks.Span(r)
		inside := false
		for _, s := range m.Sections() {
			inside = inside || s.Off <= off && off+length <= s.Off+s.Len
		}
		if !inside {
			t.Errorf("range %d-%d lies in no section", r.First, r.Last)
		}
	}
}

func readMap(t *testing.T, path string) bmap.Map {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := bmap.Read(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Each byte of a packed file counts.
func TestPackedDamage(t *testing.T) {
	image := append(longImage()[:7*mib], "end"...)
	plain := writeFile(t, "disk.img", image)
	made, err := PackFile(t.Context(), plain.Name(), "", 1)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(made.Packed)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, at int, bad []byte) {
		got, _, err := unpack(t, writeFile(t, "disk.zst", bad), nil, 1<<30)
		if err == nil && !bytes.Equal(got, image) {
			t.Errorf("%s at %d of %d makes another image", what, at, len(file))
		}
		if err == nil && what == "cut" {
			t.Errorf("cut at %d of %d is not noticed", at, len(file))
		}
	}
	for at := 0; at < len(file); at += 1 + len(file)/31 {
		bad := bytes.Clone(file)
		bad[at] ^= 1
		try("a bit", at, bad)
		try("cut", at, file[:at])
	}
}

func TestMapFile(t *testing.T) {
	image := sampleImage()
	for _, name := range []string{"disk.img", "disk.img.gz"} {
		content := image
		if strings.HasSuffix(name, ".gz") {
			content = gzipped(t, image)
		}
		f := writeFile(t, name, content)
		for version, algorithm := range map[string]string{"1.3": bmap.SHA1, bmap.Latest: bmap.SHA256} {
			made, err := MapFile(t.Context(), f.Name(), version)
			if err != nil {
				t.Fatal(err)
			}
			m := readMap(t, made.Map)
			if m.ImageSize != int64(len(image)) || m.Algorithm != algorithm || m.Mapped() != made.MappedBytes || made.Map != f.Name()+".bmap" {
				t.Errorf("%s of %s: %+v", version, name, made)
			}
		}
	}
	if _, err := MapFile(t.Context(), "disk.img", "7.0"); err == nil {
		t.Error("a map of version 7.0 was made")
	}
}

// A failure leaves no new files, and old files unchanged.
func TestPackFails(t *testing.T) {
	image := byOther(t, sampleImage())
	cut := writeFile(t, "disk.img.xyz", image[:len(image)-9])
	flipped := bytes.Clone(image)
	flipped[len(flipped)/2] ^= 1
	damaged := writeFile(t, "disk.img.xyz", flipped)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name, wantErr string
		ctx           context.Context
		path, to      string
		level         int
	}{
		{"cut", "cut off", t.Context(), cut.Name(), "", 3},
		{"damaged", "damaged", t.Context(), damaged.Name(), "", 3},
		{"ended", "canceled", ended, writeFile(t, "disk.img", sampleImage()).Name(), "", 3},
		{"level", "1 to 22", t.Context(), writeFile(t, "disk.img", sampleImage()).Name(), "", 23},
		{"itself", "--to", t.Context(), writeFile(t, "disk.img.zst", image).Name(), "", 3},
		{"not there", "no such file", t.Context(), filepath.Join(t.TempDir(), "disk.img"), "", 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before, _ := os.ReadDir(filepath.Dir(test.path))
			_, err := PackFile(test.ctx, test.path, test.to, test.level)
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("%v; want an error with %q", err, test.wantErr)
			}
			after, _ := os.ReadDir(filepath.Dir(test.path))
			if len(before) != len(after) {
				t.Errorf("it left %v", after)
			}
		})
	}
}

type fullWriter struct{ left int }

var errFull = errors.New("no space left on device")

func (w *fullWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestPackToFullDisk(t *testing.T) {
	f := writeFile(t, "disk.img", longImage())
	for _, left := range []int{0, 50 << 10, 100 << 10} {
		_, _, err := packFile(t.Context(), f.Name(), &fullWriter{left}, 3, bmap.SHA256)
		if !errors.Is(err, errFull) {
			t.Errorf("a disk that is full after %d bytes: %v", left, err)
		}
	}
}
