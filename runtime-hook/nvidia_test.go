package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/plan"
)

// invented has all that the lists of real boards have, and what they could have.
const invented = `dev, /dev/slipway/nvmap
dev, /dev/slipway/card*
dev, /dev/slipway/gone
lib, /usr/lib/board/libone.so.1.2
lib, /usr/lib/board/libcuda.so.1.1
sym, /usr/lib/board/libcuda.so
sym, /usr/lib/board/libone.so
sym, /usr/lib/board/libtwo.so.2
lib, /usr/lib/board/libone.so.1.2
lib, /usr/lib/board/libgone.so
lib, /usr/lib/board/libthree.so.3
lib, /usr/lib/board/firmware/*.bin
sym, /usr/lib/board/dangling
sym, /usr/lib/board/circle
sym, /usr/lib/old
sym, /etc/board/icd.json
dir, /usr/share/board/shaders
lib, /usr/share/board/shaders/one
lib, /etc/board/a name, with a comma
lib, ${libdir}/libunfilled.so
nonsense
lib,/usr/lib/board/libtight.so
lib, /usr/lib/board/libnamed.so
lib, /usr/lib/board2/libreal.so.5.4
  lib ,  /usr/lib/board/libwide.so  
`

// inventedBoard is the board of that list, as "path", "path/" and "path -> target".
var inventedBoard = []string{
	"usr/lib/board/libone.so.1.2", "usr/lib/board/libone.so.1 -> libone.so.1.2", "usr/lib/board/libone.so -> libone.so.1",
	"usr/lib/board/libcuda.so.1.1", "usr/lib/board/libcuda.so -> libcuda.so.1.1",
	"usr/lib/board/libtwo.so.2 -> ../elsewhere/libtwo.so.2.0", "usr/lib/elsewhere/libtwo.so.2.0",
	"usr/lib/board/libthree.so.3 -> libthree.so.3.0", "usr/lib/board/libthree.so.3.0",
	"usr/lib/board/firmware/a.bin", "usr/lib/board/firmware/b.bin", "usr/lib/board/firmware/c.txt",
	"usr/lib/board/dangling -> nothing", "usr/lib/board/circle -> circle", "usr/lib/old -> board",
	"etc/board/icd.json -> /usr/share/board/icd.json", "usr/share/board/icd.json",
	"usr/share/board/shaders/one", "etc/board/a name, with a comma", "etc/nv_tegra_release",
	"usr/lib/board/libtight.so", "usr/lib/board/libwide.so",
	"usr/lib/board2/liblzma.so.5 -> libreal.so.5.4", "usr/lib/board2/liblzma.so -> liblzma.so.5",
}

// The plan for a list is the one that NVIDIA's tool makes of it on the same board,
// but for what is named below. SLIPWAY_CSVS=folder[:folder] compares other
// people's lists too, on boards that have all that they name.
func TestBesideNVIDIA(t *testing.T) {
	peer := peers(t)
	if peer == "" {
		t.Skip("needs NVIDIA's programs: name their folder in SLIPWAY_NVIDIA; go tool mage bench hook builds them")
	}
	t.Run("invented", func(t *testing.T) {
		l := newLab(t, "runc")
		l.make(inventedBoard)
		l.makeLibrary("/usr/lib/board/libnamed.so")
		l.makeLibrary("/usr/lib/board2/libreal.so.5.4")
		for i, name := range []string{"nvmap", "card0", "card1"} {
			l.makeDevice("/dev/slipway/"+name, i)
		}
		l.besideNVIDIA(peer, invented)
	})
	for _, folder := range filepath.SplitList(os.Getenv("SLIPWAY_CSVS")) {
		lists, err := filepath.Glob(filepath.Join(folder, "*.csv"))
		must(t, err)
		for _, list := range lists {
			t.Run(filepath.Base(list), func(t *testing.T) {
				data, err := os.ReadFile(list)
				must(t, err)
				text := yocto.Replace(string(data))
				l := newLab(t, "runc")
				l.makeBoardOf(text)
				l.besideNVIDIA(peer, text)
			})
		}
	}
}

// yocto fills in what a recipe fills in before a list is on a board.
var yocto = strings.NewReplacer("${libdir}", "/usr/lib", "${base_libdir}", "/lib", "${sysconfdir}", "/etc", "${datadir}", "/usr/share", "${bindir}", "/usr/bin", "${sbindir}", "/usr/sbin")

