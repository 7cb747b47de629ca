package source

import (
	"sync"

	"slipway/flash/source/lzma2"
)

// xz decodes several blocks at once where a file has them, as those of "xz -T0" do.
type xz struct {
	packed
	file  *lzma2.File
	parts []Section
	first []int // block of each section, and the number of blocks
	share *dictionaries
}

func openXz(f packed) (decoder, error) {
	file, err := lzma2.Open(f.File, f.sizeBytes)
	if err != nil {
		return nil, err
	}
	x := &xz{packed: f, file: file, share: newDictionaries()}
	x.group()
	return x, nil
}

// group makes sections of blocks, so that what is decoded by itself is not tiny. All
// are one section where the memory for two dictionaries is not there.
func (x *xz) group() {
	largest := 0
	for _, b := range x.file.Blocks {
		largest = max(largest, b.Dictionary)
	}
	alone := largest > dictionaryBytes/2
	for i, b := range x.file.Blocks {
		if n := len(x.parts); n > 0 && (alone || x.parts[n-1].Len+b.Len <= sectionBytes) {
			x.parts[n-1].Len += b.Len
			continue
		}
		x.parts, x.first = append(x.parts, Section{b.Off, b.Len}), append(x.first, i)
	}
	if x.parts == nil { // the image is empty
		x.parts, x.first = []Section{{}}, []int{0}
	}
	x.first = append(x.first, len(x.file.Blocks))
}

func (x *xz) unpackedBytes() int64 {
	last := x.parts[len(x.parts)-1]
	return last.Off + last.Len
}

func (x *xz) sections() []Section { return x.parts }
func (x *xz) finish() error       { return unchanged(x.packed) }
func (x *xz) close()              {}

func (x *xz) decode(i int, to *cutter) error {
	for b := x.first[i]; b < x.first[i+1]; b++ {
		if err := x.block(b, to); err != nil {
			return err
		}
	}
	return nil
}

func (x *xz) block(i int, to *cutter) error {
	need := x.file.Blocks[i].Dictionary
	x.share.acquire(i, need)
	defer x.share.release(i, need)
	return x.file.Decode(i, unpacked{to})
}

// dictionaryBytes is what all blocks that are decoded side by side may have for what
// their matches reach back to: most of the memory that decoding takes.
const dictionaryBytes = lzma2.MaxDictionary

// dictionaries shares that out. Who takes pieces may take those of a block only after
// all before it, so that a block never waits for memory which later ones have: it gets
// it in any case. That is rare, as blocks are begun in their order.
type dictionaries struct {
	mu   sync.Mutex
	free *sync.Cond
	used int
	held map[int]bool // by block
}

func newDictionaries() *dictionaries {
	d := &dictionaries{held: map[int]bool{}}
	d.free = sync.NewCond(&d.mu)
	return d
}

func (d *dictionaries) acquire(block, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.used+n > dictionaryBytes && !d.before(block) {
		d.free.Wait()
	}
	d.used += n
	d.held[block] = true
}

// before says whether all who have memory are later than block.
func (d *dictionaries) before(block int) bool {
	for other := range d.held {
		if other < block {
			return false
		}
	}
	return true
}

func (d *dictionaries) release(block, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used -= n
	delete(d.held, block)
	d.free.Broadcast()
}
