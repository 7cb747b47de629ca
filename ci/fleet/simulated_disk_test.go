package fleet

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/pkg/sftp"
)

// disk is a board's file system. It keeps the content of a file only until that gets its
// final name, then only the digest: 500 boards would not fit into memory otherwise.
type disk struct {
	board *simulatedBoard

	mu    sync.Mutex
	files map[string]*file
	dirs  map[string]bool
	named map[string]int // how often a file got this name by a rename
}

type file struct {
	disk *disk

	mu     sync.Mutex
	data   []byte
	size   int64
	digest string // "" while data is there
	mode   fs.FileMode
}

func newDisk(b *simulatedBoard) *disk {
	return &disk{board: b, files: map[string]*file{}, named: map[string]int{}, dirs: map[string]bool{"/": true, "/root": true, "/tmp": true, "/data": true}}
}

func (d *disk) sftpHandlers() sftp.Handlers {
	return sftp.Handlers{FileGet: d, FilePut: d, FileCmd: d, FileList: d}
}

func (d *disk) findFile(name string) *file {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files[name]
}

// Fileread returns the content of a file that has not got its final name yet.
func (d *disk) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	f := d.findFile(r.Filepath)
	if f == nil {
		return nil, os.ErrNotExist
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if int64(len(f.data)) != f.size {
		return nil, os.ErrPermission
	}
	return bytes.NewReader(f.data), nil
}

// Filewrite opens a file or creates one.
func (d *disk) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, flags := d.files[r.Filepath], r.Pflags()
	switch {
	case f != nil && flags.Excl:
		return nil, os.ErrExist
	case f == nil && !flags.Creat:
		return nil, os.ErrNotExist
	case f == nil && !d.dirs[path.Dir(r.Filepath)]:
		return nil, os.ErrNotExist
	case f == nil:
		f = &file{disk: d, mode: 0o644}
		d.files[r.Filepath] = f
	}
	return f, nil
}

// WriteAt simulates most of the faults.
func (f *file) WriteAt(p []byte, at int64) (int, error) {
	if err := f.disk.board.beforeWrite(len(p)); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	end := at + int64(len(p))
	if end > maxFileBytes {
		return 0, errors.New("file too large for a simulated board")
	}
	if grow := end - int64(len(f.data)); grow > 0 {
		f.data = slices.Grow(f.data, int(grow))[:end]
	}
	copy(f.data[at:], p)
	if at == 0 && f.disk.board.Fault == faultDamaged {
		f.data[0] ^= 1
	}
	f.size, f.digest = int64(len(f.data)), ""
	return len(p), nil
}

const maxFileBytes = 1 << 30

// sha256Hex returns the digest of the written content.
func (f *file) sha256Hex() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.digest == "" {
		sum := sha256.Sum256(f.data)
		f.digest = hex.EncodeToString(sum[:])
	}
	return f.digest
}

// Filecmd creates, renames and removes files.
func (d *disk) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Rename":
		return d.renameFile(r.Filepath, r.Target, false)
	case "Mkdir":
		d.mu.Lock()
		defer d.mu.Unlock()
		d.dirs[r.Filepath] = true
	case "Remove":
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.files, r.Filepath)
	case "Setstat":
		f := d.findFile(r.Filepath)
		if f == nil {
			return os.ErrNotExist
		}
		if r.AttrFlags().Permissions {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.mode = r.Attributes().FileMode().Perm()
		}
	default:
		return sftp.ErrSSHFxOpUnsupported
	}
	return nil
}

// PosixRename replaces a file that already has the name.
func (d *disk) PosixRename(r *sftp.Request) error { return d.renameFile(r.Filepath, r.Target, true) }

func (d *disk) renameFile(from, to string, replace bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[from]
	switch {
	case f == nil:
		return os.ErrNotExist
	case d.files[to] != nil && !replace:
		return os.ErrExist
	}
	f.sha256Hex()
	f.mu.Lock()
	f.data = nil
	f.mu.Unlock()
	delete(d.files, from)
	d.files[to] = f
	d.named[to]++
	return nil
}

// StatVFS reports the free space.
func (d *disk) StatVFS(*sftp.Request) (*sftp.StatVFS, error) {
	free := uint64(1 << 40)
	if d.board.Fault == faultFull {
		free = 1 << 20
	}
	return &sftp.StatVFS{Bsize: 4096, Frsize: 4096, Blocks: 1 << 30, Bfree: free / 4096, Bavail: free / 4096, Files: 1 << 20, Ffree: 1 << 20, Favail: 1 << 20, Namemax: 255}, nil
}

// Filelist returns the information about a single file or folder.
func (d *disk) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Method != "Stat" && r.Method != "Lstat" {
		return nil, sftp.ErrSSHFxOpUnsupported
	}
	if f := d.files[r.Filepath]; f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		return diskEntry{path.Base(r.Filepath), f.size, f.mode}, nil
	}
	if d.dirs[r.Filepath] {
		return diskEntry{path.Base(r.Filepath), 4096, fs.ModeDir | 0o755}, nil
	}
	return nil, os.ErrNotExist
}

// diskEntry is one file as Stat describes it.
type diskEntry struct {
	name string
	size int64
	mode fs.FileMode
}

func (e diskEntry) ListAt(list []os.FileInfo, at int64) (int, error) {
	if at > 0 || len(list) == 0 {
		return 0, io.EOF
	}
	list[0] = e
	return 1, io.EOF
}

func (e diskEntry) Name() string       { return e.name }
func (e diskEntry) Size() int64        { return e.size }
func (e diskEntry) Mode() fs.FileMode  { return e.mode }
func (e diskEntry) ModTime() time.Time { return time.Unix(1_700_000_000, 0) }
func (e diskEntry) IsDir() bool        { return e.mode.IsDir() }
func (e diskEntry) Sys() any           { return nil }
