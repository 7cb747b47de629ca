package unpack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"slipway/layers/progress"
)

// tree is a folder that an archive fills. Nothing in it is made through a link of the
// archive: every file's folders are real ones, so that a name says where it lies.
// os.Root keeps that up where another process has its hands in the folder.
type tree struct {
	ctx    context.Context
	root   *os.Root
	limits Limits
	step   *progress.Step
	made   map[string]kind
	files  []string
	bytes  int64
}

type kind int

const (
	folder kind = iota + 1
	file
	link
)

func newTree(ctx context.Context, dir string, limits Limits, step *progress.Step) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{ctx: ctx, root: root, limits: limits, step: step, made: map[string]kind{".": folder}}, nil
}

func (t *tree) close() error { return t.root.Close() }

// place is the name under which an entry lies in the tree; its folders are there then.
func (t *tree) place(name string) (string, error) {
	name, err := t.local(name)
	if err != nil {
		return "", err
	}
	return name, t.folder(path.Dir(name), 0o755)
}

// local is a name of the archive's as it is in the tree.
func (t *tree) local(name string) (string, error) {
	if err := context.Cause(t.ctx); err != nil {
		return "", err
	}
	switch {
	case len(name) > t.limits.NameBytes:
		return "", fmt.Errorf("a name of %d bytes (at most %d): %.40q", len(name), t.limits.NameBytes, name)
	case len(t.made) > t.limits.Entries:
		return "", fmt.Errorf("more than %d entries", t.limits.Entries)
	case name == "" || strings.ContainsRune(name, 0) || strings.ContainsRune(name, '\\'):
		return "", fmt.Errorf("%q is no name for a file", name)
	case path.IsAbs(name) || !filepath.IsLocal(name):
		return "", fmt.Errorf("%q leads out of the folder; no such archive is unpacked", name)
	}
	return path.Clean(name), nil
}

// folder makes a folder and those above it.
func (t *tree) folder(name string, mode fs.FileMode) error {
	switch t.made[name] {
	case folder:
		return nil
	case file, link:
		return fmt.Errorf("%q is both a file or link and a folder in it", name)
	}
	if err := t.folder(path.Dir(name), 0o755); err != nil {
		return err
	}
	if len(t.made) > t.limits.Entries {
		return fmt.Errorf("more than %d entries", t.limits.Entries)
	}
	t.made[name] = folder
	return t.root.Mkdir(name, mode&0o777|0o700)
}

// file writes a file. Runs of zeros become holes: images are sparse.
func (t *tree) file(name string, mode fs.FileMode, size int64, from io.Reader) error {
	if err := t.claim(name, file); err != nil {
		return err
	}
	if size < 0 || t.bytes > t.limits.Bytes-size {
		return fmt.Errorf("%q: its files have more than %d bytes together", name, t.limits.Bytes)
	}
	t.bytes += size
	t.files = append(t.files, name)
	t.step.Detail(path.Base(name))
	f, err := t.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = sparse(f, t.endable(from), size)
	if err == nil {
		err = f.Chmod(mode&0o777 | 0o600) // no setuid, whatever it says
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	return nil
}

func (t *tree) claim(name string, k kind) error {
	if t.made[name] != 0 {
		return fmt.Errorf("%q is twice in it", name)
	}
	t.made[name] = k
	return nil
}

// sparse copies exactly size bytes.
func sparse(f *os.File, from io.Reader, size int64) error {
	buf := make([]byte, len(zeros))
	var at int64
	for {
		n, err := io.ReadFull(from, buf)
		if at+int64(n) > size {
			return fmt.Errorf("it has more than the %d bytes that it says", size)
		}
		if p := buf[:n]; !zero(p) {
			if _, err := f.WriteAt(p, at); err != nil {
				return err
			}
		}
		at += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && at == size {
			break
		}
		if err != nil {
			return err
		}
	}
	if at != size {
		return fmt.Errorf("%d of %d bytes: %w", at, size, io.ErrUnexpectedEOF)
	}
	return f.Truncate(size)
}

var zeros [256 << 10]byte

func zero(p []byte) bool { return bytes.Equal(p, zeros[:len(p)]) }

// link makes a symbolic link. Its target may climb only at its beginning, and not
// above the tree: then no chain of links leads out either.
func (t *tree) link(name, to string) error {
	if len(to) > t.limits.NameBytes || to == "" || strings.ContainsRune(to, 0) {
		return fmt.Errorf("link %q: no target that is taken: %.40q", name, to)
	}
	parts, climbs := strings.Split(path.Dir(name), "/"), 0
	if path.Dir(name) == "." {
		parts = nil
	}
	below := false
	for _, p := range strings.Split(to, "/") {
		switch {
		case p == "..":
			climbs++
		case p != "" && p != ".":
			below = true
		}
		if p == ".." && below {
			return fmt.Errorf("link %q: its target %q goes down and up again, which can lead anywhere; no such archive is unpacked", name, to)
		}
	}
	if path.IsAbs(to) || climbs > len(parts) {
		return fmt.Errorf("link %q leads out of the folder, to %q; no such archive is unpacked", name, to)
	}
	if err := t.claim(name, link); err != nil {
		return err
	}
	return t.root.Symlink(to, name)
}

// same makes a second name of a file that was unpacked before.
func (t *tree) same(name, as string) error {
	as, err := t.local(as)
	if err != nil {
		return fmt.Errorf("hard link %q: %w", name, err)
	}
	if t.made[as] != file {
		return fmt.Errorf("hard link %q: %q is no file before it in the archive", name, as)
	}
	if err := t.claim(name, file); err != nil {
		return err
	}
	t.files = append(t.files, name)
	return t.root.Link(as, name)
}
