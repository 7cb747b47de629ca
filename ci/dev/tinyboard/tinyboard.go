// Package tinyboard makes a machine that looks like a board to container hooks, in a
// mount namespace of its own: its libraries, links, folders, devices and the list of
// them, an image with a real ld.so, and runc containers of it on fresh overlays. It
// is for commands that start containers again and again.
package tinyboard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

// Lists is the board's list.
const Lists = "/etc/nvidia-container-runtime/host-files-for-container.d/l4t.csv"

// Size is how much of each kind the board gives.
type Size struct{ Libraries, Links, Devices, Folders int }

// Board is such a machine, as long as its namespace has a thread.
type Board struct {
	Dir  string // a tmpfs
	Hook string // our hook
	Size Size
	List string // the text of Lists

	runs atomic.Int64
}

// Packages are the Debian packages that boards and their containers need.
var Packages = []string{"runc", "busybox-static", "mount"}

// Needs says what the machine lacks.
func Needs() error {
	if os.Getuid() != 0 {
		return errors.New("needs root: it mounts overlays and runs containers")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		return errors.New("needs runc; apt-get install runc")
	}
	if _, err := os.Stat("runtime-hook/go.mod"); err != nil {
		return errors.New("builds the hook from runtime-hook; run it in the clone")
	}
	return nil
}

// BuildHook builds our hook as boards get it.
func BuildHook(ctx context.Context, path string) error {
	return run.Run(ctx, run.Command{
		Argv: []string{"go", "build", "-C", "runtime-hook", "-trimpath", "-ldflags=-s -w", "-o", path, "."},
		Env:  []string{"CGO_ENABLED=0"},
	})
}

// In calls work on a thread with a mount namespace of its own, in which dir is the
// board's memory. So are the programs that work starts. What it mounts ends with
// the thread, which Go ends as it is never unlocked.
func In(dir, hook string, size Size, work func(*Board) error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		b := &Board{Dir: dir, Hook: hook, Size: size}
		err := b.begin()
		if err == nil {
			err = work(b)
		}
		b.end()
		done <- err
	}()
	return <-done
}

func (b *Board) begin() error {
	// What runc create leaves becomes this process's child.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, at := range []string{b.Dir, "/run", devices} {
		if err := errors.Join(os.MkdirAll(at, 0o755), unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID, "mode=755")); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", at, err)
		}
	}
	if err := overlay("/etc", "/etc", filepath.Join(b.Dir, "etc")); err != nil {
		return err
	}
	if err := b.makeFiles(); err != nil {
		return err
	}
	return Write(Lists, []byte(b.List), 0o644)
}

// end lets go of the tmpfs, so that its folder can be removed while the thread is
// still ending.
func (b *Board) end() {
	_ = unix.Unmount(b.Dir, unix.MNT_DETACH)
}

// devices is where the board's devices are: in /dev, which a container has in memory,
// and in no one's way.
const devices = "/dev/shm"

// shared is how many of four libraries are in the folder Shared: on real boards the rest
// is in folders that hold nothing else.
const shared = 3

// Shared is a folder in which the image has a library too, as in /usr/lib.
func (b *Board) Shared() string { return filepath.Join(b.Dir, "board/lib") }

// Library is the path of the board's library i, and the name that programs know it by.
// Where a link leads to it, that is the link's.
func (b *Board) Library(i int) (path, soname string) {
	dir := b.Shared()
	if i%4 >= shared {
		dir = filepath.Join(dir, "plugins")
	}
	soname = fmt.Sprintf("libboard%d.so", i)
	if i < b.Size.Links {
		soname += ".1"
		return filepath.Join(dir, soname+".0"), soname
	}
	return filepath.Join(dir, soname), soname
}

// Device is the path of the board's device i, another name of /dev/null.
func (b *Board) Device(i int) string { return fmt.Sprintf("%s/board%d", devices, i) }

// Folder is the path of the board's folder i.
func (b *Board) Folder(i int) string {
	return filepath.Join(b.Dir, fmt.Sprintf("board/share/folder%d", i))
}

// Link is the path of the link to the board's library i.
func (b *Board) Link(i int) string {
	path, _ := b.Library(i)
	return strings.TrimSuffix(path, ".0")
}

// makeFiles makes the board's files and the list of them.
func (b *Board) makeFiles() error {
	var list strings.Builder
	var errs []error
	each := func(n int, kind string, path func(i int) string, make func(p string, i int) error) {
		for i := range n {
			p := path(i)
			fmt.Fprintf(&list, "%s, %s\n", kind, p)
			errs = append(errs, make(p, i))
		}
	}
	library := func(i int) string { p, _ := b.Library(i); return p }
	each(b.Size.Libraries, "lib", library, func(p string, i int) error {
		_, soname := b.Library(i)
		return Write(p, sharedObject(soname), 0o644)
	})
	each(b.Size.Links, "sym", b.Link, func(p string, i int) error { return os.Symlink(filepath.Base(library(i)), p) })
	each(b.Size.Folders, "dir", b.Folder, func(p string, _ int) error { return Write(p+"/file", nil, 0o644) })
	each(b.Size.Devices, "dev", b.Device, func(p string, _ int) error {
		return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	})
	b.List = list.String()
	return errors.Join(errs...)
}

// Write writes a file, and its folder where that is missing.
func Write(p string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	return os.WriteFile(p, data, mode)
}

// overlay mounts an overlay over lower at at, with its changes in the new folder
// changes.
func overlay(lower, at, changes string) error {
	upper, work := filepath.Join(changes, "upper"), filepath.Join(changes, "work")
	for _, dir := range []string{upper, work, at} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
	if err := unix.Mount("overlay", at, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay on %s: %w", at, err)
	}
	return nil
}
