package lzma2

import "fmt"

// filter is what a block's data went through before it was packed.
type filter struct {
	name  string
	width int // of each step that is looked at
	apply func(p []byte, at uint32, s *stage) int
	dist  int // of delta
}

const (
	idDelta = 3
	idLZMA2 = 0x21
)

// filters reads a block's chain of n filters, of which LZMA2 is the last.
func (b *Block) filters(r *fields, n int) error {
	for i := range n {
		id := r.number()
		props := r.next(r.number())
		if r.bad || (id == idLZMA2) != (i == n-1) {
			return corrupt("the block at %d has filters in an order that cannot be", b.at)
		}
		if id == idLZMA2 {
			return b.dictionary(props)
		}
		if err := b.filter(id, props); err != nil {
			return err
		}
	}
	return nil
}

func (b *Block) filter(id uint64, props []byte) error {
	f, ok := known[id]
	switch {
	case !ok:
		return fmt.Errorf("the block at %d went through filter %#x, which is not known: pack it again with xz -6 -T0", b.at, id)
	case f.apply == nil:
		return fmt.Errorf("the block at %d went through the filter for programs of %s, which images are rarely packed with: pack it again with xz -6 -T0", b.at, f.name)
	case id == idDelta:
		if len(props) != 1 {
			return corrupt("the block at %d went through the filter delta with %d properties", b.at, len(props))
		}
		f.dist = int(props[0]) + 1
	case len(props) != 0:
		return fmt.Errorf("the block at %d went through the filter for programs of %s, with a place to begin: pack it again with xz -6 -T0", b.at, f.name)
	}
	b.chain = append(b.chain, f)
	return nil
}

func (b *Block) dictionary(props []byte) error {
	if len(props) != 1 || props[0] > 40 {
		return corrupt("the block at %d has a dictionary of no size", b.at)
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

// known are the filters of xz. Those without a function are refused by their name.
var known = map[uint64]filter{
	idDelta: {name: "delta", width: 1, apply: addBefore},
	4:       {name: "x86"},
	5:       {name: "powerpc"},
	6:       {name: "ia64"},
	7:       {name: "arm", width: 4, apply: arm},
	8:       {name: "armthumb", width: 2, apply: armthumb},
	9:       {name: "sparc"},
	10:      {name: "arm64", width: 4, apply: arm64},
	11:      {name: "riscv"},
}

// stage puts back what a filter changed, and hands it on.
type stage struct {
	filter
	out  Out
	at   uint32 // position of the first byte in held
	held []byte // that the filter has not done yet
	past [256]byte
}

func (f filter) stage(out Out) *stage { return &stage{filter: f, out: out} }

const stageBytes = 64 << 10

func (s *stage) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		k := min(len(p), stageBytes)
		s.held = append(s.held, p[:k]...)
		p = p[k:]
		done := s.apply(s.held, s.at, s)
		if _, err := s.out.Write(s.held[:done]); err != nil {
			return 0, err
		}
		s.at += uint32(done)
		s.held = s.held[:copy(s.held, s.held[done:])]
	}
	return n, nil
}

// SkipZeros cannot skip: what a filter makes of zeros depends on what is before.
func (s *stage) SkipZeros(n int64) error {
	for ; n > 0; n -= int64(len(zeroBlock)) {
		if _, err := s.Write(zeroBlock[:min(n, int64(len(zeroBlock)))]); err != nil {
			return err
		}
	}
	return nil
}

// flush hands on what was too short for the filter.
func (s *stage) flush() error {
	_, err := s.out.Write(s.held)
	s.held = nil
	return err
}

// addBefore undoes delta: each byte was stored as its difference to one before.
func addBefore(p []byte, at uint32, s *stage) int {
	for i := range p {
		place := (int(at) + i) & 0xff
		p[i] += s.past[(place-s.dist)&0xff]
		s.past[place] = p[i]
	}
	return len(p)
}

// arm undoes BL: its target was stored as an address, which repeats more often than
// what it is in the program, a distance.
func arm(p []byte, at uint32, _ *stage) int {
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

// armthumb undoes the pair of instructions that is BL there.
func armthumb(p []byte, at uint32, _ *stage) int {
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

// arm64 undoes BL, and ADRP of what lies within 512 MiB.
func arm64(p []byte, at uint32, _ *stage) int {
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
