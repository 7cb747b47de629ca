package lzma2

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"slipway/flash/flashtest"
)

// code looks like a program to all filters for programs.
func code(n int) []byte {
	p := flashtest.Random(n)
	for i := 0; i+8 <= n; i += 8 {
		switch i / 8 % 4 {
		case 0:
			p[i+3] = 0xeb // arm
		case 1:
			p[i+1], p[i+3] = 0xf0|p[i+1]&7, 0xf8|p[i+3]&7 // armthumb
		case 2:
			p[i+3] = 0x94 | p[i+3]&3 // arm64: BL
		case 3:
			p[i+3], p[i+2] = 0x90|p[i+3]&0x60, 0 // arm64: ADRP of what is near
		}
	}
	return p
}

func samples() map[string][]byte {
	return map[string][]byte{
		"empty":  nil,
		"byte":   {7},
		"text":   flashtest.Text(400_000),
		"random": flashtest.Random(300_000),
		"zeros":  make([]byte, 3<<20),
		"image":  slices.Concat(flashtest.Text(100_000), make([]byte, 2<<20), flashtest.Random(70_000), make([]byte, 300_000), flashtest.Text(70_000), make([]byte, 5000), []byte("end")),
		"runs":   slices.Concat(bytes.Repeat([]byte("a"), 100_000), bytes.Repeat([]byte("ab"), 40_000), bytes.Repeat([]byte("0123456"), 20_000)),
		"code":   code(80_000),
	}
}

// program packs by a real program; the test is skipped where it is missing.
func program(t testing.TB, p []byte, argv ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Skipf("%s is missing; apt-get install xz-utils 7zip", argv[0])
	}
	c := exec.Command(argv[0], argv[1:]...)
	c.Stdin = bytes.NewReader(p)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%q: %v: %s", argv, err, &said)
	}
	return out
}

func packXZ(t testing.TB, p []byte, options ...string) []byte {
	t.Helper()
	return program(t, p, append([]string{"xz", "-c"}, options...)...)
}

func unpack(packed []byte, limit int) (*flashtest.Output, error) {
	f, err := Open(bytes.NewReader(packed), int64(len(packed)))
	if err != nil {
		return nil, err
	}
	got := &flashtest.Output{Limit: limit}
	for i, b := range f.Blocks {
		if int64(got.Len()) != b.Off {
			return nil, fmt.Errorf("block %d is at %d, after %d bytes", i, b.Off, got.Len())
		}
		if err := f.Decode(i, got); err != nil {
			return nil, err
		}
	}
	return got, nil
}

func checkXZ(t testing.TB, packed, want []byte) {
	t.Helper()
	got, err := unpack(packed, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("%d bytes came out, not the %d that were packed", got.Len(), len(want))
	}
}

func TestPrograms(t *testing.T) {
	all := samples()
	for i, options := range []string{
		"xz -0", "xz -3 --check=crc32", "xz -6 --check=none", "xz -9e --check=sha256", "xz -T0", "xz -T2 --block-size=100KiB",
		"xz --lzma2=dict=4KiB", "xz --lzma2=dict=64KiB,lc=0,lp=2,pb=0,nice=273", "xz --lzma2=lc=4,lp=0,pb=4", "xz --lzma2=lc=1,lp=3,pb=1,mf=hc3,mode=fast",
		"xz --block-list=4KiB,100KiB,1,300KiB",
		"7zz a -txz -si -so -mx=1 x", "7zz a -txz -si -so -mx=9 x",
	} {
		t.Run(options, func(t *testing.T) {
			argv := strings.Fields(options)
			for name, sample := range all {
				if i > 0 && (name == "empty" || name == "byte" || name == "zeros" || name == "text") {
					continue // that depends on no option
				}
				t.Run(name, func(t *testing.T) { checkXZ(t, program(t, sample, argv...), sample) })
			}
		})
	}
}

// A small dictionary goes around its ring often; what matches reach is then in the
// last lap.
func TestSmallDictionaries(t *testing.T) {
	for _, dict := range []string{"4KiB", "96KiB"} {
		sample := slices.Concat(flashtest.Text(300_000), make([]byte, 50_000), flashtest.Random(9000), flashtest.Text(100_000))
		checkXZ(t, packXZ(t, sample, "--lzma2=preset=9,dict="+dict), sample)
	}
}

