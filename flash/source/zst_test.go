package source

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
)

// byZstd packs with the real program.
func byZstd(t testing.TB, p []byte, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("zstd"); err != nil {
		t.Skip("zstd is missing (Debian package zstd)")
	}
	cmd := exec.CommandContext(t.Context(), "zstd", append([]string{"-q", "-c"}, args...)...)
	cmd.Stdin = bytes.NewReader(p)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// byOther packs as programs written in Go do.
func byOther(t testing.TB, p []byte, o ...zstd.EOption) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, o...)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(p, nil)
}

func skippable(content string) []byte {
	return append(binary.LittleEndian.AppendUint32([]byte("\x53\x2a\x4d\x18"), uint32(len(content))), content...)
}

// longImage repeats itself behind long zeros, so that blocks refer to what is before
// them, and in the state that was before them.
func longImage() []byte {
	text := bytes.Repeat([]byte("what a log says again and again, line after line\n"), 4000)
	return slices.Concat(text, make([]byte, 5*mib), text, random(100*kib), make([]byte, 9*mib), text, make([]byte, 3*mib+17), text, make([]byte, 3*mib))
}

// onCores runs a test with several numbers of cores, which change the way of decoding.
func onCores(t *testing.T, name string, test func(t *testing.T)) {
	defer func(n int) { cores = n }(cores)
	for _, cores = range []int{2, 8} {
		t.Run(fmt.Sprintf("%s, %d cores", name, cores), test)
	}
}

func TestZst(t *testing.T) {
	image, long := sampleImage(), longImage()
	parts := slices.Collect(slices.Chunk(image, 3*mib+5))
	var several, seekable []byte
	for _, p := range parts {
		several = append(several, byZstd(t, p, "--stream-size="+strconv.Itoa(len(p)))...)
		seekable = append(seekable, byZstd(t, p)...) // does not say its size
	}
	seekable = append(seekable, skippable("the table of the seekable format")...)
	tests := []struct {
		name  string
		file  []byte
		image []byte
		size  int64
	}{
		{"zstd", byZstd(t, image), image, -1},
		{"zstd with a size", byZstd(t, image, "--stream-size="+strconv.Itoa(len(image))), image, int64(len(image))},
		{"long zeros", byZstd(t, long, "-3"), long, -1},
		{"long zeros, threads", byZstd(t, long, "-3", "-T2", "-B1MiB", "--stream-size="+strconv.Itoa(len(long))), long, int64(len(long))},
		{"long zeros, level 19", byZstd(t, long, "-19"), long, -1},
		{"long zeros, level 1", byZstd(t, long, "-1", "--no-check"), long, -1},
		{"a window of 64 MiB", byZstd(t, image, "--long=26"), image, -1},
		{"another encoder", byOther(t, long), long, int64(len(long))},
		{"another encoder, best", byOther(t, long, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(64<<10)), long, int64(len(long))},
		{"one segment", byOther(t, image, zstd.WithSingleSegment(true)), image, int64(len(image))},
		{"several frames", several, image, int64(len(image))},
		{"skipped at both ends", slices.Concat(skippable("pzstd"), several, skippable("")), image, int64(len(image))},
		{"seekable", seekable, image, -1},
		{"one byte", byZstd(t, []byte("x")), []byte("x"), -1},
	}
	for _, test := range tests {
		onCores(t, test.name, func(t *testing.T) {
			f := writeFile(t, "disk.img.zst", test.file)
			got, m, err := unpack(t, f, nil, 1<<40)
			if err != nil {
				t.Fatal(err)
			}
			if m.Form() != "zst" || m.SizeBytes() != test.size {
				t.Errorf("%s of %d bytes; want zst of %d", m.Form(), m.SizeBytes(), test.size)
			}
			if !bytes.Equal(got, test.image) {
				t.Error("another image was unpacked")
			}
			end := int64(len(test.image))
			want := []Span{{max(0, end-5), min(5, end)}}
			got, _, err = unpack(t, f, want, 1<<40)
			if err != nil || !bytes.Equal(got[want[0].Off:], test.image[want[0].Off:]) {
				t.Errorf("its end alone: %v, %d bytes", err, len(got))
			}
		})
	}
}

