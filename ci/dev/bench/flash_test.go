package bench

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"slipway/images/bmap"
	"slipway/layers/run"
)

func needLoops(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a loop device")
	}
}

// The data of a variant must make the next one neither faster nor slower: makeUsed leaves
// none of it on the device, nor in a cache.
func TestMakeUsed(t *testing.T) {
	needLoops(t)
	l, err := attachLoop(t.Context(), filepath.Join(t.TempDir(), "device"), 1<<30)
	if err != nil {
		t.Skipf("cannot make a loop device (Debian package mount): %v", err)
	}
	t.Cleanup(func() { l.detach() })
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := bytes.Repeat([]byte{1}, 1<<20)
	for range 16 {
		if _, err := f.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	mapped := bmap.Map{ImageSize: 1 << 30, BlockSize: 4096, Ranges: []bmap.Range{{First: 256, Last: 1023}}}
	if err := l.makeUsed(mapped); err != nil {
		t.Fatal(err)
	}
	if got := l.heldBytes(t); got < 3<<20 || got > 3<<20+1<<16 {
		t.Errorf("the device's file holds %d bytes after makeUsed; want the 3 MiB that are mapped", got)
	}
	for off, want := range map[int64][]byte{0: make([]byte, 1<<20), 1 << 20: usedData(), 3 << 20: usedData(), 4 << 20: make([]byte, 1<<20)} {
		if _, err := f.ReadAt(data, off); err != nil || !bytes.Equal(data, want) {
			t.Errorf("the device has %d, %d... at %d after makeUsed (%v); want %d, %d...", data[0], data[1], off, err, want[0], want[1])
		}
	}
}

func (l *loop) heldBytes(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(l.file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// The bench notices a program that does not write the whole image.
func TestCheckImage(t *testing.T) {
	in, err := makeInputs(t.Context(), t.TempDir(), 8<<20, func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	image := in.imagePath("raw")
	if err := checkImage(t.Context(), image, in.blocks["raw"]); err != nil {
		t.Fatalf("checkImage(the image itself) = %v", err)
	}
	f, err := os.OpenFile(image, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	off, length := in.blocks["raw"].Span(in.blocks["raw"].Ranges[len(in.blocks["raw"].Ranges)-1])
	if _, err := f.WriteAt([]byte{0, 0, 0, 0, 0, 0, 0, 0}, off+length-8); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Close(), checkImage(t.Context(), image, in.blocks["raw"])); err == nil || !strings.Contains(err.Error(), "does not hold the image") {
		t.Errorf("checkImage(a changed image) = %v; want an error", err)
	}
}

// The inputs of one run serve the next, except incomplete ones.
func TestInputsAreKept(t *testing.T) {
	dir := t.TempDir()
	make1 := func() inputs {
		in, err := makeInputs(t.Context(), dir, 8<<20, func(key string) bool { return key == "gz" })
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	in := make1()
	stat := func() (raw, gz os.FileInfo) {
		raw, err := os.Stat(in.imagePath("raw"))
		if err != nil {
			t.Fatal(err)
		}
		gz, err = os.Stat(in.imagePath("gz"))
		if err != nil {
			t.Fatal(err)
		}
		return raw, gz
	}
	raw, gz := stat()
	if err := os.Truncate(in.imagePath("gz"), 100); err != nil {
		t.Fatal(err)
	}
	make1()
	rawNow, gzNow := stat()
	if !os.SameFile(raw, rawNow) {
		t.Error("the raw image was made again")
	}
	if gzNow.Size() != gz.Size() {
		t.Errorf("the packed image that was cut has %d bytes; want it made again, with %d", gzNow.Size(), gz.Size())
	}
}

func TestRatiosOfPairs(t *testing.T) {
	rows := []Row{{Name: "ours", Times: seconds(1)}, {Name: "peer", Times: seconds(4)}}
	got := ratiosOfPairs(rows, []ratioPair{{"a", "peer", "ours"}, {"b", "absent", "ours"}, {"c", "peer", "absent"}})
	if len(got) != 1 || got[0] != (Ratio{"a", 4}) {
		t.Errorf("ratiosOfPairs = %v; want a=4 alone", got)
	}
}

func seconds(n time.Duration) []time.Duration { return []time.Duration{n * time.Second} }

// The whole measurement, on a small image.
func TestFlash(t *testing.T) {
	needLoops(t)
	t.Setenv("SLIPWAY_BMAPTOOL", "")
	t.Chdir("../../..")
	var out bytes.Buffer
	if err := Flash(t.Context(), &out, Options{Rounds: 1, MiB: 16, Only: `^(ours|bmaptool) raw(, read back)?$`}); err != nil {
		t.Fatal(err)
	}
	last := out.String()[strings.LastIndex(strings.TrimSpace(out.String()), "\n")+1:]
	for _, want := range []string{"raw_readback=", "peak_rss_mb="} {
		if !strings.Contains(last, want) {
			t.Errorf("Flash printed %q last; want %s in it", last, want)
		}
	}
}

// Without a working limit each flash would be as fast as the device. Other programs can
// only make this one slower.
func TestThrottle(t *testing.T) {
	needLoops(t)
	slow, err := newThrottle()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { noError(t, slow.undo()) })
	l, err := attachLoop(t.Context(), filepath.Join(t.TempDir(), "device"), 64<<20)
	if err != nil {
		t.Skipf("cannot make a loop device (Debian package mount): %v", err)
	}
	t.Cleanup(func() { noError(t, errors.Join(slow.set(l.number, speed{}), l.detach())) })
	if err := slow.set(l.number, card); err != nil {
		t.Fatal(err)
	}
	const size = 32 << 20
	began := time.Now()
	dd := run.Command{Argv: []string{"dd", "if=/dev/zero", "of=" + l.path, "bs=4M", "count=8", "conv=fsync"}}
	if err := run.Run(t.Context(), dd); err != nil {
		t.Fatal(err)
	}
	if took, least := time.Since(began), time.Second*size/40e6; took < least*9/10 {
		t.Errorf("%d bytes were written in %v; want at least %v", size, took, least)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// The changed image differs in a twentieth of the bytes, only where the first one has data.
func TestChanged(t *testing.T) {
	in, err := makeInputs(t.Context(), t.TempDir(), 384<<20, func(key string) bool { return key == "changed" })
	if err != nil {
		t.Fatal(err)
	}
	var differ, holes int64
	a, b := make([]byte, 4096), make([]byte, 4096)
	one, two := openFile(t, in.imagePath("raw")), openFile(t, in.imagePath("changed"))
	for off := int64(0); off < in.sizeBytes; off += 4096 {
		_, err1 := one.ReadAt(a, off)
		_, err2 := two.ReadAt(b, off)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			differ += 4096
			if len(bytes.TrimLeft(a, "\x00")) == 0 {
				holes++
			}
		}
	}
	mapped := in.blocks["raw"].Mapped()

	if differ < mapped/30 || differ > mapped/15 || holes > 0 {
		t.Errorf("%d of %d bytes differ, %d blocks of them in holes; want about a twentieth, none in holes", differ, mapped, holes)
	}
}

func openFile(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
