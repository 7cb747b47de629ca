package ldcache

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/elf"
	"slipway/runtime-hook/internal/plan"
)

// The dynamic linkers of other releases and machines find what was added to what their own ldconfig
// wrote, which reads it too. SLIPWAY_USERLANDS names folders, each with libc6, libc-bin, xz-utils
// and liblzma5 of one release and machine unpacked (dpkg-deb -x).
func TestUpdateUserlands(t *testing.T) {
	userlands := filepath.SplitList(os.Getenv("SLIPWAY_USERLANDS"))
	if len(userlands) == 0 {
		t.Skip("needs SLIPWAY_USERLANDS; see ci/dev/README.md")
	}
	for _, from := range userlands {
		for _, form := range []string{"", "new", "compat"} {
			t.Run(filepath.Base(from)+"/"+form, func(t *testing.T) { tryUserland(t, from, form) })
		}
	}
}

func tryUserland(t *testing.T, from, form string) {
	u := newUserland(t, from)
	if form != "" {
		u.runProgram("/usr/sbin/ldconfig", "-X", "-c", form)
	}
	if notes := update(t, u.root, u.libs); notes != nil {
		t.Fatal(notes)
	}
	if out := u.runProgram("/usr/bin/xz", "--version"); !strings.Contains(out, "liblzma") {
		t.Errorf("xz printed %q", out)
	}
	list := u.runProgram("/usr/sbin/ldconfig", "-p")
	if !strings.Contains(list, "=> "+u.libs[0].Path+"\n") || (form != "") != strings.Contains(list, "libc.so.6") {
		t.Errorf("ldconfig reads %s", list)
	}
	data, err := os.ReadFile(u.root + cachePath)
	must(t, err)
	if notes := update(t, u.root, u.libs); notes != nil {
		t.Fatal(notes)
	}
	if again, err := os.ReadFile(u.root + cachePath); err != nil || string(again) != string(data) {
		t.Errorf("the second update changed the cache: %v", err)
	}
}

type userland struct {
	t    *testing.T
	root string
	libs []plan.Library
	with []string // the program that runs those of another machine
}

// newUserland is the userland in from with its liblzma in another folder.
func newUserland(t *testing.T, from string) *userland {
	t.Helper()
	dir := newImage(t)
	for _, d := range []string{"root", "upper", "work"} {
		must(t, os.Mkdir(dir+"/"+d, 0o755))
	}
	u := &userland{t: t, root: dir + "/root"}
	must(t, unix.Mount("overlay", u.root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", from, dir, dir)))
	t.Cleanup(func() { unix.Unmount(u.root, unix.MNT_DETACH) })
	must(t, os.MkdirAll(u.root+"/opt/board", 0o755))
	files, err := filepath.Glob(u.root + "/usr/lib/*/liblzma.so.5.*")
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("%s has %q; want one liblzma.so.5.*", from, files)
	}
	must(t, os.Rename(files[0], u.root+"/opt/board/liblzma.so.5.0"))
	must(t, os.Remove(filepath.Dir(files[0])+"/liblzma.so.5"))
	c := plan.Compile(u.root, []csv.Entry{{Kind: csv.Library, Path: "/opt/board/liblzma.so.5.0", File: "l.csv", Line: 1}}, nil)
	if len(c.Problems) > 0 || len(c.Plan.Libraries) != 1 {
		t.Fatal(c.Problems, c.Plan.Libraries)
	}
	u.libs = c.Plan.Libraries
	u.emulate(u.libs[0].Machine)
	return u
}

func (u *userland) emulate(m elf.Machine) {
	name, other := map[elf.Machine]string{elf.AArch64: "qemu-aarch64-static", elf.ARMHF: "qemu-arm-static"}[m]
	if !other {
		return
	}
	data, err := os.ReadFile("/usr/bin/" + name)
	if err != nil {
		u.t.Skipf("needs %s (Debian package qemu-user-static)", name)
	}
	writeProgram(u.t, u.root+"/emulator", data)
	u.with = []string{"/emulator"}
}

// runProgram runs a program of the userland in it.
func (u *userland) runProgram(argv ...string) string {
	u.t.Helper()
	argv = append(u.with[:len(u.with):len(u.with)], argv...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", []string{"PATH=/usr/bin:/usr/sbin"}, &syscall.SysProcAttr{Chroot: u.root}
	out, err := cmd.CombinedOutput()
	if err != nil {
		u.t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}
