package source

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	pieceBytes = 1 << 20 // no piece crosses a multiple of it
	alignment  = 4096    // the alignment that direct I/O needs on every current disk
	// A shorter run of zeros is sent as data, since an additional write costs more.
	minZeroBytes = 64 << 10
)

// Piece is a part of the unpacked image. If Data is nil it is Len zeros, any number of them. Else
// Data is at most 1 MiB, crosses no multiple of 1 MiB of Off, and is aligned to 4096 in memory.
type Piece struct {
	Off, Len int64
	Data     []byte

	memory *memory
}

// Free returns the piece's memory to its pool. Call it once or never: Go collects what is left.
func (p Piece) Free() {
	if p.memory != nil {
		p.memory.release()
	}
}

// memory holds one piece, or several that share it.
type memory struct {
	bytes []byte
	users atomic.Int32
}

var memoryPool = sync.Pool{New: func() any { return &memory{bytes: Buffer(pieceBytes)} }}

// getMemory takes memory for a piece from the pool, with one user.
func getMemory() *memory {
	m := memoryPool.Get().(*memory)
	m.users.Store(1)
	return m
}

// release ends one use of the memory. The last one returns it to the pool.
func (m *memory) release() {
	if m.users.Add(-1) == 0 {
		memoryPool.Put(m)
	}
}

// Buffer returns n bytes of memory that begin at a multiple of 4096, for direct I/O.
func Buffer(n int) []byte {
	p := make([]byte, n+alignment)
	skip := alignment - int(uintptr(unsafe.Pointer(&p[0]))%alignment)
	return p[skip : skip+n : skip+n]
}

// IsZero reports whether all bytes of p are zero.
func IsZero(p []byte) bool { return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1]) }

var manyZeros [64 << 10]byte

// WriteZeros writes n zeros to a digest, whose Write never fails.
func WriteZeros(digest io.Writer, n int64) {
	for ; n > 0; n -= int64(len(manyZeros)) {
		_, _ = digest.Write(manyZeros[:min(n, int64(len(manyZeros)))])
	}
}
