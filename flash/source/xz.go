package source

import (
	"sync"

	"slipway/flash/source/lzma2"
)

// xz decodes the blocks of an xz file in parallel, if it has several, as those of "xz -T0" do.
type xz struct {
	packedFile
	file  *lzma2.File
	parts []Section
	first []int // block of each section, and the number of blocks
	share *dictionaries
}

func openXz(f packedFile) (decoder, error) {
	file, err := lzma2.Open(f.File, f.sizeBytes)
	if err != nil {
		return nil, err
	}
	x := &xz{packedFile: f, file: file, share: newDictionaries()}
	x.groupBlocks()
	return x, nil
}

// groupBlocks joins adjacent blocks to sections of up to sectionBytes. If the memory does not
// suffice for two dictionaries, all blocks become one section.
func (x *xz) groupBlocks() {
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
func (x *xz) checkRest() error    { return checkUnchanged(x.packedFile) }
func (x *xz) close()              {}

func (x *xz) decodeSection(i int, to *cutter) error {
	for b := x.first[i]; b < x.first[i+1]; b++ {
		if err := x.decodeBlock(b, to); err != nil {
			return err
		}
	}
	return nil
}

func (x *xz) decodeBlock(i int, to *cutter) error {
	need := x.file.Blocks[i].Dictionary
	x.share.acquire(i, need)
	defer x.share.release(i, need)
	return x.file.Decode(i, cutterOutput{to})
}

// dictionaryBytes limits the dictionaries of all blocks that are decoded in parallel. They are most
// of the memory for decoding.
const dictionaryBytes = lzma2.MaxDictionary

// dictionaries shares that memory between the blocks. The pieces of a block are consumed only after
// all before it, so a block must never wait for the memory of later ones: the first block gets its
// memory in any case. That is rare, because blocks begin in order.
type dictionaries struct {
	mu      sync.Mutex
	free    *sync.Cond
	used    int
	holders map[int]bool // by block
}

func newDictionaries() *dictionaries {
	d := &dictionaries{holders: map[int]bool{}}
	d.free = sync.NewCond(&d.mu)
	return d
}

func (d *dictionaries) acquire(block, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.used+n > dictionaryBytes && !d.isFirst(block) {
		d.free.Wait()
	}
	d.used += n
	d.holders[block] = true
}

// isFirst reports whether all holders of memory are later than block.
func (d *dictionaries) isFirst(block int) bool {
	for other := range d.holders {
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
	delete(d.holders, block)
	d.free.Broadcast()
}
