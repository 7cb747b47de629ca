package source

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"

	"slipway/layers/plaintext"
)

const (
	maxZipRead    = 1<<20 + 256<<10 // of its list of files, with the library's reads that find it
	zipEndBytes   = 22
	zipEnd        = "PK\x05\x06"
	encryptedFlag = 1
)

// zipped decodes the only file in a zip archive.
type zipped struct{ file *zip.File }

// openZip reads the directory of a zip archive and returns a decoder of its only file; folders do
// not count. It refuses an encrypted or empty file, a too long directory, and trailing data.
func openZip(f packedFile) (decoder, error) {
	in := &limitedReader{file: f.File, left: maxZipRead}
	r, err := zip.NewReader(in, f.sizeBytes)
	switch {
	case errors.Is(err, errZipDirectory):
		return nil, errZipDirectory
	case errors.Is(err, zip.ErrFormat):
		return nil, errZipEnd
	case err != nil:
		return nil, damagedError(err)
	}
	in.open = true
	if err := checkZipEnd(f, r.Comment); err != nil {
		return nil, err
	}
	r.RegisterDecompressor(zip.Deflate, flate.NewReader)
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
	return zipped{member}, nil
}

// severalFilesError returns the error for several files or none. It names the first five.
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

var (
	errZipDirectory = errors.New("its list of files is too long, or longer than it says; unpack it and give the image")
	errZipEnd       = errors.New("it does not end as a zip archive does: it is cut off, or something follows it; fetch or build it again")
)

// limitedReader limits how much of the directory the zip library reads. The library reads on while
// there are entries, whatever number the archive states.
type limitedReader struct {
	file io.ReaderAt
	left int  // how many bytes may be read
	open bool // the directory was read
}

// ReadAt reads from the archive. Until open is set, more than left bytes in total are an error.
func (m *limitedReader) ReadAt(p []byte, at int64) (int, error) {
	if !m.open {
		if m.left -= len(p); m.left < 0 {
			return 0, errZipDirectory
		}
	}
	return m.file.ReadAt(p, at)
}

// checkZipEnd returns an error if anything follows the archive, which the zip library ignores.
func checkZipEnd(f packedFile, comment string) error {
	end := make([]byte, len(zipEnd))
	if _, err := f.ReadAt(end, f.sizeBytes-zipEndBytes-int64(len(comment))); err != nil {
		return unexpectedEOF(err)
	}
	if string(end) != zipEnd {
		return errZipEnd
	}
	return nil
}

func (z zipped) sections() []Section { return []Section{{0, int64(z.file.UncompressedSize64)}} }

func (z zipped) decodeSection(_ int, to *cutter) error {
	r, err := z.file.Open()
	if err != nil {
		return fmt.Errorf("%w (%.60q); unpack it and give the image", err, plaintext.OneLine(z.file.Name))
	}
	defer r.Close()
	return copyAll(to, r)
}
