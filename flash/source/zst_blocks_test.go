package source

import (
	"bytes"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// match is the rest of a packed block behind its literals: one reference, whose codes
// and further bits are given.
func match(litCode, offCode, matchCode byte, offBits, matchBits uint64) []byte {
	extra := 0
	if matchCode == 52 {
		extra = 16
	}
	v := uint64(1)<<(int(offCode)+extra) | offBits&(1<<offCode-1)<<extra | matchBits&(1<<extra-1)
	out := []byte{1, 0x54, litCode, offCode, matchCode}
	for ; v > 0; v >>= 8 {
		out = append(out, byte(v))
	}
	return out
}

// anyBlock makes a block of what a fuzzer says, which is one of those that matter to how
// zeros are left out.
func anyBlock(kind, a, b byte) (int, int, []byte) {
	empty := [][]byte{{0, 0}, {0, 0x80, 0}, {4, 0, 0}, {12, 0, 0, 0}, {1, 'x', 0}, {5, 0, 'x', 0}, {13, 0, 0, 'x', 0x80, 0}}
	sizes := []int{0, 1, 4096, 65536, 100_000, maxBlockBytes - 1, maxBlockBytes, maxBlockBytes}
	switch kind % 9 {
	case 0, 1, 2:
		return runBlock, sizes[a%8], []byte{0}
	case 3:
		return runBlock, sizes[a%8], []byte{b}
	case 4:
		p := empty[int(a)%len(empty)]
		return packedBlock, len(p), p
	case 5:
		p := bytes.Repeat([]byte{b & 1}, sizes[a%4])
		return rawBlock, len(p), p
	case 6: // one literal, a long match
		p := append([]byte{8, b & 1}, match(a&1, 17, 52, uint64(b>>1)%6, uint64(b)<<8)...)
		return packedBlock, len(p), p
	case 7: // a match by an offset that was used before, or a small one
		p := append([]byte{9, b & 1}, match(a&1, a>>1&3, 52, uint64(b), 0)...)
		return packedBlock, len(p), p
	}
	p := append([]byte{16, b & 3, 0}, match(a&1, a%20, b>>3, uint64(b)*977, 0)...)
	return packedBlock, len(p), p
}

func anyFrame(says []byte) []byte {
	out, _ := plainHeader(0)
	add := func(b block, content []byte) {
		head := encodeBlockHeader(b)
		out = append(append(out, head[:]...), content...)
	}
	add(block{kind: rawBlock, size: 1}, []byte("A"))
	for ; len(says) >= 3; says = says[3:] {
		kind, size, content := anyBlock(says[0], says[1], says[2])
		add(block{kind: kind, size: int64(size), last: len(says) < 6 && says[0]&128 != 0}, content)
		if len(says) < 6 && says[0]&128 != 0 {
			return out
		}
	}
	add(block{kind: rawBlock, last: true}, nil)
	return out
}

// FuzzZstBlocks compares the output of zeroSkipper with that of the plain decoder.
func FuzzZstBlocks(f *testing.F) {
	f.Add([]byte("\x00\x06a\x01\x06b\x06\x00\x00\x02\x07a\x00\x07b\x04\x00\x00\x05\x02\x01\x07\x00\x00"))
	f.Add([]byte("\x00\x06a\x01\x06b\x04\x01\x00\x02\x07a\x00\x07b\x04\x06\x00\x06\x02\x06\x80\x00\x00"))
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(d.Close)
	defer func(n int) { cores = n }(cores)
	f.Fuzz(func(t *testing.T, says []byte) {
		says = says[:min(len(says), 600)]
		file := anyFrame(says)
		want, wantErr := d.DecodeAll(file, nil)
		for _, cores = range []int{2, 8} {
			got, _, err := unpack(t, writeFile(t, "image", file), nil, 1<<40)
			if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, want) {
				t.Fatalf("on %d cores: %v, %d bytes; want %v, %d bytes", cores, err, len(got), wantErr, len(want))
			}
		}
	})
}
