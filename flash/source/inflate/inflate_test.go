package inflate

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"slipway/flash/flashtest"
)

func samples() map[string][]byte {
	return map[string][]byte{
		"empty":  nil,
		"byte":   {7},
		"text":   flashtest.Text(400_000),
		"random": flashtest.Random(400_000),
		"zeros":  make([]byte, 3<<20),
		"image":  slices.Concat(flashtest.Text(300_000), make([]byte, 2<<20), flashtest.Random(70_000), make([]byte, 300_000), flashtest.Text(200_000), make([]byte, 5000), []byte("end")),
		"runs":   slices.Concat(bytes.Repeat([]byte("a"), 500_000), bytes.Repeat([]byte("ab"), 200_000), bytes.Repeat([]byte("0123456"), 100_000)),
	}
}

func goPacked(t testing.TB, p []byte, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func checkGzip(t testing.TB, packed, want []byte) {
	t.Helper()
	var got flashtest.Output
	if err := Gzip(bytes.NewReader(packed), &got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("%d bytes came out, not the %d that were packed", got.Len(), len(want))
	}
}

func TestGoLevels(t *testing.T) {
	for name, sample := range samples() {
		for _, level := range []int{flate.HuffmanOnly, flate.NoCompression, flate.BestSpeed, 5, flate.BestCompression} {
			t.Run(fmt.Sprint(name, " ", level), func(t *testing.T) { checkGzip(t, goPacked(t, sample, level), sample) })
		}
	}
}

// program packs by a real program; the test is skipped where it is missing.
func program(t testing.TB, p []byte, argv ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Skipf("%s is missing; apt-get install gzip pigz 7zip", argv[0])
	}
	c := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	c.Stdin = bytes.NewReader(p)
	c.Stderr = t.Output()
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return out
}

func TestPrograms(t *testing.T) {
	all := samples()
	for _, argv := range [][]string{
		{"gzip", "-1"},
		{"gzip", "-6"},
		{"gzip", "-9", "--rsyncable"},
		{"pigz", "-p2"},
		{"pigz", "-p2", "-i", "-9"},
		{"pigz", "-p2", "-11", "-I1"},
		{"7zz", "a", "-tgzip", "-si", "-so", "-mx=9", "x"},
	} {
		t.Run(strings.Join(argv, " "), func(t *testing.T) {
			for name, sample := range all {
				if slices.Contains(argv, "-11") && len(sample) > 100_000 {
					sample = sample[:100_000] // zopfli is slow
				}
				t.Run(name, func(t *testing.T) { checkGzip(t, program(t, sample, argv...), sample) })
			}
		})
	}
}

func TestZerosAreSkipped(t *testing.T) {
	sample := samples()["image"]
	var got flashtest.Output
	if err := Gzip(bytes.NewReader(goPacked(t, sample, 6)), &got); err != nil {
		t.Fatal(err)
	}
	if least := int64(2<<20 + 300_000 - 3*minRunBytes); got.Zeros < least {
		t.Errorf("%d zeros were skipped; want at least %d", got.Zeros, least)
	}
}

