package flashtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
)

// Output is a buffer for a decoder's output, with an optional limit.
type Output struct {
	bytes.Buffer
	Zeros int64 // that were skipped
	Limit int   // 0: none
}

// ErrTooMuch is the error of an Output beyond its limit.
var ErrTooMuch = errors.New("more than the test takes")

// Write adds p to the buffer, or nothing of it if the limit would be exceeded.
func (o *Output) Write(p []byte) (int, error) {
	if o.Limit > 0 && o.Len()+len(p) > o.Limit {
		return 0, ErrTooMuch
	}
	return o.Buffer.Write(p)
}

// SkipZeros writes n zeros and adds n to Zeros.
func (o *Output) SkipZeros(n int64) error {
	o.Zeros += n
	_, err := o.Write(make([]byte, n))
	return err
}

// Random returns n incompressible bytes, always the same for one n.
func Random(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(p)
	return p
}

// Text returns n bytes that repeat at all distances, as text does.
func Text(n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 7))
	var b bytes.Buffer
	for b.Len() < n {
		switch r.IntN(8) {
		case 0:
			b.Write(bytes.Repeat([]byte{byte(r.IntN(4))}, r.IntN(900)))
		case 1, 2:
			back := 1 + r.IntN(min(b.Len(), 70_000)+1)
			from := max(0, b.Len()-back)
			b.Write(slices.Clone(b.Bytes()[from:min(b.Len(), from+r.IntN(400))]))
		default:
			fmt.Fprintf(&b, "line %d of %x\n", r.IntN(1000), r.IntN(1<<20))
		}
	}
	return b.Bytes()[:n]
}
