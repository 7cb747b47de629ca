package inflate

import "testing"

func TestChecksumOfZeros(t *testing.T) {
	zeros := make([]byte, 1<<20)
	for name, k := range map[string]CRC{"IEEE": IEEE, "ECMA": ECMA} {
		before := k.Update(0, []byte("before"))
		for _, n := range []int64{0, 1, 7, 4096, 131_072 + 4095, 1<<20 - 1} {
			if got, want := k.Zeros(before, n), k.Update(before, zeros[:n]); got != want {
				t.Errorf("%s: %d zeros make %#x; want %#x", name, n, got, want)
			}
		}
		// Those that are too many to look at must be what half of them make twice.
		if got, want := k.Zeros(before, 3<<31), k.Zeros(k.Zeros(before, 3<<30), 3<<30); got != want {
			t.Errorf("%s: %d zeros make %#x; want %#x", name, int64(3)<<31, got, want)
		}
	}
}
