package plan

// This file caches a board's compiled plan in /run, so that for the next container the hook only
// has to check that the board is unchanged. It ignores and replaces a cache file that others than
// root may write, that is incomplete, or that another hook wrote.

import (
	"encoding/binary"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/regular"
)

// CacheDir is the folder for the hook's caches. They may be deleted at any time.
const CacheDir = "/run/slipway"

const (
	cacheMagic    = "slipway plan 1\n"
	maxCacheBytes = 1 << 20
	planFile      = "plan"
)

// Load returns the board's plan for the CSV files: from the cache if that is valid, otherwise
// compiled, and then cached unless a file has just changed. looked means that the caller has just
// checked that the board is unchanged.
func Load(files []csv.File, ignore []string, looked bool) (Plan, []csv.Problem) {
	hook, known := statProgram()
	head := fileHead(hook, ignore, files)
	if known {
		if r, ok := loadPlan(CacheDir, head, looked); ok {
			return r.Plan, r.Problems
		}
	}
	entries, problems := csv.Parse(files)
	r := Compile("/", entries, ignore)
	r.Problems = append(problems, r.Problems...)
	if known && r.Watch.OldEnough(time.Now().UnixNano()) {
		// If /run is not writable, the hook works without a cache.
		_ = savePlan(CacheDir, head, r)
	}
	return r.Plan, r.Problems
}

// statProgram returns the file state of this process's program.
func statProgram() (Seen, bool) {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &stat); err != nil {
		return Seen{}, false
	}
	return Seen{Dev: uint64(stat.Dev), Inode: stat.Ino, Size: stat.Size, Changed: stat.Ctim.Nano(), Written: stat.Mtim.Nano()}, true
}

// loadPlan reads the cached plan. It returns false if the file does not begin with want, or if the
// board has changed. looked skips the check of the board.
func loadPlan(dir string, want []byte, looked bool) (Compiled, bool) {
	data, err := readCacheFile(dir)
	if err != nil {
		return Compiled{}, false
	}
	if len(data) < len(want) || data[:len(want)] != string(want) {
		return Compiled{}, false
	}
	r, err := decodeResult(data[len(want):])
	return r, err == nil && (looked || r.Watch.Holds())
}

// fileHead returns the cache file's first bytes for a plan of this program, settings and CSV files.
func fileHead(hook Seen, ignore []string, files []csv.File) []byte {
	b := appendValue([]byte(cacheMagic), reflect.ValueOf(hook))
	b = appendValue(b, reflect.ValueOf(ignore))
	return appendValue(b, reflect.ValueOf(files))
}

func encodeResult(r Compiled) []byte {
	b := appendValue(nil, reflect.ValueOf(r))
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// decodeResult checks the checksum at the end of data and decodes the plan.
func decodeResult(data string) (r Compiled, err error) {
	n := len(data) - 4
	if n < 0 || crc32.ChecksumIEEE(bytesOf(data[:n])) != binary.LittleEndian.Uint32(bytesOf(data[n:])) {
		return r, errBroken
	}
	d := decoder{rest: data[:n]}
	d.readValue(reflect.ValueOf(&r).Elem())
	if d.err == nil && d.rest != "" {
		d.err = errBroken
	}
	return r, d.err
}

// requirePrivate returns an error if the file is not of this type, or if others than root own it or
// may write it. In such a folder below root's /run, only root can exchange a name.
func requirePrivate(info fs.FileInfo, kind fs.FileMode) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode().Type() != kind || stat.Uid != 0 || stat.Mode&0o022 != 0 {
		return fs.ErrPermission
	}
	return nil
}

// requireDir returns an error if others than root own the folder or may write it.
func requireDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	return requirePrivate(info, fs.ModeDir)
}

// readCacheFile reads the cache file in dir, if only root can write it.
func readCacheFile(dir string) (string, error) {
	if err := requireDir(dir); err != nil {
		return "", err
	}
	// A FIFO of this name would block the open for ever.
	f, err := os.OpenFile(filepath.Join(dir, planFile), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if err := requirePrivate(info, 0); err != nil {
		return "", err
	}
	data, err := regular.Limited(f, maxCacheBytes)
	return string(data), err
}

// savePlan writes the cache file by rename, so that other hooks read the old or the new one. It
// makes dir if missing, requires that only root can write it, and removes old temporary files.
func savePlan(dir string, head []byte, r Compiled) error {
	data := append(head, encodeResult(r)...)
	if len(data) > maxCacheBytes {
		return errBroken
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := requireDir(dir); err != nil {
		return err
	}
	removeOldTemps(dir)
	return regular.Replace(filepath.Join(dir, planFile), tempPrefix, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// tempPrefix is the beginning of the names of temporary files. A hook needs one for a millisecond.
const tempPrefix = "file-"

// CreateTemp creates a temporary file in dir. It removes killed hooks' files, older than a minute.
func CreateTemp(dir string) (*os.File, error) {
	removeOldTemps(dir)
	return os.CreateTemp(dir, tempPrefix)
}

func removeOldTemps(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	for _, file := range left {
		if info, err := os.Lstat(file); err == nil && time.Since(info.ModTime()) > time.Minute {
			os.Remove(file)
		}
	}
}
