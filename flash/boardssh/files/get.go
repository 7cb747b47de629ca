package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"slipway/flash/boardssh"
)

// Reading is an open file on the board, read through SFTP.
type Reading struct {
	SizeBytes int64
	Modified  time.Time // to the second

	ctx    context.Context
	cancel context.CancelFunc
	files  *sftpFiles
	file   *sftp.File
	name   string
	out    *io.PipeReader
	in     *io.PipeWriter
	once   sync.Once
	ended  chan struct{}
}

// ErrIrregular means that the path is a folder, or for example a pipe, which could block a reader.
var ErrIrregular = errors.New("not a regular file")

// Open opens a regular file on the board. A relative name is below the user's home. When ctx ends,
// reads fail.
func Open(ctx context.Context, c *boardssh.Conn, name string) (*Reading, error) {
	what := fmt.Sprintf("read %s:%s", c.Address().Host, boardssh.Printable(name))
	b, err := openSFTP(ctx, c, func() {})
	if err != nil {
		return nil, boardssh.BoardError(what, err)
	}
	r := &Reading{files: b, name: name, ended: make(chan struct{})}
	if err := b.do(ctx, r.openFile); err != nil {
		b.close()
		return nil, boardssh.BoardError(what, err)
	}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.out, r.in = io.Pipe()
	return r, nil
}

// openFile opens the board's file and notes its size and time. An irregular one is an ErrIrregular.
func (r *Reading) openFile() error {
	info, err := r.files.sftp.Stat(r.name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return ErrIrregular
	}
	r.SizeBytes, r.Modified = info.Size(), info.ModTime()
	r.file, err = r.files.sftp.Open(r.name)
	return err
}

// StartAt starts the transfer at the offset from. Otherwise the first Read starts it at 0.
func (r *Reading) StartAt(from int64) {
	r.once.Do(func() { go r.copyFile(from) })
}

// copyFile copies the file, beginning at the offset from, into the pipe of Read. It requests many
// pieces at once, because one after another, each would wait for a round trip.
func (r *Reading) copyFile(from int64) {
	defer close(r.ended)
	err := r.files.receive(r.ctx, r.in, func(to io.Writer) error {
		if _, err := r.file.Seek(from, io.SeekStart); err != nil {
			return err
		}
		_, err := r.file.WriteTo(to)
		return err
	})
	if err != nil && r.ctx.Err() == nil {
		err = boardssh.BoardError("read "+r.name, err)
	}
	r.in.CloseWithError(err)
}

// Read returns the next bytes of the file. The first call starts the transfer.
func (r *Reading) Read(p []byte) (int, error) {
	r.StartAt(0)
	return r.out.Read(p)
}

// Close ends the transfer, closes the SFTP channel and returns nil. The SSH connection stays open.
func (r *Reading) Close() error {
	r.cancel()
	r.out.Close()
	r.once.Do(func() { close(r.ended) })
	<-r.ended
	r.files.close()
	return nil
}
