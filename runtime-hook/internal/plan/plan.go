// Package plan turns CSV entries into what a container gets: files and folders
// to mount, links and device nodes to make, each checked against the board's own
// file tree. It changes nothing and knows no container; see inject.
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

	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/elf"
)

// AltRoot is a second tree in which Yocto boards keep files under the names that
// NVIDIA's containers expect, where the board's own layout differs.
const AltRoot = "/usr/share/nvidia-container-passthrough"

// release is read by NVIDIA's libraries to know the board's L4T release, so it is
// given wherever it exists, listed or not.
const release = "/etc/nv_tegra_release"

// Mount is a file or folder of the board that appears in the container, read-only.
type Mount struct {
	Source string `json:"source"` // on the board
	Path   string `json:"path"`   // in the container
	Folder bool   `json:"folder,omitempty"`
	From   string `json:"from"`

	// A folder's path in a list, where the board gets from there to Path by links, as
	// from /lib to /usr/lib, and the container may not.
	Listed string `json:"listed,omitempty"`
}

// Link is a symbolic link that is made in the container.
type Link struct {
	Path   string `json:"path"`
	Target string `json:"target"`
	File   string `json:"file,omitempty"` // what stands at its end on the board; "" for a folder
	From   string `json:"from"`
	Soname bool   `json:"-"` // no list asks for it

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

// Plan is what a container gets, in the order in which it is made: folders, the
// outer ones first, then files, then links, then devices. The libraries are some
// of the files, by the names that programs know.
type Plan struct {
	Mounts    []Mount   `json:"mounts"`
	Links     []Link    `json:"links"`
	Devices   []Device  `json:"devices"`
	Libraries []Library `json:"libraries"`
	Wholes    []Whole   `json:"-"` // another way to the same
}

// Options are the board's settings for its plan.
type Options struct {
	Wholes bool     // look for folders that can be given whole
	Ignore []string // patterns of what is left out
}

// Compile reads root, the board's file tree, for what the entries ask. What
// cannot be given is a problem and the rest goes on.
func Compile(root string, entries []csv.Entry, o Options) (Plan, []csv.Problem) {
	p, problems, _ := Watched(root, entries, o)
	return p, problems
}

// Watched is Compile, and says what of the file tree the plan rests on.
func Watched(root string, entries []csv.Entry, o Options) (Plan, []csv.Problem, Watch) {
	w := &watcher{seen: map[string]int{}}
	c := &compiler{
		watcher: w,
		options: o,
		trees:   []*tree{newTree(root, w), newTree(strings.TrimSuffix(root, "/")+AltRoot, w)},
		seen:    map[string]csv.Entry{},
		made:    map[string]csv.Entry{},
		libs:    map[string]elf.Library{},
	}
	for _, e := range entries {
		c.add(e)
	}
	if t := c.trees[0]; t.has(release) && c.seen[release].Path == "" {
		c.add(csv.Entry{Kind: csv.Library, Path: release, File: "built in"})
	}
	return c.ordered(), c.problems, w.list
}

type compiler struct {
	*watcher
	options  Options
	trees    []*tree // the first that has a path gives it
	plan     Plan
	problems []csv.Problem
	seen     map[string]csv.Entry   // by path as listed
	made     map[string]csv.Entry   // by path in the container
	libs     map[string]elf.Library // by path on the board
	sonames  []Link                 // that no entry asks for
}

func (c *compiler) problem(e csv.Entry, cause csv.Cause, unused bool, format string, args ...any) {
	c.problems = append(c.problems, e.Problem(cause, unused, format, args...))
}

func (c *compiler) add(e csv.Entry) {
	if c.ignores(e, e.Path) {
		return
	}
	if first, ok := c.seen[e.Path]; ok {
		c.problem(e, csv.Duplicate, false, "%s is listed already at %s:%d as %s", e.Path, first.File, first.Line, first.Kind)
		if first.Kind == e.Kind {
			return
		}
	}
	c.seen[e.Path] = e
	for _, t := range c.trees {
		paths, err := t.glob(e.Path)
		if err != nil {
			c.problem(e, csv.Refused, true, "%s: %v", e.Path, err)
			return
		}
		if len(paths) == 1 && !t.has(paths[0]) {
			continue
		}
		for _, p := range paths {
			if !c.ignores(e, p) {
				c.addPath(t, e, p)
			}
		}
		if len(paths) > 0 {
			return
		}
	}
	c.missing(e)
}

// missing is an error for files and folders. One list of devices serves boards
// that each have only some of them, so there it is a note.
func (c *compiler) missing(e csv.Entry) {
	c.problem(e, csv.Missing, e.Kind != csv.Device, "the board has no %s", e.Path)
}

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
		c.problem(e, csv.Loop, true, "the links at %s go in a circle", p)
	case errors.Is(err, fs.ErrNotExist):
		c.problem(e, csv.Missing, true, "%s points at nothing: %v", p, err)
	default:
		c.problem(e, csv.Refused, true, "%v", err)
	}
}

