package fetch

import (
	"context"
	"io"
	"strings"
	"unicode"

	"slipway/layers/plaintext"
)

var hexPattern = plaintext.Regexp(`^[0-9a-f]{64}$`)

// countingReader reports the bytes read through it. It fails once its context ends.
type countingReader struct {
	ctx   context.Context
	in    io.Reader
	count func(int64)
}

func (c *countingReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.in.Read(p)
	c.count(int64(n))
	return n, err
}

// printable replaces the characters that a terminal must not receive by question marks.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
