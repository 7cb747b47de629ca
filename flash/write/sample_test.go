package write

import (
	"math/rand/v2"
	"strings"
	"testing"

	"slipway/flash/source"
)

// largeContent is an image of three ranges and more, which begin in different sections.
func largeContent() []byte {
	p := make([]byte, 18*mib)
	random := rand.NewChaCha8([32]byte{2})
	for _, s := range [][2]int{{0, mib}, {8*mib + mib/2, 9 * mib}, {16 * mib, 17 * mib}, {18*mib - 4096, 18 * mib}} {
		random.Read(p[s[0]:s[1]])
	}
	return p
}

// The map of another image is found where the two differ in what is proved first.
func TestSample(t *testing.T) {
	sound := pack(t, largeContent(), "raw")
	for _, test := range []struct {
		name    string
		at      int
		form    string
		wantErr bool
	}{
		{"the same", -1, "raw", false},
		{"the same, packed", -1, "gz", false},
		{"another beginning", 4096, "raw", true},
		{"another beginning, packed", 4096, "gz", true},
		{"another middle", 8*mib + mib/2 + 77, "raw", true},
		{"another one behind the middle", 16*mib + 9, "raw", true},
		{"another middle, which only decoding all before it shows", 8*mib + mib/2 + 77, "gz", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := largeContent()
			if test.at >= 0 {
				p[test.at] ^= 1
			}
			g := pack(t, p, test.form)
			o := sound.options()
			err := Sample(t.Context(), g.Image, o)
			if test.wantErr != (err != nil) || err != nil && !strings.Contains(err.Error(), "the block map has") {
				t.Errorf("Sample = %v; want an error: %v", err, test.wantErr)
			}
		})
	}
}

// An image that ends before its map's first range does is refused too.
func TestSampleShort(t *testing.T) {
	sound, short := pack(t, content(), "raw"), pack(t, content()[:mib], "gz")
	if err := Sample(t.Context(), short.Image, sound.options()); err == nil || !strings.Contains(err.Error(), "unpacks to less") {
		t.Errorf("Sample = %v; want it to say that the image is short", err)
	}
}

// The cost of a range is bounded, even where a map has one range for a large image.
func TestSampledIsBounded(t *testing.T) {
	stream, plain := pack(t, []byte("tiny"), "gz"), pack(t, []byte("tiny"), "raw")
	all := []source.Span{{Off: 0, Len: firstBytes + 1}}
	if got := sampledRanges(plain.Image, all); len(got) != 0 {
		t.Errorf("sampled = %v; want nothing of a range that is too long", got)
	}
	ranges := []source.Span{{Off: 0, Len: mib}, {Off: 2 * mib, Len: mib}, {Off: 30 * mib, Len: mib}, {Off: 90 * mib, Len: mib}}
	if got := sampledRanges(stream.Image, ranges); len(got) != 2 || got[1] != 1 {
		t.Errorf("sampled = %v of a stream; want the first two", got)
	}
	if got := sampledRanges(plain.Image, ranges); len(got) != 3 || got[2] != 2 {
		t.Errorf("sampled = %v of a plain image; want one in each part", got)
	}
	if got := sampledRanges(plain.Image, nil); len(got) != 0 {
		t.Errorf("sampled = %v of an empty map", got)
	}
}