// make puts files, folders and links into the lab's rootfs, which is a board here.
func (l *lab) make(lines []string) {
	l.t.Helper()
	for _, line := range lines {
		name, target, isLink := strings.Cut(line, " -> ")
		if isLink {
			link(l.t, l, target, "/"+name)
		} else {
			write(l.t, l.rootfs("/"+name), name)
		}
	}
}

// makeLibrary puts a real library there, which says another name for itself.
func (l *lab) makeLibrary(p string) {
	l.t.Helper()
	found, err := filepath.Glob("/usr/lib/*-linux-gnu*/liblzma.so.5")
	if err != nil || len(found) == 0 {
		l.t.Skip("needs liblzma.so.5 (Debian package liblzma5)")
	}
	data, err := os.ReadFile(found[0])
	must(l.t, err)
	write(l.t, l.rootfs(p), string(data))
}

func (l *lab) makeDevice(p string, minor int) {
	l.t.Helper()
	must(l.t, os.MkdirAll(filepath.Dir(l.rootfs(p)), 0o755))
	must(l.t, unix.Mknod(l.rootfs(p), unix.S_IFCHR|0o666, int(unix.Mkdev(240, uint32(minor)))))
}

// makeBoardOf makes a board that has all that a list names. A list does not say
// where its links lead: to a file that it names and whose name is longer, as
// libraries' links do, or to a folder beside them where the name has no dot.
func (l *lab) makeBoardOf(list string) {
	files := map[string]bool{}
	var links []string
	for i, line := range strings.Split(list, "\n") {
		kind, p, _ := strings.Cut(line, ",")
		p = strings.ReplaceAll(strings.TrimSpace(p), "*", "0")
		if !path.IsAbs(p) {
			continue
		}
		at := l.rootfs(path.Clean(p))
		if _, err := os.Lstat(at); err == nil {
			continue
		}
		switch strings.TrimSpace(kind) {
		case "lib":
			write(l.t, at, p)
			files[p] = true
		case "dir":
			write(l.t, at+"/file", p)
		case "dev":
			l.makeDevice(p, i)
		case "sym":
			links = append(links, p)
		}
	}
	for _, p := range links {
		if _, err := os.Lstat(l.rootfs(p)); err != nil {
			link(l.t, l, l.targetOf(p, files), p)
		}
	}
}

func (l *lab) targetOf(p string, files map[string]bool) string {
	for _, f := range names(files) {
		if strings.HasPrefix(path.Base(f), path.Base(p)+".") {
			target, err := filepath.Rel(path.Dir(p), f)
			must(l.t, err)
			return target
		}
	}
	if !strings.Contains(path.Base(p), ".") {
		must(l.t, os.MkdirAll(l.rootfs(path.Join(path.Dir(p), "folder")), 0o755))
		return "folder"
	}
	write(l.t, l.rootfs(p+".0"), p)
	return path.Base(p) + ".0"
}

// besideNVIDIA compares the plans for list, on the board that the lab's rootfs is.
func (l *lab) besideNVIDIA(peer, list string) {
	l.t.Helper()
	write(l.t, l.rootfs(csv.Dir+"/l4t.csv"), list)
	// NVIDIA's tool fails where there is no device at all.
	write(l.t, l.rootfs(csv.Dir+"/devices.csv"), "dev, /dev/slipway/one\n")
	l.makeDevice("/dev/slipway/one", 255)
	hook, ctk := hookBinary(l.t), filepath.Join(peer, "nvidia-ctk")
	data, err := os.ReadFile(hook)
	must(l.t, err)
	write(l.t, l.rootfs(hook), string(data))
	l.program(ctk, "nothing to leave out")
	ours, theirs := l.ours(), l.theirs(ctk)
	counts := map[string]int{}
	for _, d := range differences(ours, theirs) {
		reason := l.reason(d, list, ours)
		if reason == "" {
			l.t.Errorf("%s; no reason for it is known", d)
		}
		counts[reason]++
	}
	l.t.Logf("%d lines, ours %d, NVIDIA's %d; differences: %v", strings.Count(list, "\n"), len(ours), len(theirs), counts)
}

// chroot runs a program of the machine with the lab's rootfs as its root.
func (l *lab) chroot(program string, args ...string) []byte {
	l.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: l.rootfs("")}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if len(out) == 0 {
		l.t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.String())
	}
	return out
}

