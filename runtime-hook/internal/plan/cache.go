package plan

// This file keeps a board's compiled plan in /run, so that the next container only has to
// check that the board is unchanged. It ignores, then replaces, a file that others than root
// may write, that is incomplete, or that another hook wrote.

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

// CacheDir is the folder for files that the hook may lose.
const CacheDir = "/run/slipway"

const (
	cacheMagic    = "slipway plan 1\n"
	maxCacheBytes = 8 << 20
	planFile      = "plan"
)

// savedPlan is a plan with all that it was made from.
type savedPlan struct {
	Hook    Seen // the program: another one may make another plan
	Options Options
	Files   []csv.File
	Compiled
}

// Compiled is the outcome of compiling.
type Compiled struct {
	Plan     Plan
	Problems []csv.Problem
	Watch    Watch
}

// Load returns the board's plan for the lists, from the cache if that has it. looked
// means that somebody just checked that the board is still the same.
func Load(files []csv.File, o Options, looked bool) (Plan, []csv.Problem) {
	hook, known := statProgram()
	if known {
		if r, ok := loadPlan(CacheDir, fileHead(hook, o, files), looked); ok {
			return r.Plan, r.Problems
		}
	}
	entries, problems := csv.Parse(files)
	p, more, watch := Watched("/", entries, o)
	r := Compiled{p, append(problems, more...), watch}
	if known && watch.OldEnough(time.Now().UnixNano()) {
		// A board whose /run cannot be written to works without.
		_ = savePlan(CacheDir, savedPlan{hook, o, files, r})
	}
	return r.Plan, r.Problems
}

// statProgram returns the file that this process runs.
func statProgram() (Seen, bool) {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &stat); err != nil {
		return Seen{}, false
	}
	return Seen{Dev: uint64(stat.Dev), Inode: stat.Ino, Size: stat.Size, Changed: stat.Ctim.Nano(), Written: stat.Mtim.Nano()}, true
}

// loadPlan reads the plan whose file begins with want, if there is one and the board is
// unchanged.
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

// fileHead returns the first bytes of the file of a plan that the hook made from the
// files.
func fileHead(hook Seen, o Options, files []csv.File) []byte {
	b := []byte(cacheMagic + typeSignature(reflect.TypeOf(savedPlan{})) + "\n")
	b = appendValue(b, reflect.ValueOf(hook))
	b = appendValue(b, reflect.ValueOf(o))
	return appendValue(b, reflect.ValueOf(files))
}

func encodeResult(r Compiled) []byte {
	b := appendValue(nil, reflect.ValueOf(r))
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

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

// openDir opens the folder if only root can change its files.
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

// requirePrivate refuses a file that is not of the kind, or that others than root may
// write.
func requirePrivate(fd int, kind uint32) (stat unix.Stat_t, err error) {
	if err := unix.Fstat(fd, &stat); err != nil {
		return stat, err
	}
	if stat.Mode&unix.S_IFMT != kind || stat.Uid != 0 || stat.Mode&0o022 != 0 {
		return stat, unix.EPERM
	}
	return stat, nil
}

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

// savePlan writes the file by rename, so that others read the old one or the new one.
func savePlan(dir string, k savedPlan) error {
	data := append(fileHead(k.Hook, k.Options, k.Files), encodeResult(k.Compiled)...)
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

// openNew opens the file that becomes the next one, for one hook at a time. A second
// hook writes none. All hooks use one name, so a killed hook leaves one file at most.
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
	// It may have become the current one before it was locked.
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
