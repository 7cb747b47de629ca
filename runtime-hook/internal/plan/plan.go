// Package plan turns CSV entries into the mounts, links and devices of a container, each checked
// against the board's own file tree. It changes nothing and knows no container; see inject.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/elf"
)

// AltRoot is a second tree on Yocto boards of another layout, with files at NVIDIA's usual paths.
const AltRoot = "/usr/share/nvidia-container-passthrough"

// releaseFile contains the L4T release. NVIDIA's libraries read it, so all containers get it.
const releaseFile = "/etc/nv_tegra_release"

// Mount is a file or folder of the board that appears in the container, read-only.
type Mount struct {
	Source string `json:"source"` // on the board
	Path   string `json:"path"`   // in the container
	Folder bool   `json:"folder,omitempty"`
	From   string `json:"from"`

	// Listed is the folder's path in a list, if the board has links from it to Path, such as from
	// /lib to /usr/lib, and the container may not have them.
	Listed string `json:"listed,omitempty"`
}

// Link is a symbolic link that is made in the container.
type Link struct {
	Path   string `json:"path"`
	Target string `json:"target"`
	File   string `json:"file,omitempty"` // the file at its end on the board; "" for a folder
	From   string `json:"from"`

	source string // the link itself, on the board
}

// Device is a character device that is made in the container.
type Device struct {
	Source string `json:"source"` // on the board
	Path   string `json:"path"`
	Major  uint32 `json:"major"`
	Minor  uint32 `json:"minor"`
	Mode   uint32 `json:"mode"` // permission bits
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	From   string `json:"from"`
}

// nobody is what the kernel shows for a group that the hook's user namespace lacks.
const nobody = 65534

// ForGroup reports whether members of the device's group can open it for reading and
// writing, and others cannot. Root's group does not count: its members may do more.
func (d Device) ForGroup() bool {
	const readWrite = 0o6
	return d.GID != 0 && d.GID != nobody && d.Mode>>3&readWrite == readWrite && d.Mode&readWrite != readWrite
}

// Plan is what a container gets, in the order in which the hook makes it: folders, the outer ones
// first, then files, links and devices. Libraries lists those files that are shared libraries.
type Plan struct {
	Mounts    []Mount   `json:"mounts"`
	Links     []Link    `json:"links"`
	Devices   []Device  `json:"devices"`
	Libraries []Library `json:"libraries"`
}

// Compiled is a plan with its problems, and the paths that it depends on.
type Compiled struct {
	Plan     Plan
	Problems []csv.Problem
	Watch    Watch
}

// Compile makes the plan for the entries and releaseFile, from the files at root, or else AltRoot,
// without those that a pattern of ignore matches. Missing and bad files become problems.
func Compile(root string, entries []csv.Entry, ignore []string) Compiled {
	w := &watcher{seen: map[string]int{}}
	c := &compiler{
		watcher: w,
		ignore:  ignore,
		trees:   []*tree{newTree(root, w), newTree(strings.TrimSuffix(root, "/")+AltRoot, w)},
		seen:    map[string]csv.Entry{},
		made:    map[string]csv.Entry{},
		libs:    map[string]elf.Library{},
	}
	for _, e := range entries {
		c.addEntry(e)
	}
	if t := c.trees[0]; t.hasPath(releaseFile) && c.seen[releaseFile].Path == "" {
		c.addEntry(csv.Entry{Kind: csv.Library, Path: releaseFile, File: "built in"})
	}
	return Compiled{c.orderPlan(), c.problems, w.list}
}

// compiler collects the plan while Compile goes through the entries.
type compiler struct {
	*watcher
	ignore   []string
	trees    []*tree // the board's root, then AltRoot; the first tree that has a path provides it
	plan     Plan
	problems []csv.Problem
	seen     map[string]csv.Entry   // by path as listed
	made     map[string]csv.Entry   // by path in the container
	libs     map[string]elf.Library // by path on the board
}

func (c *compiler) addProblem(e csv.Entry, cause csv.Cause, unused bool, format string, args ...any) {
	c.problems = append(c.problems, e.Problem(cause, unused, format, args...))
}

// addEntry adds all paths that the entry's pattern matches, from the first tree that has any. An
// ignored, repeated or missing entry becomes a problem; one repeated as another kind is added too.
func (c *compiler) addEntry(e csv.Entry) {
	if c.skipIgnored(e, e.Path) {
		return
	}
	if first, ok := c.seen[e.Path]; ok {
		c.addProblem(e, csv.Duplicate, false, "%s is listed already at %s:%d as %s", e.Path, first.File, first.Line, first.Kind)
		if first.Kind == e.Kind {
			return
		}
	}
	c.seen[e.Path] = e
	for _, t := range c.trees {
		paths, err := t.expandPattern(e.Path)
		if err != nil {
			c.addProblem(e, csv.Refused, true, "%s: %v", e.Path, err)
			return
		}
		if len(paths) == 1 && !t.hasPath(paths[0]) {
			continue
		}
		for _, p := range paths {
			if !c.skipIgnored(e, p) {
				c.addPath(t, e, p)
			}
		}
		if len(paths) > 0 {
			return
		}
	}
	// One list of devices serves boards that each have only some of them.
	c.addProblem(e, csv.Missing, e.Kind != csv.Device, "the board has no %s", e.Path)
}

