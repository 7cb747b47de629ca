package source

import "slipway/flash/source/lzma2"

// dictionaryBytes limits the dictionaries of all blocks that are decoded in parallel.
const dictionaryBytes = lzma2.MaxDictionary

// xz decodes the blocks of an xz file in parallel, if it has several, as those of "xz -T0" do.
type xz struct {
	file    *lzma2.File
	parts   []Section
	first   []int // block of each section, and the number of blocks
	largest int   // dictionary
}

func openXz(f packedFile) (decoder, error) {
	file, err := lzma2.Open(f.File, f.sizeBytes)
	if err != nil {
		return nil, err
	}
	x := &xz{file: file, largest: 1}
	x.groupBlocks()
	return x, nil
}

// groupBlocks joins adjacent blocks to sections of up to sectionBytes, or all if the memory does
// not suffice for two dictionaries. A larger block is one. It sets x.largest, of all dictionaries.
func (x *xz) groupBlocks() {
	for _, b := range x.file.Blocks {
		x.largest = max(x.largest, b.Dictionary)
	}
	alone := x.largest > dictionaryBytes/2
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

func (x *xz) sections() []Section { return x.parts }

// parallel returns how many sections may be decoded at once, limited by their dictionaries.
func (x *xz) parallel() int { return max(1, dictionaryBytes/x.largest) }

func (x *xz) decodeSection(i int, to *cutter) error {
	for b := x.first[i]; b < x.first[i+1]; b++ {
		if err := x.file.Decode(b, cutterOutput{to}); err != nil {
			return err
		}
	}
	return nil
}
