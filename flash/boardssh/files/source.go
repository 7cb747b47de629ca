package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"slipway/flash/boardssh"
	"slipway/flash/sealed"
	"slipway/layers/progress"
)

// Why a board did not take a file, where a caller tells boards apart by it.
var (
	ErrFull    = errors.New("no room on the board")
	ErrDamaged = errors.New("what arrived is not what was sent")
)

// Source is a local file for several boards. It is opened and hashed once, and read
// by all of them at once.
type Source struct {
	file *sealed.File
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
	return DirOptions{Owner: r.Owner}.checkOwners()
}

// Send is Put for a Source, with rights. The file outlives a power cut of the board.
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

// LocalFile is a file for PutList.
type LocalFile struct {
	Path   string // here
	Name   string // below the folder on the board
	SHA256 string // "": not known
}

// PutList is Put of several files into one folder, with one progress. The files outlive a power
// cut of the board.
func PutList(ctx context.Context, c *boardssh.Conn, dir string, list []LocalFile) (sent []Sent, err error) {
	sources := make([]source, len(list))
	var total int64
	for i, file := range list {
		f, src, err := openSource(file.Path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		src.sha256 = file.SHA256
		sources[i] = src
		total += src.size
	}
	step := progress.Start(ctx, "deploy files", total, progress.Bytes)
	defer func() { step.End(fmt.Sprintf("%d in %s%s", len(sent), dir, describeTransport(c)), err) }()
	for i, src := range sources {
		one, err := putSource(ctx, c, src, path.Join(dir, filepath.ToSlash(list[i].Name)), 0o644, step)
		if err != nil {
			return sent, err
		}
		sent = append(sent, one)
	}
	return sent, syncNames(ctx, c)
}
