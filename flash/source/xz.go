package source

import (
	"context"

	"golang.org/x/sync/semaphore"

	"slipway/flash/source/lzma2"
)

// dictionaryBytes is what all blocks that are decoded side by side may take for what
// their matches reach back to: most of the memory that decoding takes.
const dictionaryBytes = lzma2.MaxDictionary

// xz decodes several blocks at once where a file has them, as those of "xz -T0" do.
type xz struct {
	file  *lzma2.File
	parts []Section
	first []int // block of each section, and the number of blocks
	most  int64 // the largest dictionary
	space *semaphore.Weighted
	turns turns
}

func openXz(f packed) (decoder, error) {
	file, err := lzma2.Open(f.File, f.sizeBytes)
	if err != nil {
		return nil, err
	}
	x := &xz{file: file, space: semaphore.NewWeighted(dictionaryBytes)}
	x.group()
	return x, nil
}