// Zeros must be known without being unpacked, or the speed is gone.
func TestZstZerosAreNotUnpacked(t *testing.T) {
	image := longImage()
	f := writeFile(t, "disk.img.zst", byZstd(t, image, "-3", "-T2", "-B1MiB"))
	onCores(t, "zeros", func(t *testing.T) {
		m, err := Open(f, "disk.img.zst")
		if err != nil {
			t.Fatal(err)
		}
		var data int64
		err = m.Decode(t.Context(), 0, []Span{{0, int64(len(image))}}, func(p Piece) error {
			data += int64(len(p.Data))
			p.Free()
			return nil
		})
		// A block of each part of zstd's threads, and what shares a block with data.
		if err != nil || data > 3*mib {
			t.Errorf("%v, %d bytes of data; want at most 3 MiB of %d", err, data, len(image))
		}
	})
}

// emptyBlocks packs p in a frame with blocks between that unpack to nothing.
func emptyBlocks(p []byte) []byte {
	out, _ := plainHeader(0)
	add := func(kind int, size int, content ...byte) {
		head := encodeBlockHeader(block{kind: kind, size: int64(size)})
		out = append(append(out, head[:]...), content...)
	}
	for chunk := range slices.Chunk(p, maxBlockBytes) {
		add(rawBlock, 0)
		add(runBlock, 0, 'x')
		add(packedBlock, 2, 0x00, 0)           // no literals
		add(packedBlock, 4, 0x0c, 0, 0, 0)     // of 20 bits' length
		add(packedBlock, 3, 0x01, 'x', 0)      // no times an x
		add(packedBlock, 4, 0x05, 0, 'x', 0)   // of 12 bits' length
		add(packedBlock, 3, 0x00, 0x80, 0)     // no references, of which there may be many
		add(runBlock, maxBlockBytes, 0)        // zeros
		add(packedBlock, 4, 0x10, 'a', 'b', 0) // two literals
		add(packedBlock, 4, 0x14, 0, 0, 0)     // of 12 bits' length, one of which is a zero
		add(rawBlock, len(chunk), chunk...)
	}
	head := encodeBlockHeader(block{last: true, kind: rawBlock})
	return append(out, head[:]...)
}

// Blocks are counted to find their output, so empty blocks must be recognised.
func TestZstEmptyBlocks(t *testing.T) {
	image := random(300 * kib)
	var want []byte
	for chunk := range slices.Chunk(image, maxBlockBytes) {
		want = slices.Concat(want, make([]byte, maxBlockBytes), []byte("ab\x00"), chunk)
	}
	packed := emptyBlocks(image)
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if got, err := d.DecodeAll(packed, nil); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the test's frame is none: %v, %d bytes", err, len(got))
	}
	onCores(t, "empty", func(t *testing.T) {
		got, _, err := unpack(t, writeFile(t, "disk.img.zst", packed), nil, 1<<40)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v, %d bytes; want %d", err, len(got), len(want))
		}
	})
}

// A disk that cannot be read is not a damaged file.
func TestZstReadFault(t *testing.T) {
	fault := errors.New("the disk says no")
	file := byZstd(t, longImage())
	onCores(t, "fault", func(t *testing.T) {
		for _, at := range []int{20, 3000, len(file) / 2, len(file) - 2} {
			in := bufio.NewReader(io.MultiReader(bytes.NewReader(file[:at]), iotest.ErrReader(fault)))
			h, err := nextFrame(in)
			if err != nil {
				t.Fatal(err)
			}
			to := newCutter(t.Context(), Section{0, -1}, []Span{}, func(Piece) error { return nil })
			d, err := new(zst).newDecoder()
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := unpackFrame(d, in, h, to); !errors.Is(err, fault) || errors.Is(err, errDamaged) {
				t.Errorf("a fault at byte %d: %v; want %v", at, err, fault)
			}
		}
	})
}

