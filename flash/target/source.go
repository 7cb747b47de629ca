package target

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"slipway/layers/progress"
)

// Why a board did not take a file, where a caller tells boards apart by it.
var (
	ErrFull    = errors.New("no room on the board")
	ErrDamaged = errors.New("what arrived is not what was sent")
	ErrNotSSH  = errors.New("no SSH server")
)

// Source is a local file for several boards. It is opened and hashed once, and read
// by all of them at once.
type Source struct {
	file *os.File
	source
}

// OpenSource opens and hashes a local file. The caller closes it when the last Send
// has returned.
func OpenSource(ctx context.Context, local string) (*Source, error) {
	f, src, err := openSource(local)
	if err != nil {
		return nil, err
	}
	select {
	case digest := <-src.hash():
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

// Close lets go of the file.
func (s *Source) Close() error { return s.file.Close() }

// Size is how many bytes the file has.
func (s *Source) Size() int64 { return s.size }

// SHA256 is the digest that the board must find.
func (s *Source) SHA256() string { return s.sha256 }

// Rights are what a file has on the board.
type Rights struct {
	Mode  fs.FileMode
	Owner string // user, or user:group, by name or number; "": the user who logs in
}

// Check refuses what no file can have.
func (r Rights) Check() error {
	if r.Mode != r.Mode.Perm() {
		return fmt.Errorf("mode %04o: want one up to 0777", uint32(r.Mode))
	}
	return DirOptions{Owner: r.Owner}.check()
}

// Send is Put for a Source, with rights. The file outlives a power cut of the board.
func (c *Conn) Send(ctx context.Context, s *Source, remote string, r Rights) (Sent, error) {
	if err := r.Check(); err != nil {
		return Sent{}, err
	}
	src := s.source
	src.owner = r.Owner
	step := progress.Start(ctx, "put "+filepath.Base(s.name), s.size, progress.Bytes)
	sent, err := c.put(ctx, src, remote, r.Mode, step)
	if err == nil {
		err = c.syncNames(ctx)
	}
	step.End(sent.Path+c.means(), err)
	return sent, err
}

// Lost says whether the connection has ended without Close.
func (c *Conn) Lost() bool {
	link, err := c.client()
	if err != nil {
		return false
	}
	select {
	case <-link.gone:
		return true
	default:
		return false
	}
}

// ResolveThrough is Resolve with jump hosts, commas between them, in the place of
// those that ~/.ssh/config names.
func ResolveThrough(ctx context.Context, host, jumps string) (Address, error) {
	given, err := parseHost(host)
	if err != nil {
		return Address{}, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return Address{}, err
	}
	return route{home: home, names: []string{host}}.resolve(ctx, given, jumps)
}
