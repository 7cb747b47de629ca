package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"slipway/layers/plaintext"
)

// FilePrefix before a name makes it the name of a file, whatever it looks like.
const FilePrefix = "file:"

// imageEndings are the suffixes of plain image files.
var imageEndings = []string{".img", ".image", ".raw", ".wic", ".disk", ".dd", ".bin", ".sdcard", ".sdimg", ".hddimg", ".direct"}

// newFile describes a virtual disk to create. It refuses names that look like a mistyped or
// unplugged device or a remote path; meant, from FilePrefix, allows odd names outside /dev.
func (m machine) newFile(name string, meant bool) (Device, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return Device{}, err
	}
	if m.amongDevices(path) {
		return Device{}, errors.New("no such device\nnext: devices")
	}
	if _, err := os.Lstat(path); err == nil {
		return Device{}, fmt.Errorf("%s is a link to nothing\nnext: devices", path)
	}
	if like := otherName().FindStringSubmatch(name); like != nil && !meant {
		right := plaintext.Either(like[1] == "", "/dev/"+name, "usb:"+like[1])
		return Device{}, fmt.Errorf("no such device; its name here is %s\nnext: repeat the line with %[1]s for %s", right, name)
	}
	if why := strangeNameReason(name); why != "" && !meant {
		return Device{}, fmt.Errorf("%s; %s%s would make a file of that name\nnext: devices", why, FilePrefix, name)
	}
	return Device{Path: path, Kind: File}, nil
}

// otherName matches the names that other programs have for a Jetson, by its port, and for an rshim.
var otherName = plaintext.Regexp(`^(?:usb)?([0-9]+-[0-9]+(?:\.[0-9]+)*)$|^rshim[0-9]+$`)

// strangeNameReason returns why name is probably not meant for an image file; "" if it may be one.
func strangeNameReason(name string) string {
	host, _, remote := strings.Cut(name, ":")
	switch {
	case strings.TrimSpace(name) != name:
		return "a name that begins or ends with a blank"
	case strings.ContainsRune(name, '\\'):
		return "a path of Windows; here disks are called /dev/sdX, /dev/mmcblkN or /dev/nvmeXnY"
	case remote && !strings.Contains(host, "/"):
		return "a place on another machine, and flash writes to devices of this one"
	case strings.HasSuffix(name, "/") || filepath.Base(name) == "..":
		return "no such folder, and a folder cannot be flashed"
	case !slices.Contains(imageEndings, strings.ToLower(filepath.Ext(name))):
		return "no such device, and no name of an image file such as disk.img or disk.wic"
	}
	return ""
}

// amongDevices reports whether a file at path would lie in /dev: by its name, through a link, or in
// another mount of the same file system, as a chroot has.
func (m machine) amongDevices(path string) bool {
	dir := filepath.Dir(path)
	for {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			rest, _ := filepath.Rel(dir, path)
			return m.isDevice(path) || m.isDevice(filepath.Join(real, rest)) || m.sameMount(real)
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return m.isDevice(path)
		}
		dir = filepath.Dir(dir)
	}
}

// sameMount reports whether a folder is on /dev's file system; false if /dev has none of its own.
func (m machine) sameMount(dir string) bool {
	devices, above, there := deviceOf(m.dev), deviceOf(filepath.Dir(m.dev)), deviceOf(dir)
	return devices != 0 && devices != above && devices == there
}

// deviceOf returns the number of a folder's file system; 0 if the folder is gone.
func deviceOf(dir string) uint64 {
	info, err := os.Stat(dir)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Dev
}
