package tegra

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

// extraction unpacks an archive into a folder. It writes no file through a symbolic link of the
// archive: all parent folders are real. os.Root guards against links of other processes.
type extraction struct {
	ctx    context.Context
	root   *os.Root
	limits archiveLimits
	step   *progress.Step
	made   map[string]entryKind
	files  []string
	bytes  int64
}

type entryKind int

const (
	folder entryKind = iota + 1
	file
	link
)

// newExtraction opens the folder dir, which must exist, to unpack an archive into it.
func newExtraction(ctx context.Context, dir string, limits archiveLimits, step *progress.Step) (*extraction, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &extraction{ctx: ctx, root: root, limits: limits, step: step, made: map[string]entryKind{".": folder}}, nil
}

func (t *extraction) close() error { return t.root.Close() }

// prepareEntry checks an entry's name, creates its parent folders, and returns the cleaned name.
func (t *extraction) prepareEntry(name string) (string, error) {
	name, err := t.localName(name)
	if err != nil {
		return "", err
	}
	return name, t.makeFolder(path.Dir(name), 0o755)
}

// localName cleans a name of the archive. It refuses one outside the folder or too long, and any
// name after too many entries or the context's end.
func (t *extraction) localName(name string) (string, error) {
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

// makeFolder creates a folder of the archive and its parents, unless they exist. It refuses the
// name of an earlier file or link, and too many entries.
func (t *extraction) makeFolder(name string, mode fs.FileMode) error {
	switch t.made[name] {
	case folder:
		return nil
	case file, link:
		return fmt.Errorf("%q is both a file or link and a folder in it", name)
	}
	if err := t.makeFolder(path.Dir(name), 0o755); err != nil {
		return err
	}
	if len(t.made) > t.limits.Entries {
		return fmt.Errorf("more than %d entries", t.limits.Entries)
	}
	t.made[name] = folder
	return t.root.Mkdir(name, mode&0o777|0o700)
}

// writeFile creates a file of size bytes with the content of from, without setuid bits. Zeros
// become holes, because images are sparse. It refuses a second file of a name, and too many bytes.
func (t *extraction) writeFile(name string, mode fs.FileMode, size int64, from io.Reader) error {
	if err := t.claimName(name, file); err != nil {
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
	err = copySparse(f, t.cancellable(from), size)
	if err == nil {
		err = f.Chmod(mode&0o777 | 0o600) // never setuid
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	return nil
}

// claimName records a name of the archive, and refuses one that occurs twice.
func (t *extraction) claimName(name string, k entryKind) error {
	if t.made[name] != 0 {
		return fmt.Errorf("%q is twice in it", name)
	}
	t.made[name] = k
	return nil
}

// copySparse copies size bytes, with holes in place of zeros. It refuses more or fewer bytes.
func copySparse(f *os.File, from io.Reader, size int64) error {
	buf := make([]byte, len(zeros))
	var at int64
	for {
		n, err := io.ReadFull(from, buf)
		if at+int64(n) > size {
			return fmt.Errorf("it has more than the %d bytes that it says", size)
		}
		if p := buf[:n]; !isZero(p) {
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

func isZero(p []byte) bool { return bytes.Equal(p, zeros[:len(p)]) }

// makeSymlink creates a symbolic link. It refuses a target that is absolute, above the folder, or
// has .. after another name, so that no chain of links leads outside.
func (t *extraction) makeSymlink(name, to string) error {
	if len(to) > t.limits.NameBytes || to == "" || strings.ContainsRune(to, 0) {
		return fmt.Errorf("link %q: the target is invalid: %.40q", name, to)
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
	if err := t.claimName(name, link); err != nil {
		return err
	}
	return t.root.Symlink(to, name)
}

// makeHardLink creates a second name of existing, which must be an extracted file.
func (t *extraction) makeHardLink(name, existing string) error {
	existing, err := t.localName(existing)
	if err != nil {
		return fmt.Errorf("hard link %q: %w", name, err)
	}
	if t.made[existing] != file {
		return fmt.Errorf("hard link %q: %q is no file before it in the archive", name, existing)
	}
	if err := t.claimName(name, file); err != nil {
		return err
	}
	t.files = append(t.files, name)
	return t.root.Link(existing, name)
}