func (c *compiler) addFolder(t *tree, e csv.Entry, listed, at string) error {
	end, info, err := t.stat(at)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is %s", at, what(info.Mode()))
	}
	if t == c.trees[0] && csv.System(end) || csv.System(at) {
		return fmt.Errorf("%s leads to %s, which would replace the container's own", at, end)
	}
	if strings.Count(at, "/") == 1 || wide[at] {
		c.problem(e, csv.Dangerous, false, "%s hides all that the image has there", at)
	}
	m := Mount{Source: t.host(end), Path: at, Folder: true, From: from(e)}
	if listed != at {
		m.Listed = listed
	}
	if i := slices.IndexFunc(c.plan.Mounts, func(o Mount) bool { return o.Source == m.Source && o.Path == at && o.Listed == "" }); i >= 0 {
		c.plan.Mounts[i].Listed = m.Listed // the lists name the link's end too
	}
	c.mount(e, m)
	return nil
}

// wide are folders below the first level that images live from.
var wide = map[string]bool{"/usr/bin": true, "/usr/sbin": true, "/usr/lib": true, "/usr/lib64": true, "/usr/local": true, "/usr/share": true, "/var/lib": true, "/var/run": true}

// addFile gives the file at the end of the links that begin at at, and the links.
func (c *compiler) addFile(t *tree, e csv.Entry, at string) error {
	links, end, err := chain(t, at, from(e))
	if err != nil {
		return err
	}
	info, err := t.lstat(end)
	switch {
	case err != nil:
		return err
	case info.IsDir() && len(links) > 0:
		c.problem(e, csv.Odd, false, "%s leads to the folder %s; the link is made, the folder is not given", at, end)
		end = ""
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is %s", end, what(info.Mode()))
	case info.Mode().Perm()&0o002 != 0:
		c.problem(e, csv.Dangerous, false, "anyone may write to %s on the board and so into every container; chmod o-w it", end)
	case info.Mode().Perm()&0o044 == 0:
		c.problem(e, csv.Dangerous, false, "%s is for its owner only on the board, and every container could read it", end)
	}
	if end != "" {
		c.mount(e, Mount{Source: t.host(end), Path: end, From: from(e)})
		c.sonameLink(t, e, end)
	}
	for _, l := range links {
		if end != "" {
			l.File = t.host(end)
		}
		c.link(e, l)
	}
	return nil
}

// chain lists the links from at to its end. Each says what the board's says,
// unless that goes through a folder that is a link on the board and need not be
// one in the container.
func chain(t *tree, at, from string) (links []Link, end string, err error) {
	for len(links) <= maxLinks {
		text, err := t.readlink(at)
		if err != nil {
			return nil, "", err
		}
		if text == "" {
			return links, at, nil
		}
		next, err := t.next(at, text)
		if err != nil {
			return nil, "", err
		}
		if lexical(at, text) != next {
			text = next
		}
		links = append(links, Link{Path: at, Target: text, From: from, source: t.host(at)})
		at = next
	}
	return nil, "", syscall.ELOOP
}

func lexical(at, text string) string {
	if path.IsAbs(text) {
		return path.Clean(text)
	}
	return path.Join(path.Dir(at), text)
}

func (c *compiler) addDevice(t *tree, e csv.Entry, at string) error {
	end, info, err := t.stat(at)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode()&fs.ModeCharDevice == 0 || !ok {
		return fmt.Errorf("%s is %s", at, what(info.Mode()))
	}
	if !strings.HasPrefix(at, "/dev/") {
		c.problem(e, csv.Dangerous, false, "%s is a device outside of /dev", at)
	}
	if c.claim(e, at) {
		c.plan.Devices = append(c.plan.Devices, Device{
			Source: t.host(end), Path: at, Major: major(stat.Rdev), Minor: minor(stat.Rdev),
			Mode: stat.Mode & 0o777, UID: stat.Uid, GID: stat.Gid, From: from(e),
		})
	}
	return nil
}

