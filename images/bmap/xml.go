package bmap

import (
	"bytes"
	"cmp"
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

// The only version of the format and the only kind of digest that bmaptool writes since its 3.0.
const (
	fileVersion = "2.0"
	digestType  = "sha256"
)

// WriteTo writes the map as a file of version 2.0. An invalid map is an error.
func (m Map) WriteTo(w io.Writer) (int64, error) {
	if err := m.validate(); err != nil {
		return 0, fmt.Errorf("write block map: %w", err)
	}
	n, err := w.Write(m.encode())
	return int64(n), err
}

// encode returns the map as XML of version 2.0, with the file's own digest in its place.
func (m Map) encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<?xml version=\"1.0\" ?>\n<bmap version=\"%s\">\n", fileVersion)
	fmt.Fprintf(&b, "    <ImageSize> %d </ImageSize>\n", m.ImageSize)
	fmt.Fprintf(&b, "    <BlockSize> %d </BlockSize>\n", m.BlockSize)
	fmt.Fprintf(&b, "    <BlocksCount> %d </BlocksCount>\n", m.blockCount())
	fmt.Fprintf(&b, "    <MappedBlocksCount> %d </MappedBlocksCount>\n", m.mappedBlockCount())
	fmt.Fprintf(&b, "    <ChecksumType> %s </ChecksumType>\n", digestType)
	// The file's digest is that of itself with zeros in the digest's place.
	fmt.Fprintf(&b, "    <BmapFileChecksum> ")
	at := b.Len()
	fmt.Fprintf(&b, "%s </BmapFileChecksum>\n", strings.Repeat("0", 2*sha256.Size))
	fmt.Fprintf(&b, "    <BlockMap>\n")
	for _, r := range m.Ranges {
		fmt.Fprintf(&b, "        <Range chksum=\"%s\"> %d-%d </Range>\n", r.Sum, r.First, r.Last)
	}
	fmt.Fprintf(&b, "    </BlockMap>\n</bmap>\n")
	file := b.Bytes()
	copy(file[at:], hexDigest(file))
	return file
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
	Ranges    []struct {
		Text     string `xml:",chardata"`
		Checksum string `xml:"chksum,attr"`
	} `xml:"BlockMap>Range"`
}

// Read parses a bmap file and verifies the digest in it. The ranges ascend, inside the image.
func Read(r io.Reader) (Map, error) {
	m, err := parseFile(r)
	if err != nil {
		return Map{}, fmt.Errorf("read block map: %w", err)
	}
	return m, nil
}

// parseFile reads a bmap file, refuses a too large one, verifies its digest and returns its map.
func parseFile(r io.Reader) (Map, error) {
	file, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return Map{}, err
	}
	if len(file) > maxFileBytes {
		return Map{}, fmt.Errorf("more than %d MiB", maxFileBytes>>20)
	}
	if err := limitElements(file); err != nil {
		return Map{}, err
	}
	var doc document
	if err := xml.Unmarshal(file, &doc); errors.Is(err, io.EOF) {
		return Map{}, errors.New("the file has no XML, so it is not a bmap")
	} else if err != nil {
		return Map{}, fmt.Errorf("%.200q", err.Error()) // it may quote all of the file
	}
	if doc.XMLName.Local != "bmap" {
		return Map{}, fmt.Errorf("the file is a %.40q, not a bmap", doc.XMLName.Local)
	}
	if doc.Version != fileVersion {
		return Map{}, fmt.Errorf("version %.20q; known is %s: make the map again from the image, with bmap or bmaptool create", doc.Version, fileVersion)
	}
	if err := doc.verifyDigest(file); err != nil {
		return Map{}, err
	}
	return doc.toMap()
}

// limitElements refuses too many elements or attributes before they fill the XML parser's memory.
func limitElements(file []byte) error {
	elements := bytes.Count(file, []byte("<")) - bytes.Count(file, []byte("</"))
	if n := max(elements, bytes.Count(file, []byte("="))); n > maxRanges+otherMarks {
		return fmt.Errorf("about %d ranges; at most %d are taken", n, maxRanges)
	}
	return nil
}

// verifyDigest checks the file's own SHA-256, with zeros in its place. It refuses other algorithms.
func (d *document) verifyDigest(file []byte) error {
	if kind := strings.TrimSpace(d.Algorithm); kind != digestType {
		return fmt.Errorf("checksum type %.20q; want %s: make the map again from the image, with bmap or bmaptool create", kind, digestType)
	}
	sum := strings.TrimSpace(d.Checksum)
	at := bytes.Index(file, []byte(sum))
	if sum == "" || at < 0 {
		return errors.New("the file's own digest is missing")
	}
	file = bytes.Clone(file)
	for i := range sum {
		file[at+i] = '0'
	}
	if got := hexDigest(file); got != sum {
		return fmt.Errorf("the file is damaged: its %s is %s, it says %.80q", digestType, got, sum)
	}
	return nil
}

// toMap converts the document to a valid Map, and checks its counts of blocks.
func (d *document) toMap() (Map, error) {
	var m Map
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
		if *f.to, err = parseNumber(f.text); err != nil {
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
	if err := m.validate(); err != nil {
		return Map{}, err
	}
	if blocks != m.blockCount() || mapped != m.mappedBlockCount() {
		return Map{}, fmt.Errorf("it counts %d blocks, %d mapped; its ranges and sizes make %d, %d mapped", blocks, mapped, m.blockCount(), m.mappedBlockCount())
	}
	return m, nil
}

// parseRange parses FIRST-LAST, or one number that is both.
func parseRange(text string) (Range, error) {
	first, last, two := strings.Cut(text, "-")
	if !two {
		last = first
	}
	low, err := parseNumber(first)
	high, bad := parseNumber(last)
	if err := cmp.Or(err, bad); err != nil {
		return Range{}, fmt.Errorf("range %.40q: %w", text, err)
	}
	return Range{First: low, Last: high}, nil
}

// parseNumber parses a decimal number of at least 0, with any blanks around it.
func parseNumber(text string) (int64, error) {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a number", text)
	}
	return int64(n), nil
}

func hexDigest(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}
