package source

import (
	"io"

	"slipway/flash/source/inflate"
)

type gz struct{ packed }

func openGz(f packed) (decoder, error) { return gz{f}, nil }

func (gz) unpackedBytes() int64 { return -1 }
func (gz) sections() []Section  { return []Section{{0, -1}} }
func (g gz) finish() error      { return unchanged(g.packed) }
func (gz) close()               {}

func (g gz) decode(_ int, to *cutter) error {
	return inflate.Gzip(io.NewSectionReader(g.File, 0, g.sizeBytes), unpacked{to})
}

// unpacked is a cutter as decoders see it.
type unpacked struct{ *cutter }

func (u unpacked) SkipZeros(n int64) error { return u.skipZeros(n) }
