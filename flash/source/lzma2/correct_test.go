package lzma2

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"slipway/flash/flashtest"
)

// mendSums writes the sums of the stream's header and footer, the index, and the first
// block's header, where these are in reach.
func mendSums(p []byte) {
	if len(p) < 3*headerBytes {
		return
	}
	correctSum := func(from, to, at int) {
		if from >= 0 && from < to && at+4 <= len(p) {
			binary.LittleEndian.PutUint32(p[at:], crc32.ChecksumIEEE(p[from:to]))
		}
	}
	n := len(p)
	correctSum(6, 8, 8)
	if size := (int(p[headerBytes]) + 1) * 4; headerBytes+size <= n {
		correctSum(headerBytes, headerBytes+size-4, headerBytes+size-4)
	}
	if size := (int64(binary.LittleEndian.Uint32(p[n-8:])) + 1) * 4; size <= int64(n-2*headerBytes) {
		correctSum(n-headerBytes-int(size), n-headerBytes-4, n-headerBytes-4)
	}
	correctSum(n-8, n-2, n-headerBytes)
}

// unpackChunks decodes LZMA2 as it is in a block.
func unpackChunks(p []byte, dictionary int) ([]byte, error) {
	w := workspace{src: bufio.NewReader(bytes.NewReader(p))}
	w.in = make([]byte, 1<<16+mostInput)
	w.ring = newRing(make([]byte, ringBytes(dictionary)), dictionary)
	out := &flashtest.Output{Limit: fuzzLimit}
	c := chunkReader{decoder: &w.decoder, src: w.src, out: out}
	err := c.readAll()
	return out.Bytes(), err
}
