package source

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// A small first frame must not hide what the content is.
func TestLooksInsideSeveralSections(t *testing.T) {
	sparse := append([]byte("\x3a\xff\x26\xed"), random(4*kib)...)
	one, two := zstWithSize(t, sparse[:3]), zstWithSize(t, sparse[3:])
	_, _, err := unpack(t, writeFile(t, "image.zst", append(one, two...)), nil, 1<<30)
	if err == nil || !strings.Contains(err.Error(), "simg2img") {
		t.Errorf("%v; want an error about the sparse image inside", err)
	}
}

// zipWithFolders is an archive with more files than its end record states.
func zipWithFolders(t *testing.T, folders int) []byte {
	one := zipOf(t, zip.Store, []byte("the image"), "disk.img")
	at := bytes.Index(one, []byte("PK\x01\x02"))
	end := bytes.LastIndex(one, []byte(zipEnd))
	entry := bytes.Clone(one[at : at+46])
	copy(entry[28:], "\x01\x00\x00\x00\x00\x00") // a name of one byte, no more
	more := bytes.Repeat(append(entry, '/'), folders)
	return slices.Concat(one[:end], more, one[end:])
}

func TestZipThatSaysLess(t *testing.T) {
	// The library compares the number of files in 16 bits.
	_, _, err := unpack(t, writeFile(t, "image.zip", zipWithFolders(t, 1<<16)), nil, mib)
	if err == nil || !strings.Contains(err.Error(), "list of files") {
		t.Errorf("65536 folders that its end does not count: %v", err)
	}
	good := zipOf(t, zip.Store, []byte("the image"), "disk.img")
	end := bytes.LastIndex(good, []byte(zipEnd))
	other := bytes.Clone(good[end:])
	inComment := slices.Concat(good, other, []byte("rest"))
	binary.LittleEndian.PutUint16(inComment[end+20:], uint16(len(other)+4))
	if _, _, err := unpack(t, writeFile(t, "image.zip", inComment), nil, mib); err == nil {
		t.Error("a second end inside of the comment: no error")
	}
	commented := append(bytes.Clone(good), "a comment"...)
	commented[end+20] = 9
	if got, _, err := unpack(t, writeFile(t, "image.zip", commented), nil, mib); err != nil || string(got) != "the image" {
		t.Errorf("with a comment: %q, %v", got, err)
	}
}

// zstWithSize is one frame that says its size, and refers back not far.
func zstWithSize(t *testing.T, p []byte) []byte {
	e, err := zstd.NewWriter(nil, zstd.WithWindowSize(mib), zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(len(p) < mib))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	return e.EncodeAll(p, nil)
}
