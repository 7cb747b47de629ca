package inflate

import (
	"hash/crc32"
	"hash/crc64"
	"sync"
)

// CRC is a checksum of gzip or xz, with reflected and inverted bits. It can skip zeros.
type CRC struct {
	update func(sum uint64, p []byte) uint64
	ones   uint64 // all bits
	steps  func() *[32]matrix
}

var (
	// IEEE is the CRC-32 of gzip and xz, ECMA the CRC-64 of xz.
	IEEE = newCRC(crc32.IEEE, 1<<32-1, func(sum uint64, p []byte) uint64 {
		return uint64(crc32.Update(uint32(sum), crc32.IEEETable, p))
	})
	ecma = crc64.MakeTable(crc64.ECMA)
	ECMA = newCRC(crc64.ECMA, 1<<64-1, func(sum uint64, p []byte) uint64 {
		return crc64.Update(sum, ecma, p)
	})
)

// matrix is a linear map of checksums. It has each bit's image; a checksum's is the sum of those.
type matrix [64]uint64

// multiply applies the matrix to a checksum.
func (m *matrix) multiply(v uint64) uint64 {
	sum := uint64(0)
	for i := 0; v != 0; i, v = i+1, v>>1 {
		sum ^= m[i] & -(v & 1)
	}
	return sum
}

func newCRC(poly, ones uint64, update func(uint64, []byte) uint64) CRC {
	return CRC{update: update, ones: ones, steps: sync.OnceValue(func() *[32]matrix { return zeroSteps(poly) })}
}

// zeroSteps returns the matrices that advance a checksum by 1, 2, 4, 8 … zero bytes.
func zeroSteps(poly uint64) *[32]matrix {
	steps := new([32]matrix)
	for bit := range 64 {
		v := uint64(1) << bit
		for range 8 {
			v = v>>1 ^ poly&-(v&1)
		}
		steps[0][bit] = v
	}
	for k := 1; k < len(steps); k++ {
		for bit := range 64 {
			steps[k][bit] = steps[k-1].multiply(steps[k-1][bit])
		}
	}
	return steps
}

// Update returns the sum after the bytes p. The sum of no bytes is 0.
func (k CRC) Update(sum uint64, p []byte) uint64 { return k.update(sum, p) }

// Zeros returns the sum after n zero bytes, in time proportional to log n.
func (k CRC) Zeros(sum uint64, n int64) uint64 {
	steps := k.steps()
	sum ^= k.ones
	for ; n >= 1<<31; n -= 1 << 31 {
		sum = steps[31].multiply(sum)
	}
	for i := 0; n > 0; i, n = i+1, n>>1 {
		if n&1 != 0 {
			sum = steps[i].multiply(sum)
		}
	}
	return sum ^ k.ones
}
