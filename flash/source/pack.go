package source

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"slipway/images/bmap"
)

const (
	// frameBytes is the most data in one of our frames: one piece. Frames of 8 MiB
	// would save less than 1 %.
	frameBytes = pieceBytes
	// holeBytes is the most zeros in one of our frames. Holes are cut into powers of two,
	// so that there are few different checksums of zeros.
	holeBytes = 16 << 20
	maxLevel  = 22
	// maxTiles is how many tiles are in memory at once.
	maxTiles = 12
)

// packer writes an image as frames of zstd with a table of them, and makes its block
// map. Each frame is a part of one range of the map, or only zeros. A flash can thus
// decode, verify and write frames in parallel. zstd -d unpacks the file too.
type packer struct {
	to      io.Writer     // nil: makes only the map
	encoder *zstd.Encoder // for several frames at once
	count   func(int64)   // of the image's bytes
	work    chan *tile    // to be packed
	ordered chan *tile    // all tiles, in the image's order
	free    chan []byte   // memory for tiles

	blocks bmap.Map
	at     int64 // end of the written part of the image
	table  []byte
	frames int64
}

// tile is a part of the image that passes through the packer.
type tile struct {
	off, len int64
	data     []byte // nil: zeros
	ranges   []bmap.Range
	packed   []packedFrame
	done     chan struct{} // closed once ranges and packed are set
}

type packedFrame struct {
	off, len int64
	bytes    []byte
}

func newPacker(to io.Writer, level int, algorithm string, count func(int64)) (*packer, error) {
	if level < 1 || level > maxLevel {
		return nil, fmt.Errorf("level %d; zstd has 1 to %d", level, maxLevel)
	}
	workers := cores
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)),
		zstd.WithEncoderConcurrency(workers), zstd.WithEncoderCRC(true), zstd.WithSingleSegment(true))
	if err != nil {
		return nil, err
	}
	tiles := min(2*workers+1, maxTiles)
	p := &packer{
		to: to, encoder: encoder, count: count,
		work: make(chan *tile), ordered: make(chan *tile, tiles), free: make(chan []byte, tiles),
		blocks: bmap.Map{BlockSize: alignment, Algorithm: algorithm},
	}
	for range tiles {
		p.free <- nil
	}
	return p, nil
}

// packImage packs the whole image.
func (p *packer) packImage(ctx context.Context, m *Image) (bmap.Map, error) {
	defer p.encoder.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(p.ordered)
		defer close(p.work)
		return p.readImage(ctx, m)
	})
	for range cores {
		g.Go(func() error {
			for t := range p.work {
				p.packTile(t)
			}
			return nil
		})
	}
	g.Go(func() error { return p.writeFrames(ctx) })
	if err := g.Wait(); err != nil {
		return bmap.Map{}, err
	}
	return p.blocks, nil
}

