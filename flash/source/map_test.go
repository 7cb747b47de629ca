package source

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/images/bmap"
)

// The map of a packed image is that of the plain one.
func TestMapOfPacked(t *testing.T) {
	for name, image := range map[string][]byte{
		"sample": sampleImage(), "long": longImage(), "a byte": []byte("x"), "zeros": make([]byte, 17*mib+1),
		"a hole that begins within a tile": append(append(append([]byte("x"), make([]byte, 11*mib)...), random(5000)...), make([]byte, 9*mib)...),
	} {
		plain := writeFile(t, "disk.img", image)
		want, err := bmap.Create(t.Context(), plain)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []*os.File{plain, writeFile(t, "disk.img.gz", gzipped(t, image)), writeFile(t, "disk.img.zst", byOther(t, image))} {
			made, err := MapFile(t.Context(), f.Name())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, readMap(t, made.Map)); diff != "" {
				t.Errorf("%s: the maps of the plain image and %s (-plain +packed):\n%s", name, filepath.Base(f.Name()), diff)
			}
		}
	}
}

// A failure leaves no map.
func TestMapFails(t *testing.T) {
	image := byOther(t, sampleImage())
	flipped := bytes.Clone(image)
	flipped[len(flipped)/2] ^= 1
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		wantErr, path string
		ctx           context.Context
	}{
		{"cut off", writeFile(t, "disk.img.xyz", image[:len(image)-9]).Name(), t.Context()},
		{"damaged", writeFile(t, "disk.img.xyz", flipped).Name(), t.Context()},
		{"canceled", writeFile(t, "disk.img", sampleImage()).Name(), ended},
		{"no such file", filepath.Join(t.TempDir(), "disk.img"), t.Context()},
	} {
		before, _ := os.ReadDir(filepath.Dir(test.path))
		if _, err := MapFile(test.ctx, test.path); err == nil || !strings.Contains(err.Error(), test.wantErr) {
			t.Errorf("%v; want an error with %q", err, test.wantErr)
		}
		if after, _ := os.ReadDir(filepath.Dir(test.path)); len(before) != len(after) {
			t.Errorf("%s: it left %v", test.wantErr, after)
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

func TestMapFile(t *testing.T) {
	image := sampleImage()
	for _, name := range []string{"disk.img", "disk.img.gz"} {
		content := image
		if strings.HasSuffix(name, ".gz") {
			content = gzipped(t, image)
		}
		f := writeFile(t, name, content)
		made, err := MapFile(t.Context(), f.Name())
		if err != nil {
			t.Fatal(err)
		}
		m := readMap(t, made.Map)
		if m.ImageSize != int64(len(image)) || m.Mapped() != made.MappedBytes || made.Map != f.Name()+".bmap" {
			t.Errorf("%s: %+v", name, made)
		}
	}
}
