package source

import (
	"encoding/binary"
	"io"

	"slipway/flash/source/inflate"
)

type gz struct{ packedFile }

func openGz(f packedFile) (decoder, error) { return gz{f}, nil }

func (gz) sections() []Section { return []Section{{0, -1}} }

// leastBytes returns the size in the file's last 4 bytes: that of the last member, modulo 4 GiB.
func (g gz) leastBytes() int64 {
	var size [4]byte
	_, _ = g.ReadAt(size[:], max(0, g.sizeBytes-4)) // what cannot be read is found when it is unpacked
	return int64(binary.LittleEndian.Uint32(size[:]))
}

func (g gz) decodeSection(_ int, to *cutter) error {
	return inflate.Gzip(io.NewSectionReader(g.File, 0, g.sizeBytes), cutterOutput{to})
}

// cutterOutput is a cutter with the method names that the decoders need.
type cutterOutput struct{ *cutter }

func (u cutterOutput) SkipZeros(n int64) error { return u.skipZeros(n) }
