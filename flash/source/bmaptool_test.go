package source

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"slipway/images/bmap"
)

// TestBmaptoolsOwn takes bmaptool's own test images: with each of their block maps, we
// put the same onto a target that held something else before.
func TestBmaptoolsOwn(t *testing.T) {
	checkout := os.Getenv("SLIPWAY_BMAPTOOL")
	if checkout == "" {
		t.Skip("SLIPWAY_BMAPTOOL names no checkout of bmaptool (github.com/yoctoproject/bmaptool)")
	}
	if _, err := exec.LookPath("bmaptool"); err != nil {
		t.Skip("bmaptool is missing (Debian package bmap-tools)")
	}
	image := filepath.Join(checkout, "tests/test-data/test.image.gz")
	maps, err := filepath.Glob(filepath.Join(checkout, "tests/test-data/*.bmap.v2*"))
	if err != nil || len(maps) == 0 {
		t.Fatalf("%d block maps in %s, %v; want one and more", len(maps), checkout, err)
	}
	for _, path := range maps {
		m := readMap(t, path)
		before := bytes.Repeat([]byte("before"), mib/6)
		want := copiedByBmaptool(t, image, path, before)
		if got := copied(t, image, m, before); !bytes.Equal(got, want) {
			t.Errorf("%s: we and bmaptool make different targets", filepath.Base(path))
		}
	}
}

// copiedByBmaptool is what bmaptool makes of a device that held something before. A
// file would be emptied by it first.
func copiedByBmaptool(t *testing.T, image, blocks string, before []byte) []byte {
	t.Helper()
	target := writeFile(t, "target.img", before)
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", target.Name()).Output()
	if err != nil {
		t.Skipf("no loop device, which takes root: %v", err)
	}
	device := string(bytes.TrimSpace(out))
	detach := sync.OnceValue(func() error { return exec.Command("losetup", "--detach", device).Run() })
	t.Cleanup(func() { _ = detach() })
	if out, err := exec.CommandContext(t.Context(), "bmaptool", "copy", "--bmap", blocks, image, device).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := detach(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(target.Name())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// copied is a target after the mapped ranges were written to it, each of which is
// proved by the map.
func copied(t *testing.T, image string, m bmap.Map, before []byte) []byte {
	t.Helper()
	f, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var want []Span
	for _, r := range m.Ranges {
		off, length := m.Span(r)
		want = append(want, Span{off, length})
	}
	data, _, err := unpack(t, f, want, m.ImageSize)
	if err != nil {
		t.Fatal(err)
	}
	target := bytes.Clone(before)
	for i, s := range want {
		part := data[s.Off : s.Off+s.Len]
		if got := fmt.Sprintf("%x", sha256.Sum256(part)); got != m.Ranges[i].Sum {
			t.Errorf("the range at %d has sha256 %s; the map says %s", s.Off, got, m.Ranges[i].Sum)
		}
		copy(target[s.Off:], part)
	}
	return target
}
