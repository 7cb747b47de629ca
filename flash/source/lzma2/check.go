package lzma2

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"slipway/flash/source/crc"
)

// check is what proves a block.
type check interface {
	Out
	sum() []byte
	size() int
}

// checks are those that streams can have, by their number.
var checks = [256]func() check{
	0:  func() check { return none{} },
	1:  func() check { return &cyclic{kind: crc.IEEE, bytes: 4} },
	4:  func() check { return &cyclic{kind: crc.ECMA, bytes: 8} },
	10: func() check { return digest{sha256.New()} },
}

type none struct{}

func (none) Write(p []byte) (int, error) { return len(p), nil }
func (none) SkipZeros(int64) error       { return nil }
func (none) sum() []byte                 { return nil }
func (none) size() int                   { return 0 }

type cyclic struct {
	kind  crc.Kind
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

func (c *cyclic) sum() []byte { return binary.LittleEndian.AppendUint64(nil, c.now)[:c.bytes] }
func (c *cyclic) size() int   { return c.bytes }

type digest struct{ hash.Hash }

var zeroBlock [64 << 10]byte

func (d digest) SkipZeros(n int64) error {
	for ; n > 0; n -= int64(len(zeroBlock)) {
		d.Write(zeroBlock[:min(n, int64(len(zeroBlock)))])
	}
	return nil
}

func (d digest) sum() []byte { return d.Sum(nil) }
func (d digest) size() int   { return d.Size() }

// proved hands on a block's content, and proves it meanwhile.
type proved struct {
	check
	out  Out
	left int64 // that the index promises
}

func (p *proved) Write(b []byte) (int, error) {
	if p.left -= int64(len(b)); p.left < 0 {
		return 0, errTooLong
	}
	p.check.Write(b)
	return p.out.Write(b)
}

func (p *proved) SkipZeros(n int64) error {
	if p.left -= n; p.left < 0 {
		return errTooLong
	}
	p.check.SkipZeros(n)
	return p.out.SkipZeros(n)
}

func (p *proved) matches(sum []byte) bool { return p.left == 0 && bytes.Equal(p.sum(), sum) }
