package files

import (
	"context"
	"io"
	"path"

	"slipway/flash/target"
)

// Log is a file on the board that a program there writes. It is read over one channel, again and
// again.
type Log struct {
	name  string
	files *sftpFiles
}

// CreateLog makes the file, which must not be there, and its folder. It needs an sftp-server.
func CreateLog(ctx context.Context, c *target.Conn, name string) (*Log, error) {
	b, err := openSFTP(ctx, c, func() {})
	if err != nil {
		return nil, err
	}
	if err = b.makeDir(ctx, path.Dir(name)); err == nil {
		_, err = b.createFile(ctx, name)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return &Log{name, b}, nil
}

// Close ends the channel. The file stays.
func (l *Log) Close() { l.files.close() }

// ReadBeginning returns the first limit bytes and the size of the file.
func (l *Log) ReadBeginning(ctx context.Context, limit int64) (data []byte, size int64, err error) {
	err = l.files.do(ctx, func() error {
		f, err := l.files.sftp.Open(l.name)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		size = info.Size()
		data, err = io.ReadAll(io.LimitReader(f, limit))
		return err
	})
	return data, size, err
}
