// Package sealed opens a file whose content cannot change unnoticed. Whoever can write to the
// file's folder can rename the file, or edit it behind an open descriptor. So Slipway opens a file
// once. The first complete read seals the content. A later read that finds other bytes fails.
package sealed

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"sync"

	"slipway/layers/localfile"
)

// ErrChanged is the error of a read whose bytes differ from those that were sealed.
var ErrChanged = errors.New("it changed after Slipway proved it: somebody else writes to it; copy it to a folder that only you can write, and name the copy")

// chunkBytes is the size of the chunks that ReadAt verifies.
const chunkBytes = 64 << 10

// Digest is the SHA-256 of the bytes written to it. It also keeps a MAC of each chunk, under a key
// of this process, so that ReadAt can verify one chunk. A MAC costs a fraction of SHA-256.
type Digest struct {
	hash.Hash
	mac  cipher.AEAD
	tags []byte
	part []byte // of the last chunk
	size int64
}

// NewDigest returns an empty digest with a new random MAC key.
func NewDigest() *Digest {
	key := make([]byte, 16)
	rand.Read(key)
	block, _ := aes.NewCipher(key) // a key of 16 bytes is always valid
	mac, _ := cipher.NewGCM(block)
	return &Digest{Hash: sha256.New(), mac: mac, part: make([]byte, 0, chunkBytes)}
}

// Write adds p to the digest, and keeps the MAC of each chunk that p completes.
func (d *Digest) Write(p []byte) (int, error) {
	_, _ = d.Hash.Write(p) // never fails
	d.size += int64(len(p))
	for rest := p; len(rest) > 0; {
		if len(d.part) == 0 && len(rest) >= chunkBytes {
			d.addTag(rest[:chunkBytes])
			rest = rest[chunkBytes:]
			continue
		}
		n := min(len(rest), chunkBytes-len(d.part))
		d.part, rest = append(d.part, rest[:n]...), rest[n:]
		if len(d.part) == chunkBytes {
			d.addTag(d.part)
			d.part = d.part[:0]
		}
	}
	return len(p), nil
}

func (d *Digest) addTag(chunk []byte) {
	d.tags = append(d.tags, d.tag(int64(len(d.tags)/d.mac.Overhead()), chunk)...)
}

// tag returns the MAC of chunk number i.
func (d *Digest) tag(i int64, chunk []byte) []byte {
	var nonce [12]byte
	binary.LittleEndian.PutUint64(nonce[:], uint64(i))
	return d.mac.Seal(nil, nonce[:], nil, chunk)
}

// finish adds the MAC of the last, shorter chunk.
func (d *Digest) finish() {
	if len(d.part) > 0 {
		d.addTag(d.part)
		d.part = nil
	}
}

// holds reports whether chunk has the MAC of chunk number i.
func (d *Digest) holds(i int64, chunk []byte) bool {
	n := int64(d.mac.Overhead())
	return bytes.Equal(d.tag(i, chunk), d.tags[i*n:(i+1)*n])
}

// File is an open regular file. Several goroutines may read it at once.
type File struct {
	file   *os.File
	name   string
	size   int64
	digest *Digest   // nil: not sealed yet
	chunks sync.Pool // of the chunks that were read in part, mostly one for each reader
}

// Open opens a regular file, without reading or sealing it.
func Open(name string) (*File, error) {
	f, err := localfile.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &File{file: f, name: name, size: info.Size()}, nil
}

// Written returns a sealed File for f, written by this process with digest d. Its Close closes f.
func Written(f *os.File, name string, d *Digest) *File {
	d.finish()
	return &File{file: f, name: name, size: d.size, digest: d}
}

// Name returns the file's name, as it was when it was opened.
func (f *File) Name() string { return f.name }

// SizeBytes returns the size that the file had when it was opened.
func (f *File) SizeBytes() int64 { return f.size }

// Stat describes the open file.
func (f *File) Stat() (fs.FileInfo, error) { return f.file.Stat() }

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// Seal returns the file's SHA-256. It first reads an unsealed file by f.Reader, which seals it.
func (f *File) Seal(ctx context.Context, count func(int64)) (string, error) {
	if f.digest == nil {
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, f.Reader(ctx, count), make([]byte, 16*chunkBytes)); err != nil {
			return "", fmt.Errorf("read %s: %w", f.name, err)
		}
	}
	return hex.EncodeToString(f.digest.Sum(nil)), nil
}

// Reader returns a reader of f. It calls count with each read's size, and at the end seals f.
func (f *File) Reader(ctx context.Context, count func(int64)) io.Reader {
	r := &reader{ctx: ctx, file: f, count: count, in: io.NewSectionReader(f, 0, f.size+1)}
	if f.digest == nil {
		r.digest = NewDigest()
	}
	return r
}

type reader struct {
	ctx    context.Context
	file   *File
	in     io.Reader
	count  func(int64)
	digest *Digest // nil: the file is sealed
}

// Read reads the next bytes. It hashes those of an unsealed file, and seals it at the end, so that
// ReadAt can prove what it reads. It returns ErrChanged if that file has another size than before.
func (r *reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.in.Read(p)
	r.count(int64(n))
	if r.digest == nil {
		return n, err
	}
	_, _ = r.digest.Write(p[:n])
	if r.digest.size > r.file.size || errors.Is(err, io.EOF) && r.digest.size < r.file.size {
		return 0, ErrChanged // it grew or was cut off
	}
	if errors.Is(err, io.EOF) {
		r.digest.finish()
		r.file.digest, r.digest = r.digest, nil
	}
	return n, err
}

// ReadAt reads from the file. Once it is sealed, a chunk with other content is ErrChanged.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	if f.digest == nil {
		return f.file.ReadAt(p, off)
	}
	for n < len(p) && off < f.size {
		i := off / chunkBytes
		length := min(chunkBytes, f.size-i*chunkBytes)
		k := 0
		if off == i*chunkBytes && int64(len(p)-n) >= length {
			k, err = int(length), f.readChunk(p[n:n+int(length)], i)
		} else {
			k, err = f.readPart(p[n:], off, i, length)
		}
		if err != nil {
			return n, err
		}
		n, off = n+k, off+int64(k)
	}
	if n < len(p) {
		err = io.EOF
	}
	return n, err
}

// chunk is the last verified chunk, kept because the next read is mostly of the same chunk.
type chunk struct {
	i    int64
	data []byte
}

// readPart copies chunk i, of length bytes, from the file's offset off to p. It reads and verifies
// the chunk, unless f.chunks has it.
func (f *File) readPart(p []byte, off, i, length int64) (int, error) {
	c, ok := f.chunks.Get().(*chunk)
	if !ok {
		c = &chunk{i: -1, data: make([]byte, chunkBytes)}
	}
	defer f.chunks.Put(c)
	if c.i != i {
		c.i = -1
		if err := f.readChunk(c.data[:length], i); err != nil {
			return 0, err
		}
		c.i = i
	}
	return copy(p, c.data[off-i*chunkBytes:length]), nil
}

// readChunk reads chunk i into p. It returns ErrChanged if the chunk is not as it was sealed.
func (f *File) readChunk(p []byte, i int64) error {
	_, err := f.file.ReadAt(p, i*chunkBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err != nil || !f.digest.holds(i, p) {
		return ErrChanged
	}
	return nil
}