// ours is our plan, a line each: "mount SOURCE PATH", "link PATH -> TARGET", "device PATH NUMBER".
func (l *lab) ours() (lines []string) {
	l.t.Helper()
	var r struct{ Plan plan.Plan }
	must(l.t, json.Unmarshal(l.chroot(hookBinary(l.t), "check", "--json"), &r))
	for _, m := range r.Plan.Mounts {
		lines = append(lines, fmt.Sprintf("mount %s %s", m.Source, m.Path))
	}
	for _, k := range r.Plan.Links {
		lines = append(lines, fmt.Sprintf("link %s -> %s", k.Path, k.Target))
	}
	for _, d := range r.Plan.Devices {
		lines = append(lines, fmt.Sprintf("device %s %d:%d", d.Path, d.Major, d.Minor))
	}
	return sorted(lines)
}

// theirs is the same of the CDI spec that NVIDIA's tool writes.
func (l *lab) theirs(ctk string) (lines []string) {
	l.t.Helper()
	type edits struct {
		DeviceNodes []struct {
			Path         string
			Major, Minor int
		}
		Mounts []struct{ HostPath, ContainerPath string }
		Hooks  []struct{ Args []string }
	}
	var spec struct {
		Devices        []struct{ ContainerEdits edits }
		ContainerEdits edits
	}
	must(l.t, json.Unmarshal(l.chroot(ctk, "cdi", "generate", "--mode=csv", "--nvidia-cdi-hook-path=/hook", "--format=json"), &spec))
	all := []edits{spec.ContainerEdits}
	for _, d := range spec.Devices {
		all = append(all, d.ContainerEdits)
	}
	for _, e := range all {
		for _, m := range e.Mounts {
			lines = append(lines, fmt.Sprintf("mount %s %s", m.HostPath, m.ContainerPath))
		}
		for _, d := range e.DeviceNodes {
			lines = append(lines, fmt.Sprintf("device %s %d:%d", d.Path, d.Major, d.Minor))
		}
		for _, h := range e.Hooks {
			for _, arg := range h.Args {
				if target, at, ok := strings.Cut(arg, "::"); ok {
					lines = append(lines, fmt.Sprintf("link %s -> %s", at, target))
				}
			}
		}
	}
	return sorted(lines)
}

func sorted(lines []string) []string {
	slices.Sort(lines)
	return slices.Compact(lines)
}

// differences are the lines of one side alone, with its name.
func differences(ours, theirs []string) (out []string) {
	for _, line := range ours {
		if !slices.Contains(theirs, line) {
			out = append(out, "ours: "+line)
		}
	}
	for _, line := range theirs {
		if !slices.Contains(ours, line) {
			out = append(out, "NVIDIA's: "+line)
		}
	}
	return out
}

// reason names why a difference is there, "" where it should not be.
func (l *lab) reason(difference, list string, ours []string) string {
	side, line, _ := strings.Cut(difference, ": ")
	f := strings.Fields(line)
	switch {
	case side == "NVIDIA's" && f[0] == "mount" && inFolder(ours, f[1], l):
		return "a folder of ours brings it along"
	case side == "NVIDIA's" && f[0] == "link" && path.Base(f[1]) == "libcuda.so" && f[3] == "libcuda.so.1":
		return "NVIDIA's libcuda.so leads to libcuda.so.1, ours where the board's does"
	case side == "ours" && f[0] == "link" && slices.Contains(strings.Split(list, "\n"), "lib, "+f[1]):
		return "a lib that is a link keeps its name"
	case side == "ours" && f[0] == "link" && l.isFolder(f[1]):
		return "links to folders are made"
	case side == "ours" && f[0] == "link" && slices.Contains(strings.Split(list, "\n"), "lib, "+path.Join(path.Dir(f[1]), f[3])):
		return "a library is found by its own name, which the board lacks"
	case side == "NVIDIA's" && f[0] == "link" && strings.HasPrefix(f[3], path.Base(f[1])+"."):
		return "NVIDIA's gives a name for linkers that is not listed"
	}
	return ""
}

// inFolder reports whether p lies in a folder that is given as it is.
func inFolder(ours []string, p string, l *lab) bool {
	return slices.ContainsFunc(ours, func(line string) bool {
		f := strings.Fields(line)
		return f[0] == "mount" && f[1] == f[2] && strings.HasPrefix(p, f[1]+"/") && l.isFolder(f[1])
	})
}

// isFolder follows the last part of p alone, which leads to the folder beside it.
func (l *lab) isFolder(p string) bool {
	info, err := os.Stat(l.rootfs(p))
	return err == nil && info.IsDir()
}