func TestZerosAreSkipped(t *testing.T) {
	got, err := unpack(packXZ(t, samples()["image"]), 0)
	if err != nil {
		t.Fatal(err)
	}
	if least := int64(2<<20 + 300_000 - 4*minRunBytes); got.Zeros < least {
		t.Errorf("%d zeros were skipped; want at least %d", got.Zeros, least)
	}
}

func TestStreams(t *testing.T) {
	a, b := flashtest.Text(100_000), flashtest.Random(1000)
	pa, pb, none := packXZ(t, a, "--block-size=30KiB"), packXZ(t, b, "--check=crc32"), packXZ(t, nil)
	ab := slices.Concat(a, b)
	for _, test := range []struct {
		name    string
		packed  []byte
		want    []byte
		wantErr string
	}{
		{"two", slices.Concat(pa, pb), ab, ""},
		{"an empty one between", slices.Concat(pa, none, pb), ab, ""},
		{"zeros behind", slices.Concat(pa, make([]byte, 400_000)), a, ""},
		{"zeros between", slices.Concat(pa, make([]byte, 512), pb), ab, ""},
		{"three zeros behind", slices.Concat(pa, make([]byte, 3)), nil, "no multiple of four"},
		{"other bytes behind", slices.Concat(pa, []byte("xxxx")), nil, "something follows"},
		{"other bytes before", slices.Concat([]byte("xxxx"), pa), nil, "no stream ends at 4"},
		{"the second is cut", slices.Concat(pa, pb[:len(pb)-8]), nil, "cut off"},
		{"the first is cut", slices.Concat(pa[:len(pa)-8], pb), nil, "no stream ends"},
		{"nothing but zeros", make([]byte, 4096), nil, "no stream ends at 0"},
		{"a filter that is left out", packXZ(t, a, "--x86", "--lzma2"), nil, "the filter x86,"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := unpack(test.packed, 0)
			switch {
			case test.wantErr == "" && err != nil:
				t.Error(err)
			case test.wantErr == "" && !bytes.Equal(got.Bytes(), test.want):
				t.Errorf("%d bytes; want %d", got.Len(), len(test.want))
			case test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)):
				t.Errorf("the error is %v; want one with %q", err, test.wantErr)
			}
		})
	}
}

// A dictionary is as large as the block at most, so that this needs a large block,
// which is all zeros.
func TestLargeDictionary(t *testing.T) {
	packed := packXZ(t, make([]byte, MaxDictionary+1), "-0", "--lzma2=preset=0,dict=96MiB")
	if _, err := Open(bytes.NewReader(packed), int64(len(packed))); err == nil || !strings.Contains(err.Error(), "pack it again with xz -6 -T0") {
		t.Errorf("the error is %v; want one that says how to pack it again", err)
	}
}

func TestEachCut(t *testing.T) {
	packed := packXZ(t, slices.Concat(flashtest.Text(1000), make([]byte, 20_000), flashtest.Random(100)), "--block-size=8KiB")
	for n := range packed {
		if _, err := unpack(packed[:n], 0); err == nil && n > 0 {
			t.Errorf("the first %d of %d bytes: no error", n, len(packed))
		}
	}
}

// All that is in a file is proved by one sum or another; without a check, the data is
// not.
func TestEachBit(t *testing.T) {
	sample := slices.Concat(flashtest.Text(200), make([]byte, 9000), flashtest.Random(30))
	for _, check := range []string{"crc32", "crc64", "sha256", "none"} {
		packed := packXZ(t, sample, "--block-size=5KiB", "--check="+check)
		for i := range 8 * len(packed) {
			packed[i/8] ^= 1 << (i % 8)
			if _, err := unpack(packed, 1<<20); err == nil && check != "none" {
				t.Errorf("check %s, bit %d of byte %d: no error", check, i%8, i/8)
			}
			packed[i/8] ^= 1 << (i % 8)
		}
	}
}

