package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"slipway/flash/boardssh"
	"slipway/flash/sealed"
	"slipway/layers/progress"
)

// Errors of an upload that a caller branches on.
var (
	ErrFull    = errors.New("no room on the board")
	ErrDamaged = errors.New("what arrived is not what was sent")
)

// Source is a local file for several boards. Slipway opens and hashes it once. All uploads read it.
type Source struct {
	file *sealed.File
	source
}

// OpenSource opens and hashes a local file. The caller closes it when the last Send has returned.
func OpenSource(ctx context.Context, local string) (*Source, error) {
	f, src, err := openSource(local)
	if err != nil {
		return nil, err
	}
	select {
	case digest := <-src.startDigest():
		src.sha256, err = digest.hex, digest.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Source{f, src}, nil
}

// Close closes the file.
func (s *Source) Close() error { return s.file.Close() }

// Size returns the size of the file in bytes.
func (s *Source) Size() int64 { return s.size }

// SHA256 returns the digest of the file.
func (s *Source) SHA256() string { return s.sha256 }

// Rights are the mode and owner of a file on the board.
type Rights struct {
	Mode  fs.FileMode
	Owner string // user, or user:group, by name or number; "": the user who logs in
}

// Check returns an error for a mode over 0777, or for an invalid owner.
func (r Rights) Check() error {
	if r.Mode != r.Mode.Perm() {
		return fmt.Errorf("mode %04o: want one up to 0777", uint32(r.Mode))
	}
	return DirOptions{Owner: r.Owner}.checkOwners()
}

// Send is Put for a Source, with rights. It runs sync too: the file survives a power cut.
func Send(ctx context.Context, c *boardssh.Conn, s *Source, remote string, r Rights) (Sent, error) {
	if err := r.Check(); err != nil {
		return Sent{}, err
	}
	src := s.source
	src.owner = r.Owner
	step := progress.Start(ctx, "put "+filepath.Base(s.name), s.size, progress.Bytes)
	sent, err := putSource(ctx, c, src, remote, r.Mode, step)
	if err == nil {
		err = syncNames(ctx, c)
	}
	step.End(sent.Path+describeTransport(c), err)
	return sent, err
}
