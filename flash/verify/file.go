package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// proveFiles compares files with the list: all of both where a folder was named.
func (l *List) proveFiles(ctx context.Context, all sums, endings []string) error {
	names := l.names
	if l.complete {
		inFolder, err := listFolder(l.folder, endings)
		if err != nil {
			return err
		}
		names = slices.Clone(all.names)
		for _, name := range slices.Concat(inFolder, l.names) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		f := File{Name: name}
		if err := f.prove(ctx, l.folder, all); err != nil {
			f.Error = err.Error()
		}
		l.Files = append(l.Files, f)
	}
	return ctx.Err()
}

// listFolder returns what lies in a folder beside the list and its signatures.
func listFolder(folder string, endings []string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, localfile.NotHere(folder, err)
	}
	var names []string
	for _, e := range entries {
		ending, beside := strings.CutPrefix(e.Name(), SumsName)
		if !beside || ending != "" && !slices.Contains(endings, ending) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// prove reads the file and compares its digest with the list's.
func (f *File) prove(ctx context.Context, folder string, all sums) error {
	want, ok := all.byName[f.Name]
	if !ok {
		return fmt.Errorf("%s does not name it: nobody signed it", SumsName)
	}
	in, info, err := openRegular(filepath.Join(folder, f.Name))
	if err != nil {
		return err
	}
	defer in.Close()
	if info.Size() > maxFileBytes {
		return fmt.Errorf("it has %d bytes, and %d are the most", info.Size(), int64(maxFileBytes))
	}
	if f.SHA256, f.Bytes, err = hashFile(ctx, f.Name, in, info.Size()); err != nil {
		return err
	}
	if f.SHA256 != want {
		return fmt.Errorf("its SHA-256 is %s, and %s says %s: it is changed or damaged\nnext: fetch it again", f.SHA256, SumsName, want)
	}
	return nil
}

// openRegular opens a file that is no link, device or FIFO.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, nil, fmt.Errorf("read %s: it is a symbolic link\nnext: name the file that it leads to", path)
	}
	if err != nil {
		return nil, nil, localfile.NotHere(path, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("read %s: it is no regular file", path)
	}
	if err != nil {
		f.Close()
	}
	return f, info, err
}

// hashFile reads at most what the file had when it was opened, and a byte: a file that grows
// meanwhile is refused by its digest.
func hashFile(ctx context.Context, name string, in io.Reader, size int64) (digest string, read int64, err error) {
	step := progress.Start(ctx, "verify "+name, size, progress.Bytes)
	h := sha256.New()
	read, err = io.Copy(io.MultiWriter(h, counter{ctx, step}), io.LimitReader(in, size+1))
	step.End("", err)
	return hex.EncodeToString(h.Sum(nil)), read, err
}

// counter reports what is read, and fails once its context ends.
type counter struct {
	ctx  context.Context
	step *progress.Step
}

func (c counter) Write(p []byte) (int, error) {
	c.step.Add(int64(len(p)))
	return len(p), c.ctx.Err()
}