// addPath adds the folder, device or file at p to the plan. An error becomes a problem.
func (c *compiler) addPath(t *tree, e csv.Entry, p string) {
	at, err := t.resolveFolder(p)
	if err == nil {
		switch e.Kind {
		case csv.Folder:
			err = c.addFolder(t, e, p, at)
		case csv.Device:
			err = c.addDevice(t, e, at)
		default:
			err = c.addFile(t, e, at)
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, syscall.ELOOP):
		c.addProblem(e, csv.Loop, true, "the links at %s go in a circle", p)
	case errors.Is(err, fs.ErrNotExist):
		c.addProblem(e, csv.Missing, true, "%s points at nothing: %v", p, err)
	default:
		c.addProblem(e, csv.Refused, true, "%v", err)
	}
}

// addFolder adds the mount of the folder at the path at, and at listed if that is another, or sets
// Listed of an equal mount. It refuses system folders. Hiding much of an image adds a problem.
func (c *compiler) addFolder(t *tree, e csv.Entry, listed, at string) error {
	end, info, err := t.stat(at)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is %s", at, describeMode(info.Mode()))
	}
	if t == c.trees[0] && csv.System(end) || csv.System(at) {
		return fmt.Errorf("%s leads to %s, which would replace the container's own", at, end)
	}
	if strings.Count(at, "/") == 1 || wideFolders[at] {
		c.addProblem(e, csv.Dangerous, false, "%s hides all that the image has there", at)
	}
	m := Mount{Source: t.hostPath(end), Path: at, Folder: true, From: listedAt(e)}
	if listed != at {
		m.Listed = listed
	}
	if i := slices.IndexFunc(c.plan.Mounts, func(o Mount) bool { return o.Source == m.Source && o.Path == at && o.Listed == "" }); i >= 0 {
		c.plan.Mounts[i].Listed = m.Listed // the lists name the link's target too
	}
	c.addMount(e, m)
	return nil
}

// wideFolders are folders below the first level whose contents most images need.
var wideFolders = map[string]bool{"/usr/bin": true, "/usr/sbin": true, "/usr/lib": true, "/usr/lib64": true, "/usr/local": true, "/usr/share": true, "/var/lib": true, "/var/run": true}

// addFile adds links from at on and the file at their end. A folder or unsafe mode adds a problem.
func (c *compiler) addFile(t *tree, e csv.Entry, at string) error {
	links, end, err := followLinks(t, at, listedAt(e))
	if err != nil {
		return err
	}
	info, err := t.lstat(end)
	switch {
	case err != nil:
		return err
	case info.IsDir() && len(links) > 0:
		c.addProblem(e, csv.Odd, false, "%s leads to the folder %s; the link is made, the folder is not given", at, end)
		end = ""
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is %s", end, describeMode(info.Mode()))
	case info.Mode().Perm()&0o002 != 0:
		c.addProblem(e, csv.Dangerous, false, "anyone may write to %s on the board and so into every container; chmod o-w it", end)
	case info.Mode().Perm()&0o044 == 0:
		c.addProblem(e, csv.Dangerous, false, "%s is for its owner only on the board, and every container could read it", end)
	}
	if end != "" {
		c.addMount(e, Mount{Source: t.hostPath(end), Path: end, From: listedAt(e)})
	}
	for _, l := range links {
		if end != "" {
			l.File = t.hostPath(end)
		}
		if !c.skipIgnored(e, l.Path) && c.reservePath(e, l.Path) {
			c.plan.Links = append(c.plan.Links, l)
		}
	}
	return nil
}

// followLinks returns the chain of symlinks from at, each marked with from, and the path at its
// end. A link has the resolved path as its text if a folder in its text is a link itself.
func followLinks(t *tree, at, from string) (links []Link, end string, err error) {
	for len(links) <= maxLinks {
		text, err := t.readlink(at)
		if err != nil {
			return nil, "", err
		}
		if text == "" {
			return links, at, nil
		}
		next, err := t.nextTarget(at, text)
		if err != nil {
			return nil, "", err
		}
		plain := path.Clean(text) // where the link leads without the links of folders
		if !path.IsAbs(text) {
			plain = path.Join(path.Dir(at), text)
		}
		if plain != next {
			text = next
		}
		links = append(links, Link{Path: at, Target: text, From: from, source: t.hostPath(at)})
		at = next
	}
	return nil, "", syscall.ELOOP
}

