// Package dump turns a disk into an image with a block map: plain, or packed by zstd. Blocks that a
// file system does not use are zeros there. It writes nothing to the disk.
package dump

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"slipway/flash/source"
	"slipway/images/bmap"
)

// Disk is a disk to read. Its pieces follow each other.
type Disk struct {
	Pieces      []Piece
	SectorBytes int64
}

// Piece is a part of a disk, up to End. What a reader has at n is at Off+n of the disk.
type Piece struct {
	io.ReaderAt
	Off, End int64
	File     *os.File // has the same bytes as the reader. Programs open it
}

// SizeBytes returns the end of the last piece.
func (d Disk) SizeBytes() int64 { return d.Pieces[len(d.Pieces)-1].End }

// ReadAt reads from as many pieces as needed.
func (d Disk) ReadAt(p []byte, off int64) (done int, err error) {
	for _, piece := range d.Pieces {
		at := off + int64(done)
		if want := min(len(p)-done, int(piece.End-at)); want > 0 {
			n, err := piece.ReadAt(p[done:done+want], at-piece.Off)
			if done += n; n < want {
				return done, cmp.Or(err, io.ErrUnexpectedEOF)
			}
		}
	}
	if done < len(p) {
		err = io.EOF
	}
	return done, err
}

// ReadError is the error of a disk that cannot be read. It says where.
type ReadError struct{ Err error }

func (e ReadError) Error() string { return e.Err.Error() }

// Image is what was written.
type Image struct {
	Map   bmap.Map
	Parts []Part
}

// tile is a part of the disk of up to bmap.TileBytes. If nothing of a whole one is used, data is nil.
type tile struct {
	off, size int64
	data      []byte
	ranges    []bmap.Range
	packed    []byte
	done      chan struct{}
}

const blockBytes = 4096 // of block maps

// Write writes the disk to a new file, and passes the bytes done to count. A plain image is not
// longer than its data, and gets holes for zeros. Each 8 MiB are a frame of zstd of their own. sum
// gets the bytes of the file, with zeros for the holes up to the disk's end. Its errors are ignored.
func Write(ctx context.Context, disk Disk, to *os.File, sum io.Writer, pack bool, count func(int64)) (Image, error) {
	free, parts, err := findFree(ctx, disk)
	if err != nil {
		return Image{}, err
	}
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		return Image{}, err
	}
	defer encoder.Close()
	var zeros []byte // a packed tile; nil: a plain image
	if pack {
		zeros = encoder.EncodeAll(make([]byte, bmap.TileBytes), nil)
	}
	size := disk.SizeBytes()
	made := Image{Map: bmap.Map{ImageSize: size, BlockSize: blockBytes}, Parts: parts}
	g, ctx := errgroup.WithContext(ctx)
	tiles := make(chan *tile, runtime.GOMAXPROCS(0))
	g.Go(func() error { // reads one after the other; several are packed at once
		defer close(tiles)
		for off := int64(0); off < size; off += bmap.TileBytes {
			t := &tile{off: off, size: min(bmap.TileBytes, size-off), done: make(chan struct{})}
			if err := t.read(disk, free); err != nil {
				return err
			}
			go t.scan(encoder, zeros)
			select {
			case tiles <- t:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	g.Go(func() error {
		for t := range tiles {
			<-t.done
			made.Map.Ranges = append(made.Map.Ranges, t.ranges...)
			_, _ = sum.Write(t.packed)
			_, err := to.Write(t.packed)
			for i := 0; !pack && i < len(t.ranges) && err == nil; i++ {
				off, n := made.Map.Span(t.ranges[i])
				_, err = to.WriteAt(t.data[off-t.off:][:n], off)
			}
			if !pack {
				_, _ = sum.Write(t.data)
				source.WriteZeros(sum, t.size-int64(len(t.data)))
			}
			if err := cmp.Or(err, context.Cause(ctx)); err != nil {
				return err
			}
			count(t.size)
		}
		return nil
	})
	err = g.Wait()
	return made, err
}

// read reads the tile, unless all of it is free, and zeroes what is free.
func (t *tile) read(disk Disk, free []source.Span) error {
	end := t.off + t.size
	first, _ := slices.BinarySearchFunc(free, t.off, func(s source.Span, off int64) int { return cmp.Compare(s.Off+s.Len-1, off) })
	free = free[first:]
	if t.size == bmap.TileBytes && len(free) > 0 && free[0].Off <= t.off && free[0].Off+free[0].Len >= end {
		return nil
	}
	t.data = source.Buffer(int(t.size))
	if n, err := disk.ReadAt(t.data, t.off); int64(n) < t.size {
		return ReadError{fmt.Errorf("read at byte %d: %w", t.off+int64(n), cmp.Or(err, io.ErrUnexpectedEOF))}
	}
	for ; len(free) > 0 && free[0].Off < end; free = free[1:] {
		clear(t.data[max(free[0].Off, t.off)-t.off : min(free[0].Off+free[0].Len, end)-t.off])
	}
	return nil
}

// scan finds the ranges of the tile that are not zero. It packs the tile, unless zeros is nil: zeros
// is a packed tile of them.
func (t *tile) scan(encoder *zstd.Encoder, zeros []byte) {
	defer close(t.done)
	t.ranges = bmap.Scan(t.data, t.off)
	switch {
	case zeros == nil:
	case t.data == nil:
		t.packed = zeros
	default:
		t.packed = encoder.EncodeAll(t.data, nil)
	}
}
