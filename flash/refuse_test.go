package flash

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"slipway/flash/flashtest"
	"slipway/images"
)

// TestRefusedBeforeTheFirstByte tries what is wrong with an image, a board or a card
// on a real device that is confirmed already: nothing else stands between it and the
// image, and it stays as it was.
func TestRefusedBeforeTheFirstByte(t *testing.T) {
	a := little(t)
	img := image(t, a)
	packed, another := gzipped(t, img), gzipped(t, tabled(bytes.Repeat([]byte("another."), littleImage/8)))
	tests := []struct {
		name    string
		size    int64 // of the card; 0 is enough
		prepare func(t *testing.T, s *shelf, o *Options)
		board   string
		wantErr string
	}{
		{name: "a card with too little space", size: littleImage - 512, wantErr: "has 2.0 MiB (2096640 bytes), the image needs 2.0 MiB (2097152 bytes)"},
		{name: "a card with too little space for the unpacked image", size: littleImage - 512, prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "disk.img.gz", packed)
			o.Image, o.BlockMap = s.path("disk.img.gz"), s.path("disk.bmap")
		}, wantErr: "has 2.0 MiB (2096640 bytes), the image needs 2.0 MiB (2097152 bytes)"},
		{name: "a map of a larger image", prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "disk.img", append(slices.Clone(img), make([]byte, mib)...))
			o.Image, o.BlockMap = s.path("disk.img"), s.path("disk.bmap")
		}, wantErr: "the block map is of another image"},
		{name: "a map of another image of the same size", prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "disk.img", tabled(bytes.Repeat([]byte("another."), littleImage/8)))
			o.Image, o.BlockMap = s.path("disk.img"), s.path("disk.bmap")
		}, wantErr: "the block map has"},
		{name: "a map of another image of the same size, packed", prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "disk.img.gz", another)
			o.Image, o.BlockMap = s.path("disk.img.gz"), s.path("disk.bmap")
		}, wantErr: "; nothing was written"},
		{name: "a map that is none", prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "disk.bmap", []byte("<bmap version=\"2.0\"></bmap>"))
			o.Image, o.BlockMap = s.path("disk.img"), s.path("disk.bmap")
		}, wantErr: "disk.bmap: "},
		{name: "a map that is not there", prepare: func(_ *testing.T, s *shelf, o *Options) {
			o.Image, o.BlockMap = s.path("disk.img"), s.path("none.bmap")
		}, wantErr: "none.bmap"},
		{name: "an image that is not there", prepare: func(_ *testing.T, s *shelf, o *Options) {
			o.Image = s.path("none.img")
		}, wantErr: "none.img"},
		{name: "an image cut off while it was packed", prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "disk.img.gz", packed[:5])
			o.Image, o.BlockMap = s.path("disk.img.gz"), s.path("disk.bmap")
		}, wantErr: "disk.img.gz"},
		{name: "a wrong digest", prepare: func(_ *testing.T, s *shelf, o *Options) {
			o.Image, o.Digest = s.path("disk.img"), "sha256:"+sumOf([]byte("another"))
		}, wantErr: "want " + sumOf([]byte("another"))},
		{name: "a wrong digest of the board's own artifact", prepare: func(_ *testing.T, _ *shelf, o *Options) {
			o.Digest = "sha256:" + sumOf([]byte("another"))
		}, wantErr: "want " + sumOf([]byte("another"))},
		{name: "an unsigned image", prepare: func(t *testing.T, s *shelf, o *Options) {
			o.Image, o.Signers = s.path("disk.img"), newPerson(t, "ann").list
		}, wantErr: "is not signed"},
		{name: "another board's artifact", board: "other", wantErr: "is an artifact for board toy"},
		{name: "what to do with holes, misspelt", prepare: func(_ *testing.T, _ *shelf, o *Options) {
			o.Holes = "zeros"
		}, wantErr: "zeros"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.size == 0 {
				test.size = littleDevice
			}
			device, file := flashtest.Loop(t, test.size)
			before := read(t, file)
			o, board := Options{Yes: []string{device}}, spec
			if test.prepare != nil {
				test.prepare(t, newShelf(t, a), &o)
			}
			if test.board != "" {
				board = images.Spec{Board: test.board, Flash: spec.Flash}
			}
			_, err := Write(t.Context(), board, a, device, o)
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("Write = %v; want an error with %q", err, test.wantErr)
			}
			same(t, "device", read(t, file), before)
		})
	}
	if _, err := os.Stat(receiptOf(t, a)); err == nil {
		t.Error("what was refused left a receipt")
	}
}

// gzipped looks for no repetitions: under the race detector that takes seconds.
func gzipped(t *testing.T, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.HuffmanOnly)
	if err != nil {
		t.Fatal(err)
	}
	_, err = z.Write(p)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRefusedStepKeepsNames(t *testing.T) {
	if got, want := refusedStep("/tmp/$1", "name the whole disk, /dev/GIVEN"), "repeat the line with /dev/GIVEN for '/tmp/$1'"; got != want {
		t.Errorf("refusedStep = %q; want %q", got, want)
	}
}
