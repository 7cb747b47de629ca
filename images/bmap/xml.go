package bmap

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const maxFileBytes = 64 << 20

// WriteTo writes the map as a bmap 2.0 file.
func (m Map) WriteTo(w io.Writer) (int64, error) {
	if err := m.check(); err != nil {
		return 0, fmt.Errorf("write block map: %w", err)
	}
	// The file's digest is that of itself with zeros in the digest's place.
	placeholder := strings.Repeat("0", 2*m.Hash().Size())
	var b bytes.Buffer
	fmt.Fprintf(&b, "<?xml version=\"1.0\" ?>\n<bmap version=\"2.0\">\n")
	fmt.Fprintf(&b, "    <ImageSize> %d </ImageSize>\n", m.ImageSize)
	fmt.Fprintf(&b, "    <BlockSize> %d </BlockSize>\n", m.BlockSize)
	fmt.Fprintf(&b, "    <BlocksCount> %d </BlocksCount>\n", m.blocks())
	fmt.Fprintf(&b, "    <MappedBlocksCount> %d </MappedBlocksCount>\n", m.mappedBlocks())
	fmt.Fprintf(&b, "    <ChecksumType> %s </ChecksumType>\n", m.Algorithm)
	fmt.Fprintf(&b, "    <BmapFileChecksum> ")
	at := b.Len()
	fmt.Fprintf(&b, "%s </BmapFileChecksum>\n    <BlockMap>\n", placeholder)
	for _, r := range m.Ranges {
		fmt.Fprintf(&b, "        <Range chksum=\"%s\"> %d-%d </Range>\n", r.Sum, r.First, r.Last)
	}
	fmt.Fprintf(&b, "    </BlockMap>\n</bmap>\n")
	file := b.Bytes()
	copy(file[at:], digest(m.Algorithm, file))
	n, err := w.Write(file)
	return int64(n), err
}

type document struct {
	XMLName   xml.Name
	Version   string `xml:"version,attr"`
	ImageSize string
	BlockSize string
	Blocks    string `xml:"BlocksCount"`
	Mapped    string `xml:"MappedBlocksCount"`
	Algorithm string `xml:"ChecksumType"`
	Checksum  string `xml:"BmapFileChecksum"`
	SHA1      string `xml:"BmapFileSHA1"`
	Ranges    []struct {
		Text     string `xml:",chardata"`
		Checksum string `xml:"chksum,attr"`
		SHA1     string `xml:"sha1,attr"`
	} `xml:"BlockMap>Range"`
}

// Read reads a bmap file and verifies its own digest. The map that it returns is
// well-formed: ascending ranges with digests, inside the image.
func Read(r io.Reader) (Map, error) {
	m, err := read(r)
	if err != nil {
		return Map{}, fmt.Errorf("read block map: %w", err)
	}
	return m, nil
}

func read(r io.Reader) (Map, error) {
	file, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return Map{}, err
	}
	if len(file) > maxFileBytes {
		return Map{}, fmt.Errorf("more than %d MiB", maxFileBytes>>20)
	}
	// Counted before the XML is taken apart, which costs many times its size.
	// A range has the word at its beginning and its end, whatever the prefix.
	if n := bytes.Count(file, []byte("Range")); n > 2*(maxRanges+commentRanges) {
		return Map{}, fmt.Errorf("about %d ranges; at most %d are taken", n/2, maxRanges)
	}
	var doc document
	if err := xml.Unmarshal(file, &doc); err != nil {
		return Map{}, err
	}
	if doc.XMLName.Local != "bmap" {
		return Map{}, fmt.Errorf("the file is a %q, not a bmap", doc.XMLName.Local)
	}
	if err := doc.settle(); err != nil {
		return Map{}, err
	}
	if err := doc.verify(file); err != nil {
		return Map{}, err
	}
	return doc.parse()
}

// settle brings the spelling of 1.3 to that of 2.0.
func (d *document) settle() error {
	switch d.Version {
	case "2.0", "1.4":
	case "1.3":
		d.Algorithm, d.Checksum = SHA1, d.SHA1
		for i := range d.Ranges {
			d.Ranges[i].Checksum = d.Ranges[i].SHA1
		}
	default:
		return fmt.Errorf("version %.20q; known are 1.3, 1.4 and 2.0", d.Version)
	}
	d.Algorithm = strings.TrimSpace(d.Algorithm)
	d.Checksum = strings.TrimSpace(d.Checksum)
	return nil
}

func (d *document) verify(file []byte) error {
	if d.Algorithm != SHA1 && d.Algorithm != SHA256 {
		return fmt.Errorf("checksum type %.20q; want %s or %s", d.Algorithm, SHA256, SHA1)
	}
	at := bytes.Index(file, []byte(d.Checksum))
	if d.Checksum == "" || at < 0 {
		return errors.New("the file's own digest is missing")
	}
	file = bytes.Clone(file)
	for i := range d.Checksum {
		file[at+i] = '0'
	}
	if got := digest(d.Algorithm, file); got != d.Checksum {
		return fmt.Errorf("the file is damaged: its %s is %s, it says %.80s", d.Algorithm, got, d.Checksum)
	}
	return nil
}

func (d *document) parse() (Map, error) {
	m := Map{Algorithm: d.Algorithm}
	var blocks, mapped int64
	for _, f := range []struct {
		name, text string
		to         *int64
	}{
		{"ImageSize", d.ImageSize, &m.ImageSize},
		{"BlockSize", d.BlockSize, &m.BlockSize},
		{"BlocksCount", d.Blocks, &blocks},
		{"MappedBlocksCount", d.Mapped, &mapped},
	} {
		var err error
		if *f.to, err = number(f.text); err != nil {
			return Map{}, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	for _, r := range d.Ranges {
		parsed, err := parseRange(r.Text)
		if err != nil {
			return Map{}, err
		}
		parsed.Sum = strings.ToLower(r.Checksum)
		m.Ranges = append(m.Ranges, parsed)
	}
	if err := m.check(); err != nil {
		return Map{}, err
	}
	if blocks != m.blocks() || mapped != m.mappedBlocks() {
		return Map{}, fmt.Errorf("it counts %d blocks, %d mapped; its ranges and sizes make %d, %d mapped", blocks, mapped, m.blocks(), m.mappedBlocks())
	}
	return m, nil
}

func parseRange(text string) (Range, error) {
	first, last, two := strings.Cut(text, "-")
	if !two {
		last = first
	}
	var r Range
	var err error
	if r.First, err = number(first); err != nil {
		return Range{}, fmt.Errorf("range %.40q: %w", text, err)
	}
	if r.Last, err = number(last); err != nil {
		return Range{}, fmt.Errorf("range %.40q: %w", text, err)
	}
	return r, nil
}

func number(text string) (int64, error) {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a number", text)
	}
	return int64(n), nil
}

func digest(algorithm string, p []byte) string {
	if algorithm == SHA1 {
		sum := sha1.Sum(p)
		return hex.EncodeToString(sum[:])
	}
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}
