package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/ext4"
	"github.com/diskfs/go-diskfs/partition"
	"golang.org/x/sys/unix"

	"slipway/layers/plaintext"
)

// entry is the metadata of a file or folder.
type entry struct {
	mode         fs.FileMode
	size         int64
	uid, gid     int
	major, minor uint32
	link         string // where a symbolic link leads
	capabilities bool
}

// tree is a root file system. Names are relative to its root.
type tree struct {
	name  string
	files map[string]entry
	bytes int64 // size of the image, which bounds the size of its files
	open  func(name string) (io.ReadCloser, error)
	close func() error
}

// Limits of a root file system, far above those of real ones.
const (
	maxFiles     = 2_000_000
	maxFileBytes = 256 << 20 // what is behind it is not read
	maxLinks     = 40
)

// Close closes the image.
func (t *tree) Close() error { return t.close() }

func (t *tree) names() []string { return slices.Sorted(maps.Keys(t.files)) }

// read returns a regular file's first maxFileBytes.
func (t *tree) read(name string) ([]byte, error) { return t.head(name, maxFileBytes) }

// head returns the first n bytes of a regular file, or all if it is shorter.
func (t *tree) head(name string, n int64) (data []byte, err error) {
	defer recoverDamage(&err)
	f, err := t.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One read of all: go-diskfs 1.9.4 panics in some reads that begin within a block.
	data = make([]byte, min(n, t.files[name].size, t.bytes))
	return data, readAll(f, data)
}

// readAll fills data from r, or fails if r ends early. If r returns nothing without an error, the
// rest stays zero: so go-diskfs 1.9.4 reads a hole at the end. It fills other holes wrongly.
func readAll(r io.Reader, data []byte) error {
	for len(data) > 0 {
		n, err := r.Read(data)
		data = data[n:]
		switch {
		case err == io.EOF && len(data) == 0, err == nil && n == 0:
			return nil
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
	}
	return nil
}

// recoverDamage is deferred, and turns a panic into an error. The library that reads ext4 does not
// protect itself from damaged images. Isolate limits its time and memory.
func recoverDamage(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("its file system is damaged: %s", plaintext.Clean(fmt.Sprint(p), 200))
	}
}

// resolve follows symbolic links, also those of folders, and returns the path of the file at their
// end. It returns false if a part does not exist, or after maxLinks links.
func (t *tree) resolve(name string) (string, bool) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	for range maxLinks {
		done, rest := "", name
		again := false
		for rest != "" {
			part, after, _ := strings.Cut(rest, "/")
			at := path.Join(done, part)
			info, ok := t.files[at]
			if !ok {
				return "", false
			}
			if info.mode&fs.ModeSymlink != 0 {
				target := info.link
				if !strings.HasPrefix(target, "/") {
					target = "/" + path.Join(done, target)
				}
				name, again = strings.TrimPrefix(path.Clean(path.Join(target, after)), "/"), true
				break
			}
			done, rest = at, after
		}
		if !again {
			return done, true
		}
	}
	return "", false
}

// isRoot reports whether a tree is a system's (etc, and usr or bin): a wrong folder has no faults.
func (t *tree) isRoot() bool {
	return t.isFolder("etc") && (t.isFolder("usr") || t.isFolder("bin"))
}

func (t *tree) isFolder(name string) bool {
	at, ok := t.resolve(name)
	return ok && t.files[at].mode.IsDir()
}

// exists reports whether a path names something, after all links.
func (t *tree) exists(name string) bool { _, ok := t.resolve(name); return ok }

// readText returns the first MiB of a file, also through links, or "" if it cannot be read.
func (t *tree) readText(name string) string {
	name, ok := t.resolve(name)
	if !ok || !t.files[name].mode.IsRegular() {
		return ""
	}
	data, err := t.head(name, 1<<20)
	if err != nil {
		return ""
	}
	return string(data)
}