// addDevice adds the character device at the path at. One outside of /dev is also a problem.
func (c *compiler) addDevice(t *tree, e csv.Entry, at string) error {
	end, info, err := t.stat(at)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode()&fs.ModeCharDevice == 0 || !ok {
		return fmt.Errorf("%s is %s", at, describeMode(info.Mode()))
	}
	if !strings.HasPrefix(at, "/dev/") {
		c.addProblem(e, csv.Dangerous, false, "%s is a device outside of /dev", at)
	}
	if c.reservePath(e, at) {
		c.plan.Devices = append(c.plan.Devices, Device{
			Source: t.hostPath(end), Path: at, Major: unix.Major(stat.Rdev), Minor: unix.Minor(stat.Rdev),
			Mode: stat.Mode & 0o777, UID: stat.Uid, GID: stat.Gid, From: listedAt(e),
		})
	}
	return nil
}

// describeMode says what kind of file m is, and what to change in the list.
func describeMode(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder; list it as dir"
	case m&fs.ModeCharDevice != 0:
		return "a device; list it as dev"
	case m.IsRegular():
		return "a file; list it as lib"
	}
	return "a FIFO, a socket or a block device, which no container gets; take it out of the list"
}

// addMount adds m, of the entry e, to the plan. It does nothing if another has m's path already.
func (c *compiler) addMount(e csv.Entry, m Mount) {
	if c.reservePath(e, m.Path) {
		c.plan.Mounts = append(c.plan.Mounts, m)
	}
}

// reservePath reserves the path p in the container for the entry e. It returns false if p is taken.
func (c *compiler) reservePath(e csv.Entry, p string) bool {
	if _, ok := c.made[p]; ok {
		return false
	}
	c.made[p] = e
	return true
}

// listedAt returns FILE:LINE of the entry; only FILE for one that is built in.
func listedAt(e csv.Entry) string {
	if e.Line == 0 {
		return e.File
	}
	return fmt.Sprintf("%s:%d", e.File, e.Line)
}

// orderPlan returns the plan with the folders first, and its libraries. It leaves out entries that
// a folder contains already, and those that cannot be made in a folder because it is read-only.
func (c *compiler) orderPlan() Plan {
	folders, files := c.sortMounts()
	var p Plan
	for _, m := range folders {
		if c.keepsPath(p.Mounts, m.Path, m.Source, fs.ModeDir, fs.ModeSymlink) {
			p.Mounts = append(p.Mounts, m)
		}
	}
	given := p.Mounts
	for _, m := range files {
		if c.keepsPath(given, m.Path, m.Source, 0) {
			p.Mounts = append(p.Mounts, m)
		}
	}
	for _, l := range c.plan.Links {
		if c.keepsPath(given, l.Path, l.source, 0) {
			p.Links = append(p.Links, l)
		}
	}
	for _, d := range c.plan.Devices {
		// No source: device files in a mounted folder do not open, so a device is always made.
		if c.keepsPath(given, d.Path, "", 0, fs.ModeDevice|fs.ModeCharDevice) {
			p.Devices = append(p.Devices, d)
		}
	}
	p.Libraries = c.findLibraries(p)
	return p
}

// sortMounts returns the mounts of folders, outer before inner ones, and those of files.
func (c *compiler) sortMounts() (folders, files []Mount) {
	for _, m := range c.plan.Mounts {
		if m.Folder {
			folders = append(folders, m)
		} else {
			files = append(files, m)
		}
	}
	slices.SortFunc(folders, func(a, b Mount) int { return cmp.Compare(a.Path, b.Path) })
	return folders, files
}

// keepsPath reports whether the plan keeps p, with this source: not if the enclosing folder already
// contains the source, or has no file of these kinds at p to mount over, which becomes a problem.
func (c *compiler) keepsPath(folders []Mount, p, source string, kinds ...fs.FileMode) bool {
	folder, rest := enclosingFolder(folders, p)
	if rest == "" {
		return true
	}
	if source == folder.Source+"/"+rest {
		return false
	}
	kind, ok := c.typeIn(folder.Source, rest)
	if ok && slices.Contains(kinds, kind) {
		return true
	}
	why := "lacks it"
	if ok {
		why = "has something else there"
	}
	c.addProblem(c.made[p], csv.Refused, true, "%s lies in the folder %s, which is given read-only and %s", p, folder.Path, why)
	return false
}

// enclosingFolder returns the innermost of sorted folders above p, and p's rest below; "" if none.
func enclosingFolder(folders []Mount, p string) (in Mount, rest string) {
	for _, f := range folders {
		if r, ok := strings.CutPrefix(p, f.Path+"/"); ok {
			in, rest = f, r
		}
	}
	return in, rest
}

// typeIn returns the type of the board's file rest in folder; false if missing or behind a symlink.
// It watches each path that it looks at.
func (c *compiler) typeIn(folder, rest string) (fs.FileMode, bool) {
	at := folder
	for {
		part, after, more := strings.Cut(rest, "/")
		at, rest = at+"/"+part, after
		c.watchPath(at)
		info, err := os.Lstat(at)
		if err != nil || more && !info.IsDir() {
			return 0, false
		}
		if !more {
			return info.Mode().Type(), true
		}
	}
}