// endsWhenAsked is a context that ends at its nth check.
type endsWhenAsked struct {
	context.Context
	left *atomic.Int64
}

func (c endsWhenAsked) Err() error {
	if c.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// Decoding of empty blocks, or of endless zeros, ends with its context.
func TestZstEndsWithContext(t *testing.T) {
	empty := framed(t, nil)
	head := encodeBlockHeader(block{kind: rawBlock})
	blocks := slices.Concat(empty[:len(empty)-3], bytes.Repeat(head[:], 100), empty[len(empty)-3:])
	// Zeros of many blocks, which are handed on at once when the last block is written.
	zeros := append([]byte(frameMagic), 1<<2, 7<<3)
	run := encodeBlockHeader(block{kind: runBlock, size: maxBlockBytes})
	zeros = append(zeros, bytes.Repeat(append(run[:], 0), 5*(1<<30)/maxBlockBytes)...)
	end := encodeBlockHeader(block{last: true, kind: rawBlock})
	zeros = append(append(zeros, end[:]...), "sums"...)
	for _, test := range []struct {
		name string
		file []byte
		left int64
	}{
		{"empty frames", bytes.Repeat(empty, 100), 50},
		{"empty blocks", blocks, 50},
		{"zeros", zeros, 5*(1<<30)/maxBlockBytes + 5},
	} {
		onCores(t, test.name, func(t *testing.T) {
			m, err := Open(writeFile(t, "disk.img.zst", test.file), "disk.img.zst")
			if err != nil {
				t.Fatal(err)
			}
			ctx := endsWhenAsked{t.Context(), new(atomic.Int64)}
			ctx.left.Store(test.left)
			if err := m.Decode(ctx, 0, nil, func(Piece) error { return nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("%v; want %v", err, context.Canceled)
			}
		})
	}
}

func TestZstRefused(t *testing.T) {
	image := sampleImage()
	whole := byZstd(t, image)
	frame := byOther(t, image[:mib])
	rest := byOther(t, image[mib:2*mib])
	both := slices.Concat(frame, rest)
	flipped := func(p []byte, at int) []byte {
		p = bytes.Clone(p)
		p[at] ^= 1
		return p
	}
	tests := []struct {
		name, wantErr string
		file          []byte
	}{
		{"cut in a block", "cut off", whole[:len(whole)/2]},
		{"cut in the checksum", "cut off", whole[:len(whole)-1]},
		{"cut in the second frame", "cut off", both[:len(both)-10]},
		{"cut in the header", "cut off", whole[:5]},
		{"trailing text", "something else", append(bytes.Clone(whole), "trailing text"...)},
		{"trailing zeros", "something else", append(bytes.Clone(whole), make([]byte, 4096)...)},
		{"a bit in a block", "damaged", flipped(whole, 200*kib)},
		{"a bit in the checksum", "damaged", flipped(whole, len(whole)-1)},
		{"a bit in a small frame", "damaged", flipped(both, len(both)-mib/2)},
		{"only skipped", "no image", skippable("nothing")},
		{"a window of 128 MiB", "--long", byZstd(t, image, "--long=27")},
	}
	for _, test := range tests {
		onCores(t, test.name, func(t *testing.T) {
			_, _, err := unpack(t, writeFile(t, "disk.img.zst", test.file), nil, 1<<40)
			if err == nil || !strings.Contains(err.Error(), test.wantErr) || !strings.HasPrefix(err.Error(), "disk.img.zst: ") {
				t.Errorf("%v; want an error with %q", err, test.wantErr)
			}
			if _, _, err := unpack(t, writeFile(t, "disk.img.zst", test.file), []Span{}, 1<<40); err == nil {
				t.Error("no error where nothing of it is wanted")
			}
		})
	}
}
