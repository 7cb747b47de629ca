package lzma2

import (
	"cmp"
	"fmt"
)

const idLZMA2 = 0x21

// xzFilters are the filters that xz can run before LZMA2. Slipway undoes none: images use none.
var xzFilters = map[uint64]string{
	3: "delta", 4: "x86", 5: "powerpc", 6: "ia64", 7: "arm", 8: "armthumb", 9: "sparc", 10: "arm64", 11: "riscv",
}

// parseFilters parses n filters and sets the dictionary. Any filter but LZMA2 is an error.
func (b *Block) parseFilters(r *fieldReader, n int) error {
	id := r.nextNumber()
	props := r.nextBytes(r.nextNumber())
	switch {
	case r.bad || (id == idLZMA2) != (n == 1):
		return corruptError("the block at %d has filters in an order that cannot be", b.at)
	case id != idLZMA2:
		name := cmp.Or(xzFilters[id], fmt.Sprintf("%#x", id))
		return fmt.Errorf("the block at %d went through the filter %s, which images are rarely packed with: pack it again with xz -6 -T0", b.at, name)
	}
	return b.parseDictionary(props)
}

// parseDictionary sets the dictionary's size, at most b.Len or 4096. Over MaxDictionary it fails.
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
