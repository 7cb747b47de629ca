package lzma2

import "fmt"

// filter describes a filter that transformed a block's data before compression.
type filter struct {
	name  string
	width int // of each unit that it transforms
	undo  func(p []byte, at uint32, s *filterStage) int
	dist  int // of delta
}

const (
	idDelta = 3
	idLZMA2 = 0x21
)

// parseFilters parses a block's chain of n filters, of which LZMA2 is the last.
func (b *Block) parseFilters(r *fieldReader, n int) error {
	for i := range n {
		id := r.nextNumber()
		props := r.nextBytes(r.nextNumber())
		if r.bad || (id == idLZMA2) != (i == n-1) {
			return corruptError("the block at %d has filters in an order that cannot be", b.at)
		}
		if id == idLZMA2 {
			return b.parseDictionary(props)
		}
		if err := b.addFilter(id, props); err != nil {
			return err
		}
	}
	return nil
}

// addFilter adds a filter to the block's chain; an error if Slipway cannot undo it.
func (b *Block) addFilter(id uint64, props []byte) error {
	f, ok := xzFilters[id]
	switch {
	case !ok:
		return fmt.Errorf("the block at %d went through filter %#x, which is not known: pack it again with xz -6 -T0", b.at, id)
	case f.undo == nil:
		return fmt.Errorf("the block at %d went through the filter for programs of %s, which images are rarely packed with: pack it again with xz -6 -T0", b.at, f.name)
	case id == idDelta:
		if len(props) != 1 {
			return corruptError("the block at %d went through the filter delta with %d properties", b.at, len(props))
		}
		f.dist = int(props[0]) + 1
	case len(props) != 0:
		return fmt.Errorf("the block at %d went through the filter for programs of %s, with a place to begin: pack it again with xz -6 -T0", b.at, f.name)
	}
	b.chain = append(b.chain, f)
	return nil
}

// parseDictionary sets the dictionary's size, at most the block's; an error over MaxDictionary.
func (b *Block) parseDictionary(props []byte) error {
	if len(props) != 1 || props[0] > 40 {
		return corruptError("the block at %d has a dictionary of no size", b.at)
	}
	size := uint64(1<<32 - 1)
	if v := uint(props[0]); v < 40 {
		size = uint64(2|v&1) << (v/2 + 11)
	}
	// No match reaches back before the block.
	if size = min(size, uint64(max(b.Len, 4096))); size > MaxDictionary {
		return fmt.Errorf("the block at %d has a dictionary of %d MiB, and %d MiB is the most that is taken: pack it again with xz -6 -T0", b.at, size>>20, MaxDictionary>>20)
	}
	b.Dictionary = int(size)
	return nil
}

// xzFilters are the filters of xz. Those without a function are refused by name.
var xzFilters = map[uint64]filter{
	idDelta: {name: "delta", width: 1, undo: undoDelta},
	4:       {name: "x86"},
	5:       {name: "powerpc"},
	6:       {name: "ia64"},
	7:       {name: "arm", width: 4, undo: undoARM},
	8:       {name: "armthumb", width: 2, undo: undoThumb},
	9:       {name: "sparc"},
	10:      {name: "arm64", width: 4, undo: undoARM64},
	11:      {name: "riscv"},
}

// filterStage undoes a filter, and passes the result to out.
type filterStage struct {
	filter
	out     Out
	at      uint32 // position of the first byte in held
	pending []byte // not yet transformed
	past    [256]byte
}

func (f filter) newStage(out Out) *filterStage { return &filterStage{filter: f, out: out} }

const stageBytes = 64 << 10

func (s *filterStage) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		k := min(len(p), stageBytes)
		s.pending = append(s.pending, p[:k]...)
		p = p[k:]
		done := s.undo(s.pending, s.at, s)
		if _, err := s.out.Write(s.pending[:done]); err != nil {
			return 0, err
		}
		s.at += uint32(done)
		s.pending = s.pending[:copy(s.pending, s.pending[done:])]
	}
	return n, nil
}

// SkipZeros writes n zeros. It cannot skip them: what a filter makes of zeros depends on the bytes
// before.
func (s *filterStage) SkipZeros(n int64) error {
	for ; n > 0; n -= int64(len(zeroBlock)) {
		if _, err := s.Write(zeroBlock[:min(n, int64(len(zeroBlock)))]); err != nil {
			return err
		}
	}
	return nil
}

// flushPending sends the last bytes, which are too few for the filter.
func (s *filterStage) flushPending() error {
	_, err := s.out.Write(s.pending)
	s.pending = nil
	return err
}

// undoDelta adds to each byte the one at the filter's distance before. Their difference was stored.
func undoDelta(p []byte, at uint32, s *filterStage) int {
	for i := range p {
		place := (int(at) + i) & 0xff
		p[i] += s.past[(place-s.dist)&0xff]
		s.past[place] = p[i]
	}
	return len(p)
}

// undoARM turns the absolute targets of ARM's BL instructions back into relative ones. The filter
// made them absolute, because equal targets compress better.
func undoARM(p []byte, at uint32, _ *filterStage) int {
	i := 0
	for ; i+4 <= len(p); i += 4 {
		if p[i+3] == 0xeb {
			v := uint32(p[i]) | uint32(p[i+1])<<8 | uint32(p[i+2])<<16
			v = (v<<2 - (at + uint32(i) + 8)) >> 2
			p[i], p[i+1], p[i+2] = byte(v), byte(v>>8), byte(v>>16)
		}
	}
	return i
}

// undoThumb does the same as undoARM for the pair of instructions that is BL in Thumb.
func undoThumb(p []byte, at uint32, _ *filterStage) int {
	i := 0
	for ; i+4 <= len(p); i += 2 {
		if p[i+1]&0xf8 != 0xf0 || p[i+3]&0xf8 != 0xf8 {
			continue
		}
		v := uint32(p[i+1]&7)<<19 | uint32(p[i])<<11 | uint32(p[i+3]&7)<<8 | uint32(p[i+2])
		v = (v<<1 - (at + uint32(i) + 4)) >> 1
		p[i+1], p[i] = 0xf0|byte(v>>19&7), byte(v>>11)
		p[i+3], p[i+2] = 0xf8|byte(v>>8&7), byte(v)
		i += 2
	}
	return i
}

// undoARM64 does the same for ARM64's BL, and for ADRP with targets within 512 MiB.
func undoARM64(p []byte, at uint32, _ *filterStage) int {
	i := 0
	for ; i+4 <= len(p); i += 4 {
		v := uint32(p[i]) | uint32(p[i+1])<<8 | uint32(p[i+2])<<16 | uint32(p[i+3])<<24
		pc := at + uint32(i)
		switch {
		case v>>26 == 0x25:
			v = 0x94000000 | (v-pc>>2)&0x03ffffff
		case v&0x9f000000 == 0x90000000:
			src := v>>29&3 | v>>3&0x1ffffc
			if (src+0x020000)&0x1c0000 != 0 {
				continue
			}
			dest := src - pc>>12
			v = v&0x9000001f | dest&3<<29 | dest&0x3fffc<<3 | -(dest&0x020000)&0xe00000
		default:
			continue
		}
		p[i], p[i+1], p[i+2], p[i+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
	return i
}
