package job

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// A project is the user's own boards and the suites beside them, as a tar that is the same each time:
// files alone, sorted, without times and owners.
const (
	MaxProjectBytes = 4 << 20
	maxProjectFiles = 2000
	boardsName      = "boards"
	suitesName      = "suites"
)

// PackProject packs the user's folder of boards, and the folder suites beside it.
func PackProject(boards string) ([]byte, error) {
	p := packing{}
	p.tar = tar.NewWriter(&p.out)
	err := p.add(boards, boardsName)
	if suites := filepath.Join(filepath.Dir(boards), suitesName); err == nil && localfile.Exists(suites) {
		err = p.add(suites, suitesName)
	}
	if err == nil {
		err = p.tar.Close()
	}
	return p.out.Bytes(), err
}

type packing struct {
	out   bytes.Buffer
	tar   *tar.Writer
	files int
}

// add adds a folder under a name. What is hidden stays here, such as .git.
func (p *packing) add(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(at string, e fs.DirEntry, err error) error {
		switch hidden := at != "." && strings.HasPrefix(e.Name(), "."); {
		case err != nil:
			return err
		case hidden && e.IsDir():
			return fs.SkipDir
		case hidden || e.IsDir():
			return nil
		case !e.Type().IsRegular():
			return fmt.Errorf("%s is a link or no file, and only files travel to a hub\nnext: ls -l %s", filepath.Join(dir, at), plaintext.Quote(filepath.Join(dir, at)))
		}
		return p.addFile(root, at, path.Join(name, at))
	})
}

// addFile adds a file, unless it has a secret.
func (p *packing) addFile(root *os.Root, at, name string) error {
	from := filepath.Join(root.Name(), at)
	f, err := root.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := localfile.ReadAll(f, from, MaxProjectBytes)
	if err != nil {
		return err
	}
	if text := string(data); plaintext.HideSecrets(text) != text || strings.Contains(text, "AGE-SECRET-KEY-") {
		return fmt.Errorf("%s has a key or a password, and those do not travel to a hub\nnext: mv %s %s  # then name it by its new path", from, plaintext.Quote(from), plaintext.Quote(filepath.Dir(filepath.Dir(root.Name()))))
	}
	if p.files++; p.files > maxProjectFiles || p.out.Len()+len(data) > MaxProjectBytes-16<<10 {
		return fmt.Errorf("%s has more than %d files or %d MiB, and no more travel to a hub\nnext: du -a %[1]s | sort -n  # then move what is no part of a board", filepath.Dir(root.Name()), maxProjectFiles, MaxProjectBytes>>20)
	}
	if err := p.tar.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err = p.tar.Write(data)
	return err
}

// UnpackProject unpacks a project into a new folder, which appears whole or not at all. It refuses all
// that PackProject does not write.
func UnpackProject(data []byte, dir string) error {
	if len(data) > MaxProjectBytes {
		return fmt.Errorf("a project of more than %d MiB", MaxProjectBytes>>20)
	}
	if err := localfile.MkdirAll(filepath.Dir(dir)); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), ".part-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	root, err := os.OpenRoot(part)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := unpackInto(root, data); err != nil {
		return fmt.Errorf("unpack the project's files: %w", err)
	}
	err = os.Rename(part, dir)
	if errors.Is(err, fs.ErrExist) { // another job unpacked it
		err = nil
	}
	return err
}

func unpackInto(root *os.Root, data []byte) error {
	in, left := tar.NewReader(bytes.NewReader(data)), int64(MaxProjectBytes)
	for n := 0; ; n++ {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		first, _, below := strings.Cut(h.Name, "/")
		left -= h.Size
		switch {
		case h.Typeflag != tar.TypeReg, !below || first != boardsName && first != suitesName, !fs.ValidPath(h.Name):
			return fmt.Errorf("%.80q is no file of a project", plaintext.OneLine(h.Name))
		case n >= maxProjectFiles || left < 0:
			return fmt.Errorf("more than %d files or %d MiB", maxProjectFiles, MaxProjectBytes>>20)
		}
		if err := writeNew(root, h.Name, in); err != nil {
			return err
		}
	}
}

func writeNew(root *os.Root, name string, in io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Close())
}

// OwnProject returns the packed project of a board, or nothing for a board that Slipway has itself.
func OwnProject(board string) ([]byte, error) {
	boards, err := images.OwnFolder()
	if err != nil || boards == "" || !localfile.Exists(filepath.Join(boards, board, "board.yml")) {
		return nil, err
	}
	return PackProject(boards)
}