func TestMembers(t *testing.T) {
	a, b := flashtest.Text(100_000), flashtest.Random(1000)
	header := func(flags byte, fields ...string) []byte {
		h := append([]byte{0x1f, 0x8b, 8, flags, 1, 2, 3, 4, 0, 3}, strings.Join(fields, "")...)
		if flags&hasHeaderSum != 0 {
			sum := crc32.ChecksumIEEE(h)
			h = append(h, byte(sum), byte(sum>>8))
		}
		return append(h, goPacked(t, b, 6)[10:]...)
	}
	ab := slices.Concat(a, b)
	for _, test := range []struct {
		name    string
		packed  []byte
		want    []byte
		wantErr string
	}{
		{"two", slices.Concat(goPacked(t, a, 1), goPacked(t, b, 9)), ab, ""},
		{"an empty one between", slices.Concat(goPacked(t, a, 1), goPacked(t, nil, 9), goPacked(t, b, 9)), ab, ""},
		{"zeros behind", slices.Concat(goPacked(t, a, 1), make([]byte, 2<<20)), a, ""},
		{"zeros between", slices.Concat(goPacked(t, a, 1), make([]byte, 512), goPacked(t, b, 9)), ab, ""},
		{"all fields", header(hasExtra|hasName|hasComment|hasHeaderSum|1, "\x05\x00extra", "a name\x00", "a comment\x00"), b, ""},
		{"a wrong sum of the header", slices.Replace(header(hasName|hasHeaderSum, "a name\x00"), 12, 13, 'Z'), nil, "header at 0 does not match"},
		{"a name without end", header(hasName, strings.Repeat("n", maxText)), nil, "has no end"},
		{"other bytes behind", slices.Concat(goPacked(t, a, 1), []byte("x")), nil, "something that is no gzip follows"},
		{"many other bytes behind", slices.Concat(goPacked(t, a, 1), []byte("something else that lies here")), nil, "something that is no gzip follows"},
		{"the second is cut", slices.Concat(goPacked(t, a, 1), goPacked(t, b, 9)[:5]), nil, "cut"},
		{"an unknown method", append([]byte{0x1f, 0x8b, 7}, goPacked(t, b, 6)[3:]...), nil, "method 7"},
		{"unknown flags", append([]byte{0x1f, 0x8b, 8, 0x20}, goPacked(t, b, 6)[4:]...), nil, "flags 0x20"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got flashtest.Output
			err := Gzip(bytes.NewReader(test.packed), &got)
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("cut")
			}
			switch {
			case test.wantErr == "" && (err != nil || !bytes.Equal(got.Bytes(), test.want)):
				t.Errorf("%d bytes, %v; want %d", got.Len(), err, len(test.want))
			case test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)):
				t.Errorf("the error is %v; want one with %q", err, test.wantErr)
			}
		})
	}
}

func TestEachCut(t *testing.T) {
	sample := slices.Concat(flashtest.Text(500), make([]byte, 20_000), flashtest.Random(50))
	for _, level := range []int{1, 6, flate.HuffmanOnly} {
		packed := slices.Concat(goPacked(t, sample[:300], level), goPacked(t, sample[300:], level))
		first := len(goPacked(t, sample[:300], level))
		for n := range packed {
			var got flashtest.Output
			err := Gzip(bytes.NewReader(packed[:n]), &got)
			if n == first {
				continue // a whole file
			}
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("level %d, the first %d of %d bytes: %v; want %v", level, n, len(packed), err, io.ErrUnexpectedEOF)
			}
		}
	}
}

// Some bits mean nothing: the header's time and system, and what fills up a byte.
func TestEachBit(t *testing.T) {
	sample := slices.Concat(flashtest.Text(300), make([]byte, 9000), flashtest.Random(30))
	for level, sample := range map[int][]byte{0: flashtest.Text(60), 1: sample, 9: sample} {
		packed := goPacked(t, sample, level)
		silent := 0
		for i := range 8 * len(packed) {
			packed[i/8] ^= 1 << (i % 8)
			var got flashtest.Output
			err := Gzip(bytes.NewReader(packed), &got)
			if err == nil && !bytes.Equal(got.Bytes(), sample) {
				t.Errorf("level %d, bit %d: other content and no error", level, i)
			}
			if err == nil {
				silent++
			}
			packed[i/8] ^= 1 << (i % 8)
		}
		if silent > 8*7+20 {
			t.Errorf("level %d: %d bits of %d can change without an error", level, silent, 8*len(packed))
		}
	}
}

// slow gives a byte at a time, then fails.
type slow struct {
	p   []byte
	err error
}

func (s *slow) Read(p []byte) (int, error) {
	if len(s.p) == 0 {
		return 0, s.err
	}
	p[0], s.p = s.p[0], s.p[1:]
	return 1, nil
}

