package source

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
)

// fuzzLimit is more than a small valid input unpacks to.
const fuzzLimit = 64 << 20

// prove unpacks a file as a whole, and once more what lies in a few spans alone: both
// must say the same.
func prove(t *testing.T, name string, file []byte) ([]byte, error) {
	if len(file) == 0 {
		return nil, nil
	}
	f := writeFile(t, name, file)
	image, m, err := unpack(t, f, nil, fuzzLimit)
	if errors.Is(err, errTestLimit) {
		return nil, err
	}
	if err == nil && m.SizeBytes() >= 0 && int64(len(image)) != m.SizeBytes() {
		t.Fatalf("%s of %d bytes unpacks to %d", m.Form(), m.SizeBytes(), len(image))
	}
	want := []Span{{1, 10}, {4096, 4096}, {mib - 7, 5000}}
	parts, _, partsErr := unpack(t, f, want, fuzzLimit)
	if (err == nil) != (partsErr == nil) {
		t.Fatalf("all of it: %v; a part of it: %v", err, partsErr)
	}
	for _, s := range want {
		if end := min(s.Off+s.Len, int64(len(image))); err == nil && s.Off < end && !bytes.Equal(image[s.Off:end], parts[s.Off:end]) {
			t.Fatalf("the %d bytes at %d are others when they alone are wanted", s.Len, s.Off)
		}
	}
	return image, err
}

// small is an image for seeds, which a fuzzer can change in ways that matter.
func small() []byte {
	p := bytes.Repeat([]byte("a line of a log\n"), 300)
	return append(append(p, make([]byte, 200<<10)...), "end"...)
}

func FuzzOpen(f *testing.F) {
	image := small()
	f.Add(byOther(f, image))
	f.Add(byOther(f, image, zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<10)))
	f.Add(append(byOther(f, image), byOther(f, image[:5000])...))
	f.Add(append(skippable("first"), byOther(f, image[:5000])...))
	f.Add(append(append([]byte{}, holeFrame(1<<20)...), holeFrame(4096)...))
	f.Add(gzipped(f, image))
	f.Add([]byte("BZh91AY&SY\x19\x31\x65\x3d\x00\x00\x00\x81\x00\x02\x44\xa0\x00\x21\x9a\x68\x33\x4d\x07\x33\x8b\xb9\x22\x9c\x28\x48\x0c\x98\xb2\x9e\x80"))
	f.Add(zipOf(f, zip.Deflate, image, "disk.img"))
	f.Add(image)
	defer func(n int) { cores = n }(cores)
	f.Fuzz(func(t *testing.T, file []byte) {
		cores = 2
		image, err := prove(t, "image", file)
		cores = 8
		other, otherErr := prove(t, "image", file)
		if (err == nil) != (otherErr == nil) || err == nil && !bytes.Equal(image, other) {
			t.Fatalf("on two cores: %v, %d bytes; on eight: %v, %d bytes", err, len(image), otherErr, len(other))
		}
	})
}

// holeFrame returns a frame of n zeros, which repeats one byte in each block.
func holeFrame(n int64) []byte {
	const size4, sum, window = 2 << 6, 1 << 2, 7 << 3 // the window is one block
	b := append([]byte(frameMagic), size4|sum, window)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	for left := n; left > 0; left -= maxBlockBytes {
		head := encodeBlockHeader(block{last: left <= maxBlockBytes, kind: runBlock, size: min(left, maxBlockBytes)})
		b = append(append(b, head[:]...), 0)
	}
	return binary.LittleEndian.AppendUint32(b, uint32(xxhash.Sum64(make([]byte, n))))
}

// framed is a frame of zstd with p as it is.
func framed(_ testing.TB, p []byte) []byte {
	out, _ := plainHeader(0)
	for last := false; !last; {
		n := min(len(p), maxBlockBytes)
		last = n == len(p)
		head := encodeBlockHeader(block{last: last, kind: rawBlock, size: int64(n)})
		out, p = append(append(out, head[:]...), p[:n]...), p[n:]
	}
	return out
}

// FuzzZip changes an archive in two places, so that it is still one more often.
func FuzzZip(f *testing.F) {
	f.Add(zipOf(f, zip.Store, small()[:500], "disk.img"), uint16(3), byte(1), uint16(40), byte(2))
	f.Add(zipOf(f, zip.Deflate, small(), "a/", "a/disk.img"), uint16(3), byte(0), uint16(30), byte(0))
	f.Fuzz(func(t *testing.T, file []byte, at uint16, with byte, fromEnd uint16, with2 byte) {
		if len(file) == 0 {
			return
		}
		file = bytes.Clone(file)
		file[int(at)%len(file)] ^= with
		file[len(file)-1-int(fromEnd)%len(file)] ^= with2
		_, _ = prove(t, "image.zip", file)
	})
}
