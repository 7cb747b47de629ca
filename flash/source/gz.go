package source

import (
	"bufio"
	"io"

	"github.com/klauspost/compress/gzip"
)

type gz struct{ packed }

func openGz(f packed) (decoder, error) { return gz{f}, nil }

func (gz) unpackedBytes() int64 { return -1 }
func (gz) sections() []Section  { return []Section{{0, -1}} }
func (gz) finish() error        { return nil }
func (gz) close()               {}

func (g gz) decode(_ int, to *cutter) error {
	r, err := gzip.NewReader(bufio.NewReaderSize(io.NewSectionReader(g.File, 0, g.sizeBytes), pieceBytes))
	if err != nil {
		return err
	}
	_, err = io.Copy(to, r)
	return err
}
