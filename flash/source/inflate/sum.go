package inflate

import "hash/crc32"

// zeroSteps[k] is what 1<<k zero bytes make of a checksum, as a matrix of bits: column
// i says what comes of bit i alone. A checksum is linear, so that the columns of all
// set bits are added.
var zeroSteps = func() (steps [18][32]uint32) {
	for bit := range 32 {
		v := uint32(1) << bit
		for range 8 {
			v = v>>1 ^ crc32.IEEE&-(v&1)
		}
		steps[0][bit] = v
	}
	for k := 1; k < len(steps); k++ {
		for bit := range 32 {
			steps[k][bit] = apply(&steps[k-1], steps[k-1][bit])
		}
	}
	return steps
}()

func apply(m *[32]uint32, v uint32) uint32 {
	sum := uint32(0)
	for i := 0; v != 0; i, v = i+1, v>>1 {
		sum ^= m[i] & -(v & 1)
	}
	return sum
}

// zerosSum is crc32.Update with n zeros, fewer than 1<<len(zeroSteps), without
// looking at them.
func zerosSum(sum uint32, n int) uint32 {
	sum = ^sum
	for k := 0; n > 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			sum = apply(&zeroSteps[k], sum)
		}
	}
	return ^sum
}
