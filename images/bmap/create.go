package bmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	blockBytes = 4096
	// TileBytes divides an image into parts. No range crosses their borders, so that
	// writers and readers of a map can hash its ranges on all cores.
	TileBytes = 8 << 20
	// A shorter run of zero blocks stays in its range: another write costs more.
	minHoleBlocks = 16
)

type segment struct{ start, end int64 }

// Create returns the block map of the image in f, with digests. It leaves out the file system's
// holes, and runs of 64 KiB or more of zeros in the data. It moves f's offset.
func Create(ctx context.Context, f *os.File) (Map, error) {
	info, err := f.Stat()
	if err != nil {
		return Map{}, err
	}
	segments, err := dataSegments(f, info.Size())
	if err != nil {
		return Map{}, fmt.Errorf("find the holes of %s: %w", f.Name(), err)
	}
	tiles := splitByTile(segments)
	found := make([][]Range, len(tiles))
	if err := scanTiles(ctx, f, info.Size(), tiles, found); err != nil {
		return Map{}, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	m := Map{ImageSize: info.Size(), BlockSize: blockBytes}
	for _, ranges := range found {
		m.Ranges = append(m.Ranges, ranges...)
	}
	if err := m.validate(); err != nil {
		return Map{}, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	return m, nil
}

// dataSegments returns f's segments with data, as the file system reports. It moves f's offset.
func dataSegments(f *os.File, size int64) ([]segment, error) {
	var found []segment
	for at := int64(0); at < size; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if end <= start {
			return nil, errors.New("the file changes while it is read")
		}
		found = append(found, segment{start, min(end, size)})
		at = end
	}
	return found, nil
}

// splitByTile splits segments at multiples of TileBytes, in one group for each tile that has any.
func splitByTile(segments []segment) [][]segment {
	var tiles [][]segment
	last := int64(-1)
	for _, s := range segments {
		for s.start < s.end {
			number := s.start / TileBytes
			if number != last {
				tiles, last = append(tiles, nil), number
			}
			part := segment{s.start, min(s.end, (number+1)*TileBytes)}
			tiles[len(tiles)-1] = append(tiles[len(tiles)-1], part)
			s.start = part.end
		}
	}
	return tiles
}

// scanTiles reads and hashes the tiles on all cores, and stores the ranges of tile i in found[i].
func scanTiles(ctx context.Context, f io.ReaderAt, size int64, tiles [][]segment, found [][]Range) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(runtime.GOMAXPROCS(0), len(tiles)) {
		g.Go(func() error {
			buf := make([]byte, TileBytes)
			for i := next.Add(1) - 1; i < int64(len(tiles)); i = next.Add(1) - 1 {
				if err := context.Cause(ctx); err != nil {
					return err
				}
				var err error
				if found[i], err = scanTile(f, size, tiles[i], buf); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// scanTile reads the data segments of one tile into buf, and returns the tile's ranges.
func scanTile(f io.ReaderAt, size int64, data []segment, buf []byte) ([]Range, error) {
	start := data[0].start / TileBytes * TileBytes
	buf = buf[:min(TileBytes, size-start)]
	clear(buf)
	for _, s := range data {
		if _, err := f.ReadAt(buf[s.start-start:s.end-start], s.start); err != nil {
			return nil, err
		}
	}
	return Scan(buf, start), nil
}

// Scan returns the ranges with digests of p, the bytes of an image from off to the image's end or
// to a multiple of TileBytes. It skips runs of 64 KiB or more of zeros.
func Scan(p []byte, off int64) []Range {
	ranges := nonzeroRuns(p)
	m := Map{BlockSize: blockBytes, ImageSize: int64(len(p))}
	for i, r := range ranges {
		offset, length := m.Span(r)
		ranges[i] = Range{r.First + off/blockBytes, r.Last + off/blockBytes, hexDigest(p[offset : offset+length])}
	}
	return ranges
}

var zeros [blockBytes]byte

// nonzeroRuns returns the runs of nonzero blocks in p, without digests. It joins runs with fewer
// than minHoleBlocks zero blocks between them.
func nonzeroRuns(p []byte) []Range {
	var found []Range
	for at := 0; at < len(p); at += blockBytes {
		block := p[at:min(at+blockBytes, len(p))]
		if bytes.Equal(block, zeros[:len(block)]) {
			continue
		}
		n := int64(at / blockBytes)
		if len(found) > 0 && n-found[len(found)-1].Last <= minHoleBlocks {
			found[len(found)-1].Last = n
			continue
		}
		found = append(found, Range{First: n, Last: n})
	}
	return found
}
