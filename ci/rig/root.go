package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func (r root) pathInside(path ...string) string {
	return filepath.Join(append([]string{r.at, "root"}, path...)...)
}

// mountRoot mounts the root: an overlay of the layers whose changes stay in memory, sysfs, /run,
// devices and the binds. With r.network, it also copies the resolver's files.
func (r root) mountRoot() error {
	if err := os.MkdirAll(r.at, 0o755); err != nil {
		return err
	}
	if err := mount("tmpfs", r.at, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	if err := r.mountOverlay(); err != nil {
		return err
	}
	for _, m := range []struct {
		kind, at, options string
		flags             uintptr
	}{
		{"sysfs", "sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "run", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "dev", "mode=755", unix.MS_NOSUID},
		{"devpts", "dev/pts", "newinstance,ptmxmode=0666,mode=620", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "dev/shm", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		if err := os.MkdirAll(r.pathInside(m.at), 0o755); err != nil {
			return err
		}
		if err := mount(m.kind, r.pathInside(m.at), m.kind, m.flags, m.options); err != nil {
			return err
		}
	}
	if err := r.makeDevices(); err != nil {
		return err
	}
	for _, b := range r.binds {
		if err := b.mountAt(r.pathInside(b.at)); err != nil {
			return err
		}
	}
	return r.copyResolver()
}

// copyResolver copies /etc/resolv.conf and /etc/hosts into a root with this machine's network.
func (r root) copyResolver() error {
	if !r.network {
		return nil
	}
	inside, err := os.OpenRoot(r.pathInside("/"))
	if err != nil {
		return err
	}
	defer inside.Close()
	for _, file := range []string{"/etc/resolv.conf", "/etc/hosts"} {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		_ = inside.Remove(file[1:]) // it may be a link to a file of this machine
		if err := inside.WriteFile(file[1:], data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// mountAt bind-mounts the folder or file at a path, read-only unless b.write is set.
func (b bind) mountAt(at string) error {
	if err := b.makeMountPoint(at); err != nil {
		return err
	}
	if err := mount(b.from, at, "", unix.MS_BIND, ""); err != nil || b.write {
		return err
	}
	return mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// makeMountPoint creates a folder at a path if b.from is one, else an empty file, if none is there.
func (b bind) makeMountPoint(at string) error {
	info, err := os.Stat(b.from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(at, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL, 0o644)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return f.Close()
}

// mountOverlay mounts the layers. An overlay wants the uppermost layer first, and escaped colons.
func (r root) mountOverlay() error {
	for _, dir := range []string{"root", "changes", "work"} {
		if err := os.Mkdir(filepath.Join(r.at, dir), 0o755); err != nil {
			return err
		}
	}
	var lower []string
	for _, layer := range slices.Backward(r.layers) {
		lower = append(lower, strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`).Replace(layer))
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", strings.Join(lower, ":"), filepath.Join(r.at, "changes"), filepath.Join(r.at, "work"))
	return mount("overlay", r.pathInside(), "overlay", 0, options)
}

// makeDevices creates what programs expect in /dev, as nodes and links. DPDK's net_tap needs tun.
func (r root) makeDevices() error {
	for name, number := range map[string][2]uint32{
		"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "tty": {5, 0}, "net/tun": {10, 200},
	} {
		path := r.pathInside("dev", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(path, unix.S_IFCHR, int(unix.Mkdev(number[0], number[1]))); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(to, r.pathInside("dev", name)); err != nil {
			return err
		}
	}
	return nil
}

func mount(from, at, kind string, flags uintptr, options string) error {
	if err := unix.Mount(from, at, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, at, err)
	}
	return nil
}
