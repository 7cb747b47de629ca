package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
)

// sftpHost reads files over SSH, with the user's own configuration and keys.
type sftpHost struct {
	conn *boardssh.Conn // nil: not connected, or not any more
}

// dialHost connects to an SSH server. Tests replace it: their servers are not in ~/.ssh/config.
var dialHost = func(ctx context.Context, host string) (*boardssh.Conn, error) {
	a, err := boardssh.Resolve(ctx, host)
	if err != nil {
		return nil, permanentError{err}
	}
	return boardssh.Dial(ctx, a)
}

// openFile opens a file over SFTP, after the cached bytes if size and time show the same version.
// The response is empty if the whole file of that version is in the cache.
func (b *sftpHost) openFile(ctx context.Context, w fileRequest, h cachedPart) (fileResponse, error) {
	r, err := b.reopenFile(ctx, w.ref)
	if err != nil {
		return fileResponse{}, markPermanent(err)
	}
	// SFTP identifies a version only by its size and its time in seconds.
	a := fileResponse{body: r, size: r.SizeBytes, validator: fmt.Sprintf("mtime %d %d", r.Modified.Unix(), r.SizeBytes)}
	if a.validator != h.validator {
		r.StartAt(0)
		return a, nil
	}
	if h.whole {
		r.Close()
		return fileResponse{}, nil
	}
	a.from = h.sizeBytes
	r.StartAt(h.sizeBytes)
	return a, nil
}

// markPermanent makes an error such as a missing file or an unknown host key a permanentError.
func markPermanent(err error) error {
	for _, last := range []error{fs.ErrNotExist, fs.ErrPermission, files.ErrIrregular, boardssh.ErrHostKey, boardssh.ErrLogin} {
		if errors.Is(err, last) {
			return permanentError{err}
		}
	}
	if dns, is := errors.AsType[*net.DNSError](err); is && dns.IsNotFound {
		return permanentError{err}
	}
	return err
}

// reopenFile opens the file over the present connection, or over a new one if that is lost.
func (b *sftpHost) reopenFile(ctx context.Context, ref reference) (*files.Reading, error) {
	if b.conn != nil {
		r, err := files.Open(ctx, b.conn, ref.path)
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return r, err
		}
		b.closeConnections()
	}
	var err error
	if b.conn, err = dialHost(ctx, ref.host); err != nil {
		b.conn = nil
		return nil, err
	}
	return files.Open(ctx, b.conn, ref.path)
}

// remoteDigest has the server compute the file's SHA-256; "" without a result or a connection.
func (b *sftpHost) remoteDigest(ctx context.Context, ref reference) string {
	if b.conn == nil {
		return ""
	}
	sum, _ := files.Digest(ctx, b.conn, ref.path)
	return sum
}

func (b *sftpHost) closeConnections() {
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
}