func TestReaders(t *testing.T) {
	sample := flashtest.Text(50_000)
	packed := goPacked(t, sample, 6)
	var got flashtest.Output
	if err := Gzip(&slow{packed, io.EOF}, &got); err != nil || !bytes.Equal(got.Bytes(), sample) {
		t.Errorf("byte by byte: %d bytes, %v", got.Len(), err)
	}
	broken := errors.New("the disk is broken")
	if err := Gzip(&slow{packed[:2000], broken}, new(flashtest.Output)); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v; want %v", err, broken)
	}
	if err := Gzip(bytes.NewReader(packed), &flashtest.Output{Limit: 1000}); !errors.Is(err, flashtest.ErrTooMuch) {
		t.Errorf("an output that fails: %v; want %v", err, flashtest.ErrTooMuch)
	}
}

// raw decodes a deflate stream without a header, and returns how many bytes it used.
func raw(src io.Reader, out Out) (int64, error) {
	g := &unpacker{d: newDecoder(src), out: out}
	g.d.startStream()
	err := g.decodeStream()
	if err == nil {
		err = g.d.alignByte()
	}
	return g.d.offset(), err
}

// goInflate is what Go's decoder makes of a stream, up to a limit.
func goInflate(p []byte, limit int) ([]byte, int64, error) {
	src := bytes.NewReader(p)
	out, err := io.ReadAll(io.LimitReader(flate.NewReader(src), int64(limit)))
	return out, int64(len(p) - src.Len()), err
}

const fuzzLimit = 1 << 20

func FuzzInflate(f *testing.F) {
	for _, sample := range [][]byte{nil, flashtest.Text(300), make([]byte, 3000), flashtest.Random(60), bytes.Repeat([]byte("abc"), 200)} {
		for _, level := range []int{flate.HuffmanOnly, 0, 1, 9} {
			packed := goPacked(f, sample, level)
			f.Add(packed[10 : len(packed)-8])
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		want, used, wantErr := goInflate(p, fuzzLimit)
		if len(want) == fuzzLimit {
			t.Skip("more than the test takes")
		}
		var got flashtest.Output
		n, err := raw(bytes.NewReader(p), &got)
		switch {
		case (err == nil) != (wantErr == nil):
			t.Errorf("the error is %v; Go's is %v", err, wantErr)
		case err == nil && (!bytes.Equal(got.Bytes(), want) || n != used):
			t.Errorf("%d bytes out of %d, Go's are %d out of %d", got.Len(), n, len(want), used)
		}
	})
}

func FuzzGzip(f *testing.F) {
	f.Add(goPacked(f, flashtest.Text(300), 6))
	f.Add(slices.Concat(goPacked(f, flashtest.Text(30), 1), goPacked(f, flashtest.Random(30), 0), make([]byte, 9)))
	f.Add([]byte("\x1f\x8b\x08\x1e\x01\x02\x03\x04\x00\x03\x02\x00xxname\x00comment\x00"))
	f.Fuzz(func(t *testing.T, p []byte) {
		got := flashtest.Output{Limit: fuzzLimit}
		if err := Gzip(bytes.NewReader(p), &got); err != nil {
			return
		}
		r, err := gzip.NewReader(bytes.NewReader(bytes.TrimRight(p, "\x00")))
		if err != nil {
			return // the trailer ends with zeros
		}
		if want, err := io.ReadAll(r); err == nil && !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%d bytes, Go's are %d", got.Len(), len(want))
		}
	})
}

// BenchmarkGzip decodes the file that SLIPWAY_BENCH_GZ names; else a small sample.
func BenchmarkGzip(b *testing.B) {
	packed, err := os.ReadFile(os.Getenv("SLIPWAY_BENCH_GZ"))
	if err != nil {
		packed = goPacked(b, slices.Concat(flashtest.Text(8<<20), make([]byte, 16<<20)), 6)
	}
	for b.Loop() {
		var n counted
		if err := Gzip(bytes.NewReader(packed), &n); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(n))
	}
}

type counted int64

func (c *counted) Write(p []byte) (int, error) { *c += counted(len(p)); return len(p), nil }
func (c *counted) SkipZeros(n int64) error     { *c += counted(n); return nil }
