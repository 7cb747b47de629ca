package source

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"

	"slipway/flash/source/crc"
	"slipway/flash/source/inflate"
	"slipway/layers/plaintext"
)

const (
	maxZipFiles     = 1000
	maxZipDirectory = 1 << 20
	maxZipRead      = maxZipDirectory + 256<<10 // with the library's reads that find the directory
	zipEndBytes     = 22
	zipLocatorBytes = 20
	zipEnd          = "PK\x05\x06"
	zipLocator      = "PK\x06\x07"
	zipEnd64        = "PK\x06\x06"
	encryptedFlag   = 1
)

// zipped is the only file in a zip archive.
type zipped struct {
	packedFile
	file *zip.File
}

func openZip(f packedFile) (decoder, error) {
	if err := checkZipEnd(f); err != nil {
		return nil, err
	}
	in := &limitedReader{file: f.File, left: maxZipRead}
	r, err := zip.NewReader(in, f.sizeBytes)
	switch {
	case errors.Is(err, errZipDirectory):
		return nil, errZipDirectory
	case err != nil:
		return nil, damagedError(err)
	}
	in.open = true
	r.RegisterDecompressor(zstd.ZipMethodWinZip, zstd.ZipDecompressor(zstd.WithDecoderMaxWindow(wideBytes), zstd.WithDecoderConcurrency(1)))
	var files []*zip.File
	for _, member := range r.File {
		if !strings.HasSuffix(member.Name, "/") {
			files = append(files, member)
		}
	}
	if len(files) != 1 {
		return nil, severalFilesError(files)
	}
	member := files[0]
	switch {
	case member.Flags&encryptedFlag != 0:
		return nil, errors.New("the file in it is encrypted; unpack it with its password and give the image")
	case member.UncompressedSize64 > maxImageBytes:
		return nil, errTooLarge
	case member.UncompressedSize64 == 0:
		return nil, errors.New("the file in it is empty; fetch or build it again")
	}
	return &zipped{f, member}, nil
}

func severalFilesError(files []*zip.File) error {
	const most = 5
	var names []string
	for _, f := range files[:min(len(files), most)] {
		names = append(names, fmt.Sprintf("%.60q", plaintext.OneLine(f.Name)))
	}
	if len(files) > most {
		names = append(names, "...")
	}
	return fmt.Errorf("it holds %d files (%s), not one image; unpack it and give the image", len(files), strings.Join(names, ", "))
}

var errZipDirectory = errors.New("its list of files is too long, or longer than it says; unpack it and give the image")

// limitedReader limits how much of a directory the library reads. The library reads on
// while there are entries, whatever their stated number.
type limitedReader struct {
	file io.ReaderAt
	left int  // how many bytes may be read
	open bool // the directory was read
}

func (m *limitedReader) ReadAt(p []byte, at int64) (int, error) {
	if !m.open {
		if m.left -= len(p); m.left < 0 {
			return 0, errZipDirectory
		}
	}
	return m.file.ReadAt(p, at)
}

// checkZipEnd checks that the archive ends with its directory, and that the directory
// is small, since the library reads all of it.
func checkZipEnd(f packedFile) error {
	const mostComment = 1<<16 - 1
	tail := make([]byte, min(f.sizeBytes, zipLocatorBytes+zipEndBytes+mostComment))
	if _, err := f.ReadAt(tail, f.sizeBytes-int64(len(tail))); err != nil {
		return unexpectedEOF(err)
	}
	at := strings.LastIndex(string(tail), zipEnd)
	for at >= 0 && len(tail)-at < zipEndBytes {
		at = strings.LastIndex(string(tail[:at]), zipEnd)
	}
	// An end record in a comment is refused too, since the library would use that one.
	if at < 0 || at+zipEndBytes+int(binary.LittleEndian.Uint16(tail[at+20:])) != len(tail) {
		return errors.New("it does not end as a zip archive does: it is cut off, or something follows it; fetch or build it again")
	}
	files, size := uint64(binary.LittleEndian.Uint16(tail[at+10:])), uint64(binary.LittleEndian.Uint32(tail[at+12:]))
	if at >= zipLocatorBytes && string(tail[at-zipLocatorBytes:at-zipLocatorBytes+4]) == zipLocator {
		var end [56]byte
		if _, err := f.ReadAt(end[:], int64(binary.LittleEndian.Uint64(tail[at-zipLocatorBytes+8:])&(1<<62-1))); err != nil || string(end[:4]) != zipEnd64 {
			return errDamaged
		}
		if files == 1<<16-1 {
			files = 0 // the zip64 record has it
		}
		if size == 1<<32-1 {
			size = 0
		}
		files, size = max(files, binary.LittleEndian.Uint64(end[32:])), max(size, binary.LittleEndian.Uint64(end[40:]))
	}
	if files > maxZipFiles || size > maxZipDirectory {
		return fmt.Errorf("it holds %d files; unpack it and give the image", files)
	}
	return nil
}

func (z *zipped) unpackedBytes() int64 { return int64(z.file.UncompressedSize64) }
func (z *zipped) sections() []Section  { return []Section{{0, z.unpackedBytes()}} }
func (z *zipped) checkRest() error     { return checkUnchanged(z.packedFile) }
func (z *zipped) close()               {}

func (z *zipped) decodeSection(_ int, to *cutter) error {
	if z.file.Method == zip.Deflate {
		return z.inflateFile(to)
	}
	r, err := z.file.Open()
	if err != nil {
		return fmt.Errorf("%w (%.60q); unpack it and give the image", err, plaintext.OneLine(z.file.Name))
	}
	defer r.Close()
	return copyAll(to, r)
}

// inflateFile decodes the most common method with our own decoder, and verifies the
// output.
func (z *zipped) inflateFile(to *cutter) error {
	in, err := z.file.OpenRaw()
	if err != nil {
		return damagedError(err)
	}
	out := &summedOutput{cutterOutput: cutterOutput{to}}
	used, err := inflate.Raw(in, out)
	if err != nil {
		return err
	}
	if uint64(used) != z.file.CompressedSize64 || out.sum != uint64(z.file.CRC32) || uint64(out.size) != z.file.UncompressedSize64 {
		return errDamaged
	}
	return nil
}

// summedOutput computes the checksum of the output.
type summedOutput struct {
	cutterOutput
	sum  uint64
	size int64
}

func (s *summedOutput) Write(p []byte) (int, error) {
	s.sum, s.size = crc.IEEE.Update(s.sum, p), s.size+int64(len(p))
	return s.cutterOutput.Write(p)
}

func (s *summedOutput) SkipZeros(n int64) error {
	s.sum, s.size = crc.IEEE.Zeros(s.sum, n), s.size+n
	return s.cutterOutput.SkipZeros(n)
}
