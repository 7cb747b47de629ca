package lzma2

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"slipway/flash/source/inflate"
)

// check computes the checksum of a block's content.
type check interface {
	inflate.Out
	checkSum() []byte
	checkBytes() int
}

// checks maps the format's check numbers to constructors.
var checks = [256]func() check{
	0:  func() check { return &cyclic{kind: inflate.IEEE} }, // which keeps no byte of the sum
	1:  func() check { return &cyclic{kind: inflate.IEEE, bytes: 4} },
	4:  func() check { return &cyclic{kind: inflate.ECMA, bytes: 8} },
	10: func() check { return digest{sha256.New()} },
}

type cyclic struct {
	kind  inflate.CRC
	now   uint64
	bytes int
}

func (c *cyclic) Write(p []byte) (int, error) {
	c.now = c.kind.Update(c.now, p)
	return len(p), nil
}

func (c *cyclic) SkipZeros(n int64) error {
	c.now = c.kind.Zeros(c.now, n)
	return nil
}

func (c *cyclic) checkSum() []byte { return binary.LittleEndian.AppendUint64(nil, c.now)[:c.bytes] }
func (c *cyclic) checkBytes() int  { return c.bytes }

type digest struct{ hash.Hash }

var zeroBlock [64 << 10]byte

// SkipZeros hashes n zeros, which its caller does not write. It never fails.
func (d digest) SkipZeros(n int64) error {
	for ; n > 0; n -= int64(len(zeroBlock)) {
		d.Write(zeroBlock[:min(n, int64(len(zeroBlock)))])
	}
	return nil
}

func (d digest) checkSum() []byte { return d.Sum(nil) }
func (d digest) checkBytes() int  { return d.Size() }

// checkedOutput passes a block's content to out, and computes its check.
type checkedOutput struct {
	check
	out  inflate.Out
	left int64 // bytes left, by the index
}

// Write adds b to the check and to out. More bytes than the index says are an error.
func (p *checkedOutput) Write(b []byte) (int, error) {
	if p.left -= int64(len(b)); p.left < 0 {
		return 0, errTooLong
	}
	p.check.Write(b)
	return p.out.Write(b)
}

// SkipZeros adds n zeros to the check and to out. It fails as Write does.
func (p *checkedOutput) SkipZeros(n int64) error {
	if p.left -= n; p.left < 0 {
		return errTooLong
	}
	p.check.SkipZeros(n)
	return p.out.SkipZeros(n)
}