// openFolder lists the root file system in a folder, without mounts. It refuses over maxFiles.
func openFolder(dir string) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	t := &tree{name: dir, files: map[string]entry{}, bytes: math.MaxInt64, close: root.Close, open: func(name string) (io.ReadCloser, error) { return root.Open(name) }}
	var device uint64
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		sys, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.ErrUnsupported
		}
		if name == "." {
			device = sys.Dev
			return nil
		}
		e := entry{mode: info.Mode(), size: info.Size(), uid: int(sys.Uid), gid: int(sys.Gid), major: unix.Major(sys.Rdev), minor: unix.Minor(sys.Rdev)}
		if e.mode&fs.ModeSymlink != 0 {
			e.link, err = root.Readlink(name)
		}
		if n, xerr := unix.Lgetxattr(filepath.Join(dir, name), "security.capability", nil); xerr == nil && n > 0 {
			e.capabilities = true
		}
		t.files[name] = e
		if sys.Dev != device && info.IsDir() { // what is mounted there is another file system
			return fs.SkipDir
		}
		return errors.Join(err, t.checkSize())
	})
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return t, nil
}

// checkSize returns an error if the tree has more than maxFiles files.
func (t *tree) checkSize() error {
	if len(t.files) > maxFiles {
		return fmt.Errorf("%s has more than %d files", t.name, maxFiles)
	}
	return nil
}

// openImage opens the root file systems of a disk image: each ext4 partition that has one, or the
// whole image if it has no partition table. None is an error. Closing one tree closes the image.
func openImage(name string) (trees []*tree, err error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	image, err := file.OpenFromPath(name, true)
	if err != nil {
		return nil, err
	}
	trees, err = readTrees(name, image, info.Size())
	if err == nil && len(trees) == 0 {
		err = errors.New("it has no partition with ext4 and the folders of a root file system")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), image.Close())
	}
	for _, t := range trees {
		t.close, t.bytes = image.Close, info.Size()
	}
	return trees, nil
}

// readTrees reads an open image: all of it as ext4 if it has no partition table, or each ext4
// partition with a root file system. It skips other partitions. The caller sets close and bytes.
func readTrees(name string, image backend.Storage, size int64) (trees []*tree, err error) {
	defer recoverDamage(&err)
	table, err := partition.Read(image, sector, sector)
	if err != nil {
		f, err := ext4.Read(image, size, 0, sector)
		if err != nil {
			return nil, errors.New("it is neither ext4 nor a disk with partitions")
		}
		t, err := readExt4(name, f)
		return []*tree{t}, err
	}
	for i, p := range table.GetPartitions() {
		f, err := ext4.Read(image, p.GetSize(), p.GetStart(), sector)
		if err != nil {
			continue
		}
		t, err := readExt4(fmt.Sprintf("%s, partition %d", name, i+1), f)
		if err != nil {
			return nil, err
		}
		if t.isRoot() {
			trees = append(trees, t)
		}
	}
	return trees, nil
}

const sector = 512

// readExt4 lists an ext4 file system, without capabilities. The caller sets close and bytes. More
// than maxFiles, or over 100 folders deep, are errors.
func readExt4(name string, f *ext4.FileSystem) (*tree, error) {
	t := &tree{name: name, files: map[string]entry{}, open: func(name string) (io.ReadCloser, error) { return f.Open(name) }}
	err := fs.WalkDir(f, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." || name == "lost+found" {
			return err
		}
		if strings.Count(name, "/") > 100 {
			return fmt.Errorf("folders are more than 100 deep: %.200q", name)
		}
		info, err := fs.Stat(f, name)
		if err != nil {
			return err
		}
		e := entry{mode: info.Mode(), size: info.Size()}
		if sys, ok := info.Sys().(*ext4.StatT); ok {
			e.uid, e.gid, e.link = int(sys.UID), int(sys.GID), sys.LinkTarget
			e.major, e.minor = sys.Major, sys.Minor
		}
		t.files[name] = e
		return t.checkSize()
	})
	return t, err
}
