package plan

// This file caches a board's compiled plan in /run, so that for the next container the hook only
// has to check that the board is unchanged. It ignores and replaces a cache file that others than
// root may write, that is incomplete, or that another hook wrote.

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"reflect"
	"time"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
)

// CacheDir is the folder for the hook's caches. They may be deleted at any time.
const CacheDir = "/run/slipway"

const (
	cacheMagic    = "slipway plan 1\n"
	maxCacheBytes = 1 << 20
	planFile      = "plan"
)

// savedPlan is a compiled plan with all that it was made from: program, settings and CSV files.
type savedPlan struct {
	Hook   Seen // the hook's program file: another version may make another plan
	Ignore []string
	Files  []csv.File
	Compiled
}

// Load returns the board's plan for the CSV files: from the cache if that is valid, otherwise
// compiled and cached. looked means that the caller has just checked that the board is unchanged.
func Load(files []csv.File, ignore []string, looked bool) (Plan, []csv.Problem) {
	hook, known := statProgram()
	if known {
		if r, ok := loadPlan(CacheDir, fileHead(hook, ignore, files), looked); ok {
			return r.Plan, r.Problems
		}
	}
	entries, problems := csv.Parse(files)
	r := Compile("/", entries, ignore)
	r.Problems = append(problems, r.Problems...)
	if known && r.Watch.OldEnough(time.Now().UnixNano()) {
		// If /run is not writable, the hook works without a cache.
		_ = savePlan(CacheDir, savedPlan{hook, ignore, files, r})
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

// fileHead returns the first bytes of the cache file for a plan that this hook program makes from
// the settings and CSV files.
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

// openDir opens a folder that only root can write, else it returns an error.
func openDir(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if _, err := requirePrivate(fd, unix.S_IFDIR); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// requirePrivate returns an error if the open file is not of this kind, or if others than root own
// it or may write it.
func requirePrivate(fd int, kind uint32) (stat unix.Stat_t, err error) {
	if err := unix.Fstat(fd, &stat); err != nil {
		return stat, err
	}
	if stat.Mode&unix.S_IFMT != kind || stat.Uid != 0 || stat.Mode&0o022 != 0 {
		return stat, unix.EPERM
	}
	return stat, nil
}

// readCacheFile reads the cache file in dir, if only root can write it.
func readCacheFile(dir string) (string, error) {
	at, err := openDir(dir)
	if err != nil {
		return "", err
	}
	defer unix.Close(at)
	// A FIFO of this name would block the open for ever.
	fd, err := unix.Openat(at, planFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), planFile)
	defer f.Close()
	stat, err := requirePrivate(fd, unix.S_IFREG)
	if err != nil {
		return "", err
	}
	if stat.Size > maxCacheBytes {
		return "", errBroken
	}
	data := make([]byte, stat.Size)
	_, err = io.ReadFull(f, data)
	return string(data), err
}

// savePlan writes the cache file by rename, so that other hooks read the old or the new one.
func savePlan(dir string, k savedPlan) error {
	data := append(fileHead(k.Hook, k.Ignore, k.Files), encodeResult(k.Compiled)...)
	if len(data) > maxCacheBytes {
		return errBroken
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	at, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	f, err := openNew(at, planFile+".new")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return unix.Renameat(at, planFile+".new", at, planFile)
}

// openNew opens and locks the file name, which the caller fills and renames. If another hook has
// the lock, it returns an error. All hooks use one name, so a killed hook leaves one file at most.
func openNew(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	mine, err := requirePrivate(fd, unix.S_IFREG)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	// Another hook may have renamed it before the lock.
	var named unix.Stat_t
	if err == nil {
		err = unix.Fstatat(at, name, &named, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil && (named.Ino != mine.Ino || named.Dev != mine.Dev) {
		err = unix.EAGAIN
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
