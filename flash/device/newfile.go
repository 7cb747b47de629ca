package device

import (
	"cmp"
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

// FilePrefix says that a name is that of a file to make, whatever it looks like.
const FilePrefix = "file:"

// imageEndings are those of names that can only mean a file with a plain image.
var imageEndings = []string{".img", ".image", ".raw", ".wic", ".disk", ".dd", ".bin", ".sdcard", ".sdimg", ".hddimg", ".direct"}

// newFile describes a virtual disk that does not exist yet. It refuses names of devices
// that are mistyped, unplugged or another machine's: the card would stay as it is.
func (m machine) newFile(name string, meant bool) (Device, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return Device{}, err
	}
	if m.amongDevices(path) {
		return Device{}, fmt.Errorf("no such device%s\nnext: devices", m.suggestDisk(name))
	}
	if _, err := os.Lstat(path); err == nil {
		return Device{}, fmt.Errorf("%s is a link to nothing%s\nnext: devices", path, m.suggestDisk(name))
	}
	if why := strangeNameReason(name); why != "" && !meant {
		return Device{}, fmt.Errorf("%s; %s%s would make a file of that name%s\nnext: devices", why, FilePrefix, name, m.suggestDisk(name))
	}
	return Device{Path: path, Kind: File}, nil
}

// strangeNameReason explains why no file with an image has such a name; "" if one may have it.
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

// amongDevices is true where a file at path would lie among the devices: below /dev by
// that name, through a link, or where another folder shows the same (that of a chroot).
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

// sameMount says whether a folder lies on the file system of the devices, where they
// have one of their own.
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

// suggestDisk names the disk that was perhaps meant, if it can be written.
func (m machine) suggestDisk(name string) string {
	u, err := m.findUses()
	if err != nil {
		return ""
	}
	disks, _ := m.listDisks(u) // without them there is nothing to name
	var names []string
	for _, d := range disks {
		if d.Refused == "" {
			names = append(names, filepath.Base(d.Path))
		}
	}
	base := filepath.Base(name[strings.LastIndexByte(name, ':')+1:])
	near := plaintext.Nearest(cmp.Or(base[strings.LastIndexByte(base, '\\')+1:], base), names)
	if near == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %s?", m.nodePath(strings.ReplaceAll(near, " or ", " or "+m.dev+"/")))
}