// major and minor take apart the kernel's device number as Linux packs it.
func major(dev uint64) uint32 { return uint32(dev>>8&0xfff | dev>>32&^0xfff) }
func minor(dev uint64) uint32 { return uint32(dev&0xff | dev>>12&^0xff) }

// what names a thing that is listed as something else, and what to do with it.
func what(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder; list it as dir"
	case m&fs.ModeCharDevice != 0:
		return "a device; list it as dev"
	case m&fs.ModeDevice != 0:
		return "a disk or the like (a block device), which no container gets; take it out of the list"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO, which no kind gives; take it out of the list"
	case m&fs.ModeSocket != 0:
		return "a socket, which no kind gives; name it as a volume of the containers that need it"
	}
	return "a file; list it as lib"
}

func (c *compiler) mount(e csv.Entry, m Mount) {
	if c.claim(e, m.Path) {
		c.plan.Mounts = append(c.plan.Mounts, m)
	}
}

func (c *compiler) link(e csv.Entry, l Link) {
	if !c.ignores(e, l.Path) && c.claim(e, l.Path) {
		c.plan.Links = append(c.plan.Links, l)
	}
}

func (c *compiler) claim(e csv.Entry, p string) bool {
	if _, ok := c.made[p]; ok {
		return false
	}
	c.made[p] = e
	return true
}

func from(e csv.Entry) string {
	if e.Line == 0 {
		return e.File
	}
	return fmt.Sprintf("%s:%d", e.File, e.Line)
}

// ordered puts the folders first, and leaves out what they bring along and what
// cannot be made in them, as they are read-only.
func (c *compiler) ordered() Plan {
	folders, files := c.sorted()
	var p Plan
	for _, m := range folders {
		if c.keeps(p.Mounts, m.Path, m.Source, fs.ModeDir, fs.ModeSymlink) {
			p.Mounts = append(p.Mounts, m)
		}
	}
	given := p.Mounts
	for _, m := range files {
		if c.keeps(given, m.Path, m.Source, 0) {
			p.Mounts = append(p.Mounts, m)
		}
	}
	for _, l := range c.plan.Links {
		if c.keeps(given, l.Path, l.source, 0) {
			p.Links = append(p.Links, l)
		}
	}
	p.Links = append(p.Links, c.sonameLinks(given)...)
	for _, d := range c.plan.Devices {
		// No source: those that a folder brings along do not open, and are covered.
		if c.keeps(given, d.Path, "", 0, fs.ModeDevice|fs.ModeCharDevice) {
			p.Devices = append(p.Devices, d)
		}
	}
	p.Libraries = c.libraries(p)
	if c.options.Wholes {
		p.Wholes = c.wholes(p)
	}
	return p
}

// sorted are the mounts, the outer folders before the inner ones.
func (c *compiler) sorted() (folders, files []Mount) {
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

// keeps reports whether p is to be given from source where the folders are given
// before: unless one brings it along, or has at its place nothing of the kinds
// that it could be given over.
func (c *compiler) keeps(folders []Mount, p, source string, kinds ...fs.FileMode) bool {
	folder, rest := around(folders, p)
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
	c.problem(c.made[p], csv.Refused, true, "%s lies in the folder %s, which is given read-only and %s", p, folder.Path, why)
	return false
}

// around is the innermost of the folders that p is in, and p's rest in it; "" where
// it is in none.
func around(folders []Mount, p string) (in Mount, rest string) {
	for _, f := range folders {
		if r, ok := strings.CutPrefix(p, f.Path+"/"); ok {
			in, rest = f, r
		}
	}
	return in, rest
}

// typeIn is the type of what the board has at rest in folder; false where it has
// nothing, or where a link leads to it.
func (c *compiler) typeIn(folder, rest string) (fs.FileMode, bool) {
	at := folder
	for {
		part, after, more := strings.Cut(rest, "/")
		at, rest = at+"/"+part, after
		c.look(at)
		info, err := os.Lstat(at)
		if err != nil || more && !info.IsDir() {
			return 0, false
		}
		if !more {
			return info.Mode().Type(), true
		}
	}
}
