package bfb

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"slipway/flash/sealed"
	"slipway/layers/localfile"
)

// Recipe is the content of a new stream.
type Recipe struct {
	Bases  []string // streams to take images from; a later one's replace an earlier one's
	Parts  []Part   // images that replace those of the bases
	Expert bool     // keep the parts' order instead of the usual one; without bases
	// Hardware is the version whose images to keep, of the one base, without parts; nil keeps all.
	Hardware *int
}

// Part is one image for a stream: a file's content, or a text.
type Part struct {
	kind    kind
	version int
	path    string
	text    string
}

// ParseParts parses a list of images such as "bl2=FILE,boot-args-v1==TEXT": = names a file, ==
// gives the text itself. A comma ends a value only if an image's name and = follow.
func ParseParts(list string) ([]Part, error) {
	var parts []Part
	for list != "" {
		name, rest, ok := strings.Cut(list, "=")
		k, version, err := parseName(name)
		if err == nil && !ok {
			err = fmt.Errorf("%q says no file; write %s=FILE, or %s==TEXT", name, name, name)
		}
		if err != nil {
			return nil, err
		}
		var value string
		value, list = cutPart(rest)
		p := Part{kind: k, version: version, path: value}
		if text, ok := strings.CutPrefix(value, "="); ok {
			p.path, p.text = "", text
		} else if value == "" {
			return nil, fmt.Errorf("%s: no file is named; an empty text is written %s==", name, name)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// cutPart cuts s at the first comma that an image's name and = follow; without one, part is s.
func cutPart(s string) (part, rest string) {
	for i := range len(s) {
		if s[i] != ',' {
			continue
		}
		name, _, ok := strings.Cut(s[i+1:], "=")
		if _, _, err := parseName(name); ok && err == nil {
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// piece is an image to write into a stream, with the source of its bytes.
type piece struct {
	Image
	from string // the file, for errors
	data io.ReaderAt
}

// Make writes the stream that r describes to the file out, completely or not at all.
func Make(ctx context.Context, out string, r Recipe) (Stream, error) {
	s, err := r.makeStream(ctx, out)
	if err != nil {
		return Stream{}, fmt.Errorf("make %s: %w", out, err)
	}
	return s, nil
}

// makeStream opens and checks the inputs, merges, filters or sorts their images, and writes the
// stream. It refuses to write one without images.
func (r Recipe) makeStream(ctx context.Context, out string) (Stream, error) {
	if err := errors.Join(r.checkRecipe(), checkReplaceable(out)); err != nil {
		return Stream{}, err
	}
	var files inputFiles
	defer files.closeAll()
	var pieces []piece
	for _, base := range r.Bases {
		more, err := files.readBase(ctx, base)
		if err != nil {
			return Stream{}, err
		}
		pieces = mergePieces(pieces, more)
	}
	var parts []piece
	for _, p := range r.Parts {
		more, err := files.readPart(ctx, p)
		if err != nil {
			return Stream{}, err
		}
		parts = mergePieces(parts, []piece{more})
	}
	pieces = mergePieces(pieces, parts)
	if r.Hardware != nil {
		pieces = keepNewestUsable(pieces, *r.Hardware)
	} else if err := sortPieces(pieces, r.Expert); err != nil {
		return Stream{}, err
	}
	if len(pieces) == 0 {
		return Stream{}, errors.New("no image is left, and a stream without one boots nothing")
	}
	setFollowing(pieces, r.Hardware != nil)
	return writeStream(ctx, out, pieces)
}

// checkRecipe refuses an empty recipe, more than two bases, and fields that exclude each other.
func (r Recipe) checkRecipe() error {
	switch {
	case len(r.Bases) == 0 && len(r.Parts) == 0:
		return errors.New("of nothing: name a stream to begin with, or images\nnext: bfb make --help")
	case len(r.Bases) > 2:
		return fmt.Errorf("%d streams to begin with; one or two can be joined", len(r.Bases))
	case r.Expert && len(r.Bases) > 0:
		return errors.New("an order of its own is for a stream of single images; take the other stream apart first")
	case r.Hardware != nil && (len(r.Bases) != 1 || len(r.Parts) > 0):
		return errors.New("versions are taken out of one stream, without other images")
	}
	return nil
}

// mergePieces adds the images in more to pieces, in place of those with the same ID and version.
func mergePieces(pieces, more []piece) []piece {
	for _, m := range more {
		i := slices.IndexFunc(pieces, func(p piece) bool { return p.ID == m.ID && p.Version == m.Version })
		if i >= 0 {
			pieces[i] = m
		} else {
			pieces = append(pieces, m)
		}
	}
	return pieces
}

// inputFiles are the files of a stream's images, open until the stream is written.
type inputFiles []*sealed.File

func (o inputFiles) closeAll() {
	for _, f := range o {
		f.Close()
	}
}

// openInput opens a file, which stays open until closeAll.
func (o *inputFiles) openInput(path string) (*sealed.File, error) {
	f, err := sealed.Open(path)
	if err != nil {
		return nil, localfile.ExplainUnreadable(path, err)
	}
	*o = append(*o, f)
	return f, nil
}

// readBase opens and checks a stream and returns its images. It refuses trailing data.
func (o *inputFiles) readBase(ctx context.Context, path string) ([]piece, error) {
	f, err := o.openInput(path)
	if err != nil {
		return nil, err
	}
	s, err := Read(f, f.SizeBytes())
	if err == nil {
		err = s.Check(ctx, f, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if s.TrailingBytes > 0 {
		return nil, fmt.Errorf("%s: %d bytes of trailing data (a bf.cfg or a root file system) would be lost; extract them (bfb extract) and append them to the new stream", path, s.TrailingBytes)
	}
	pieces := make([]piece, len(s.Images))
	for n, i := range s.Images {
		pieces[n] = piece{Image: i, from: path, data: io.NewSectionReader(f, i.OffsetBytes, i.SizeBytes)}
	}
	return pieces, nil
}

// readPart opens a part's file, or uses its text, and computes the CRC-32.
func (o *inputFiles) readPart(ctx context.Context, p Part) (piece, error) {
	i := piece{Image: Image{Name: p.kind.name, ID: p.kind.id, Version: p.version}, from: "the text for " + p.kind.name}
	if p.path == "" {
		i.data, i.SizeBytes = strings.NewReader(p.text), int64(len(p.text))
	} else {
		f, err := o.openInput(p.path)
		if err != nil {
			return i, fmt.Errorf("image %s: %w", p.kind.name, err)
		}
		i.from, i.data, i.SizeBytes = p.path, f, f.SizeBytes()
	}
	if i.SizeBytes > math.MaxUint32 {
		return i, fmt.Errorf("image %s: %s has %d bytes; an image holds at most %d", p.kind.name, i.from, i.SizeBytes, uint32(math.MaxUint32))
	}
	var err error
	i.CRC32, err = i.copyPadded(ctx, io.Discard)
	return i, err
}

// copyPadded writes the image and zeros up to a multiple of 8 bytes, and returns their CRC-32.
func (p piece) copyPadded(ctx context.Context, w io.Writer) (uint32, error) {
	sum := crc32.NewIEEE()
	to := io.MultiWriter(w, sum)
	n, err := io.Copy(to, localfile.WithContext(ctx, io.NewSectionReader(p.data, 0, p.SizeBytes), nil))
	if err == nil && n != p.SizeBytes {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return 0, fmt.Errorf("%s: copy the %d bytes of image %s: %w", p.from, p.SizeBytes, p.Name, err)
	}
	_, err = to.Write(make([]byte, padSize(p.SizeBytes)-p.SizeBytes))
	return sum.Sum32(), err
}

// sortPieces sorts images by kind, in the order of kinds or, with expert, of their first
// occurrence. Images of one kind are sorted by version. It returns an error for an unknown kind.
func sortPieces(pieces []piece, expert bool) error {
	for _, p := range pieces {
		if _, known := findKind(p.ID); !known {
			return fmt.Errorf("%s: where image %s belongs is not known", p.from, p.Name)
		}
	}
	place := func(id uint8) int { return slices.IndexFunc(kinds, func(k kind) bool { return k.id == id }) }
	if expert {
		given := slices.Clone(pieces)
		place = func(id uint8) int { return slices.IndexFunc(given, func(p piece) bool { return p.ID == id }) }
	}
	slices.SortStableFunc(pieces, func(a, b piece) int {
		return cmp.Or(cmp.Compare(place(a.ID), place(b.ID)), cmp.Compare(a.Version, b.Version))
	})
	return nil
}

// setFollowing sets the header fields Following and NextVersion. As in mlx-mkbfb, NextVersion is of
// the next image in a filtered stream, and of the next image of the same kind in others.
func setFollowing(pieces []piece, filtered bool) {
	follows := uint64(0)
	for i := len(pieces) - 1; i >= 0; i-- {
		p := &pieces[i]
		p.Following, p.NextVersion = follows, 0
		if i+1 < len(pieces) && (filtered || pieces[i+1].ID == p.ID) {
			p.NextVersion = pieces[i+1].Version
		}
		follows |= 1 << p.ID
	}
}

// encodeHeader encodes the header in version 1.2 of the format; it ignores i.Minor.
func (i Image) encodeHeader() [headerBytes]byte {
	var raw [headerBytes]byte
	w0 := uint64(magic) | major<<32 | minor<<36 | uint64(i.NextVersion&0xf)<<44 | uint64(i.Version&0xf)<<48 |
		headerBytes/8<<52 | uint64(i.ID)<<56
	binary.LittleEndian.PutUint64(raw[0:], w0)
	binary.LittleEndian.PutUint64(raw[8:], uint64(i.SizeBytes)|uint64(i.CRC32)<<32)
	binary.LittleEndian.PutUint64(raw[16:], i.Following)
	return raw
}

// writeStream writes headers and images to a temporary file, checks their checksums and headers,
// and renames the file to out. It returns an error if an input changed after it was read first.
func writeStream(ctx context.Context, out string, pieces []piece) (Stream, error) {
	f, err := renameio.NewPendingFile(out, renameio.WithPermissions(0o644))
	if err != nil {
		return Stream{}, err
	}
	defer f.Cleanup()
	w := bufio.NewWriterSize(f, 1<<20)
	size := int64(0)
	for _, p := range pieces {
		header := p.encodeHeader()
		if _, err := w.Write(header[:]); err != nil {
			return Stream{}, err
		}
		sum, err := p.copyPadded(ctx, w)
		if err != nil {
			return Stream{}, err
		}
		if sum != p.CRC32 {
			return Stream{}, fmt.Errorf("%s: image %s has CRC-32 %08x and should have %08x; it changed while it was read", p.from, p.Name, sum, p.CRC32)
		}
		size += headerBytes + padSize(p.SizeBytes)
	}
	if err := w.Flush(); err != nil {
		return Stream{}, err
	}
	s, err := Read(f, size)
	if err != nil {
		return Stream{}, err
	}
	return s, f.CloseAtomicallyReplace()
}

// keepNewestUsable keeps the newest image of each kind that hardware of this version can use.
func keepNewestUsable(pieces []piece, hardware int) []piece {
	newest := map[uint8]int{} // that the hardware can use
	for _, p := range pieces {
		if p.Version <= hardware {
			newest[p.ID] = max(newest[p.ID], p.Version)
		}
	}
	return slices.DeleteFunc(pieces, func(p piece) bool {
		v, ok := newest[p.ID]
		return !ok || v != p.Version
	})
}

// MakeFile parses parts with ParseParts, writes the stream to the file out, and prints its images.
func MakeFile(ctx context.Context, w io.Writer, out string, r Recipe, parts string) (err error) {
	if r.Parts, err = ParseParts(parts); err != nil {
		return err
	}
	s, err := Make(ctx, out, r)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %d images, %d bytes\n", out, len(s.Images), s.StreamBytes)
	return s.List(w)
}
