package source

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/google/renameio/v2"

	"slipway/images/bmap"
	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// Made is the result of MapFile.
type Made struct {
	Image       string `json:"image"`
	Form        string `json:"form"`
	ImageBytes  int64  `json:"imageBytes"`
	MappedBytes int64  `json:"mappedBytes"`
	Ranges      int    `json:"ranges"`
	Map         string `json:"map"`
}

// MapFile writes or replaces path+".bmap", the block map of the image at path, and shows progress.
func MapFile(ctx context.Context, path string) (Made, error) {
	f, err := localfile.Open(path)
	if err != nil {
		return Made{}, localfile.ExplainUnreadable(path, err)
	}
	defer f.Close()
	m, err := Open(f, path)
	if err != nil {
		return Made{}, err
	}
	step := progress.Start(ctx, "map", max(0, m.SizeBytes()), progress.Bytes)
	blocks, err := m.makeMap(ctx, step.Add)
	step.End(fmt.Sprintf("%d of %d MiB are data", blocks.Mapped()>>20, blocks.ImageSize>>20), err)
	var b bytes.Buffer
	if err == nil {
		_, err = blocks.WriteTo(&b)
	}
	if err != nil {
		return Made{}, err
	}
	return Made{
		Image: path, Form: m.Form(), ImageBytes: blocks.ImageSize, MappedBytes: blocks.Mapped(),
		Ranges: len(blocks.Ranges), Map: path + ".bmap",
	}, renameio.WriteFile(path+".bmap", b.Bytes(), 0o644)
}

// makeMap decodes and verifies the image, and returns its block map. It scans bmap.TileBytes at a
// time, and passes the number of bytes done to count.
func (m *Image) makeMap(ctx context.Context, count func(int64)) (bmap.Map, error) {
	blocks := bmap.Map{BlockSize: alignment}
	tile := make([]byte, 0, bmap.TileBytes)
	addTile := func() {
		blocks.Ranges = append(blocks.Ranges, bmap.Scan(tile, blocks.ImageSize)...)
		blocks.ImageSize += int64(len(tile))
		count(int64(len(tile)))
		tile = tile[:0]
	}
	for i := range m.Sections() {
		err := m.Decode(ctx, i, nil, func(piece Piece) error {
			defer piece.Free()
			for piece.Len > 0 {
				if whole := piece.Len &^ (bmap.TileBytes - 1); piece.Data == nil && whole > 0 && len(tile) == 0 {
					blocks.ImageSize, piece.Len = blocks.ImageSize+whole, piece.Len-whole
					count(whole)
					continue
				}
				at, n := len(tile), min(piece.Len, int64(cap(tile)-len(tile)))
				tile = tile[:at+int(n)]
				if piece.Data == nil {
					clear(tile[at:])
				} else {
					copy(tile[at:], piece.Data)
					piece.Data = piece.Data[n:]
				}
				if piece.Len -= n; len(tile) == cap(tile) {
					addTile()
				}
			}
			return context.Cause(ctx)
		})
		if err != nil {
			return blocks, err
		}
	}
	if err := m.CheckUnchanged(); err != nil {
		return blocks, err
	}
	addTile()
	return blocks, nil
}

// Show prints the result as text.
func (m Made) Show(w io.Writer) error {
	fmt.Fprintf(w, "%s (%s): %d MiB, of which %d MiB are data in %d ranges\n", m.Image, m.Form, m.ImageBytes>>20, m.MappedBytes>>20, m.Ranges)
	_, err := fmt.Fprintln(w, m.Map)
	return err
}