func TestOutputFails(t *testing.T) {
	packed := packXZ(t, flashtest.Text(100_000))
	f, err := Open(bytes.NewReader(packed), int64(len(packed)))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Decode(0, &flashtest.Output{Limit: 1000}); !errors.Is(err, flashtest.ErrTooMuch) {
		t.Errorf("the error is %v; want %v", err, flashtest.ErrTooMuch)
	}
}

const fuzzLimit = 1 << 20

// FuzzXZ damages files, and corrects the sums of what it damaged, so that the parts
// behind them are reached.
func FuzzXZ(f *testing.F) {
	for _, options := range []string{"-0", "-9", "--check=sha256", "--check=none", "--block-size=64", "--delta --lzma2", "--arm64 --lzma2"} {
		f.Add(packXZ(f, slices.Concat(flashtest.Text(200), make([]byte, 300), flashtest.Random(20)), strings.Fields(options)...))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		_, _ = unpack(p, fuzzLimit)
		mendSums(p)
		_, _ = unpack(p, fuzzLimit)
	})
}

// FuzzLZMA2 decodes chunks without a container. What comes out twice is the same, and
// a larger dictionary makes no difference to what is valid with a small one.
func FuzzLZMA2(f *testing.F) {
	for _, options := range []string{"--lzma2=preset=0", "--lzma2=preset=9", "--lzma2=dict=4KiB,lc=0,lp=2,pb=0"} {
		for _, sample := range [][]byte{flashtest.Text(5000), make([]byte, 9000), flashtest.Random(300)} {
			f.Add(program(f, sample, "xz", "-c", "--format=raw", options))
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		small, err := unpackChunks(p, 4096)
		if err != nil {
			return
		}
		large, err := unpackChunks(p, 1<<20)
		if err != nil || !bytes.Equal(small, large) {
			t.Errorf("%d bytes with a small dictionary, %d with a large one, %v", len(small), len(large), err)
		}
	})
}

// BenchmarkXZ decodes the file that SLIPWAY_BENCH_XZ names, one block after the other;
// else a small sample.
func BenchmarkXZ(b *testing.B) {
	packed, err := os.ReadFile(os.Getenv("SLIPWAY_BENCH_XZ"))
	if err != nil {
		packed = packXZ(b, slices.Concat(flashtest.Text(8<<20), make([]byte, 16<<20)))
	}
	for b.Loop() {
		f, err := Open(bytes.NewReader(packed), int64(len(packed)))
		if err != nil {
			b.Fatal(err)
		}
		var n counted
		for i := range f.Blocks {
			if err := f.Decode(i, &n); err != nil {
				b.Fatal(err)
			}
		}
		b.SetBytes(int64(n))
	}
}

type counted int64

func (c *counted) Write(p []byte) (int, error) { *c += counted(len(p)); return len(p), nil }
func (c *counted) SkipZeros(n int64) error     { *c += counted(n); return nil }

// What a file has many of is counted before it costs time or memory.
func TestManyStreams(t *testing.T) {
	none := packXZ(t, nil)
	packed := bytes.Repeat(none, maxStreams+1)
	if _, err := Open(bytes.NewReader(packed), int64(len(packed))); err == nil || !strings.Contains(err.Error(), "streams or more") {
		t.Errorf("%d streams: %v", maxStreams+1, err)
	}
}

// xz -d must undo what a filter did.
func TestFiltersAreRefused(t *testing.T) {
	for _, name := range []string{"delta", "x86", "arm", "armthumb", "arm64"} {
		packed := packXZ(t, flashtest.Text(100), "--"+name, "--lzma2")
		if _, err := Open(bytes.NewReader(packed), int64(len(packed))); err == nil || !strings.Contains(err.Error(), "the filter "+name+", ") || !strings.Contains(err.Error(), "xz -6 -T0") {
			t.Errorf("a file packed with --%s: %v", name, err)
		}
	}
}

// Without a check, only the length shows that a block is incomplete.
func TestShortBlockWithoutCheck(t *testing.T) {
	f := &File{src: bytes.NewReader(make([]byte, 4))}
	for _, left := range []int64{0, 1} {
		err := f.verifyCheck(&Block{size: 4}, &checkedOutput{check: checks[0](), left: left})
		if (err != nil) != (left > 0) {
			t.Errorf("a block that lacks %d bytes: %v", left, err)
		}
	}
}
