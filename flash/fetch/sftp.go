package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"slipway/flash/target"
	"slipway/flash/target/files"
)

// boardFolder reads files over SSH, with the user's own configuration and keys.
type boardFolder struct {
	conn *target.Conn // nil: not connected, or not any more
}

// dial reaches a server. Tests have servers that are in nobody's ~/.ssh/config.
var dial = func(ctx context.Context, host string) (*target.Conn, error) {
	a, err := target.Resolve(ctx, host)
	if err != nil {
		return nil, final{err}
	}
	return target.Dial(ctx, a)
}

func (b *boardFolder) open(ctx context.Context, w wanted, h held) (answer, error) {
	r, err := b.reading(ctx, w.ref)
	if err != nil {
		return answer{}, unreadable(err)
	}
	// SFTP has no better name for a version than its size and the second it is of.
	a := answer{body: r, size: r.SizeBytes, validator: fmt.Sprintf("mtime %d %d", r.Modified.Unix(), r.SizeBytes)}
	if a.validator != h.validator {
		r.StartAt(0)
		return a, nil
	}
	if h.whole {
		r.Close()
		return answer{}, nil
	}
	a.from = h.bytes
	r.StartAt(h.bytes)
	return a, nil
}

// unreadable says which failures no second try fixes.
func unreadable(err error) error {
	for _, last := range []error{fs.ErrNotExist, fs.ErrPermission, files.ErrIrregular, target.ErrHostKey, target.ErrLogin} {
		if errors.Is(err, last) {
			return final{err}
		}
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return final{err}
	}
	return err
}

// reading opens the file over the connection that there is, and over a new one where
// that was lost.
func (b *boardFolder) reading(ctx context.Context, ref reference) (*files.Reading, error) {
	if b.conn != nil {
		r, err := files.Open(ctx, b.conn, ref.path)
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return r, err
		}
		b.close()
	}
	var err error
	if b.conn, err = dial(ctx, ref.host); err != nil {
		b.conn = nil
		return nil, err
	}
	return files.Open(ctx, b.conn, ref.path)
}

// digest is what the server says of the file, "" where it cannot: many let nobody run
// programs.
func (b *boardFolder) digest(ctx context.Context, ref reference) string {
	if b.conn == nil {
		return ""
	}
	sum, _ := files.Digest(ctx, b.conn, ref.path)
	return sum
}

func (b *boardFolder) close() {
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
}