// readImage cuts the image into tiles.
func (p *packer) readImage(ctx context.Context, m *Image) error {
	var open *tile
	for i := range m.Sections() {
		err := m.Decode(ctx, i, nil, func(piece Piece) (err error) {
			defer piece.Free()
			for piece.Len > 0 && err == nil {
				piece, open, err = p.addToTile(ctx, piece, open)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := m.Finish(); err != nil {
		return err
	}
	return p.sendTile(ctx, open)
}

// addToTile adds the beginning of a piece to a tile. It returns the rest of the piece,
// and the tile unless it is full.
func (p *packer) addToTile(ctx context.Context, piece Piece, open *tile) (Piece, *tile, error) {
	if open == nil {
		open = &tile{off: piece.Off, done: make(chan struct{})}
		if many := piece.Len &^ (bmap.TileBytes - 1); piece.Data == nil && many > 0 {
			open.len = many
			return Piece{Off: piece.Off + many, Len: piece.Len - many}, nil, p.sendTile(ctx, open)
		}
		var err error
		if open.data, err = p.waitForMemory(ctx); err != nil {
			return piece, nil, err
		}
	}
	n := min(piece.Len, bmap.TileBytes-open.len)
	if piece.Data == nil {
		clear(open.data[open.len : open.len+n])
	} else {
		copy(open.data[open.len:], piece.Data[:n])
		piece.Data = piece.Data[n:]
	}
	open.len += n
	piece.Off, piece.Len = piece.Off+n, piece.Len-n
	if open.len < bmap.TileBytes {
		return piece, open, nil
	}
	return piece, nil, p.sendTile(ctx, open)
}

func (p *packer) waitForMemory(ctx context.Context) ([]byte, error) {
	select {
	case b := <-p.free:
		if b == nil {
			b = make([]byte, bmap.TileBytes)
		}
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// sendTile sends a tile to a worker, and to the writer.
func (p *packer) sendTile(ctx context.Context, t *tile) error {
	if t == nil {
		return nil
	}
	select {
	case p.ordered <- t:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if t.data == nil {
		close(t.done)
		return nil
	}
	select {
	case p.work <- t:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// packTile finds the ranges of a tile and makes frames of them.
func (p *packer) packTile(t *tile) {
	defer close(t.done)
	data := t.data[:t.len]
	t.ranges = bmap.Scan(data, t.off, p.blocks.Algorithm)
	if p.to == nil {
		return
	}
	for _, r := range t.ranges {
		end := min((r.Last+1)*alignment, t.off+t.len)
		for off := r.First * alignment; off < end; {
			n := min(frameBytes-off%frameBytes, end-off)
			frame := p.encoder.EncodeAll(data[off-t.off:off-t.off+n], nil)
			t.packed = append(t.packed, packedFrame{off, n, frame})
			off += n
		}
	}
}

// writeFrames writes the frames in order.
func (p *packer) writeFrames(ctx context.Context) error {
	for t := range p.ordered {
		select {
		case <-t.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.blocks.Ranges = append(p.blocks.Ranges, t.ranges...)
		p.blocks.ImageSize = t.off + t.len
		for _, f := range t.packed {
			if err := p.writeHoles(f.off); err != nil {
				return err
			}
			if err := p.writeFrame(f.bytes, f.len); err != nil {
				return err
			}
		}
		if t.data != nil {
			p.free <- t.data
		}
		p.count(t.len)
	}
	if ctx.Err() != nil || p.to == nil {
		return context.Cause(ctx)
	}
	if err := p.writeHoles(p.blocks.ImageSize); err != nil {
		return err
	}
	_, err := p.to.Write(p.tableFrame())
	return err
}

func (p *packer) writeFrame(b []byte, sizeBytes int64) error {
	p.table = binary.LittleEndian.AppendUint32(p.table, uint32(len(b)))
	p.table = binary.LittleEndian.AppendUint32(p.table, uint32(sizeBytes))
	p.at += sizeBytes
	if p.frames++; p.frames > maxFrames {
		return fmt.Errorf("its data lies in more than %d pieces; pack it with zstd", maxFrames)
	}
	_, err := p.to.Write(b)
	return err
}

// writeHoles writes zeros up to an offset.
func (p *packer) writeHoles(end int64) error {
	for p.at < end {
		n := min(int64(1)<<(bits.Len64(uint64(end-p.at))-1), holeBytes)
		if err := p.writeFrame(holeFrame(n), n); err != nil {
			return err
		}
	}
	return nil
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
	return binary.LittleEndian.AppendUint32(b, sumOfZeros(n))
}

// tableFrame returns the table of the frames, which readTable reads.
func (p *packer) tableFrame() []byte {
	head := binary.LittleEndian.AppendUint32(nil, tableMagic)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(p.table)+footerBytes))
	b := append(head, p.table...)
	b = binary.LittleEndian.AppendUint32(b, uint32(p.frames))
	return binary.LittleEndian.AppendUint32(append(b, 0), footerMagic)
}
