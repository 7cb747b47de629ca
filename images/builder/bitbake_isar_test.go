package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"slipway/images"
	"slipway/layers"
	"slipway/layers/host"
)

// isarUser makes this test binary print what is in the way of the user who runs it.
const isarUser = "SLIPWAY_ISAR_USER"

// A user who is in no group and may not run sudo is told both, and how to fix it.
func TestIsarChecksOfUsers(t *testing.T) {
	if os.Getenv(isarUser) != "" {
		fmt.Println("group:", checkSbuildGroup())
		fmt.Println("sudo:", checkSudo(t.Context()))
		return
	}
	group, err := user.LookupGroup("sbuild")
	if _, none := exec.LookPath("sudo"); err != nil || none != nil || os.Geteuid() != 0 {
		t.Skip("needs root, and the Debian packages sbuild and sudo")
	}
	self := filepath.Join(t.TempDir(), "self") // where other users may read it
	program, err := os.Executable()
	must(err)
	must(exec.Command("cp", program, self).Run())
	for dir := filepath.Dir(self); len(dir) > 1; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		must(err)
		if info.Mode().Perm()&0o005 != 0o005 {
			must(os.Chmod(dir, 0o755))
		}
	}
	tmp := filepath.Join(filepath.Dir(self), "tmp")
	must(os.Mkdir(tmp, 0o777))
	must(os.Chmod(tmp, 0o777))
	for groups, want := range map[string][]string{
		"--clear-groups": {
			"group: sbuild is only for its group: nobody is not in it\nnext: sudo usermod -aG sbuild nobody && newgrp sbuild\n",
			"sudo: sudo, which Isar runs, refuses nobody here: sudo: a password is required\nnext: su root -c \"echo 'nobody ALL=(ALL) NOPASSWD: ALL' | tee -a /etc/sudoers.d/slipway\"\n",
		},
		"--groups=" + group.Gid: {"group: <nil>\n"},
	} {
		cmd := exec.Command("setpriv", "--reuid=nobody", "--regid=nogroup", groups, self, "-test.run=^TestIsarChecksOfUsers$")
		cmd.Env = append(os.Environ(), isarUser+"=1", "HOME=/nonexistent", "TMPDIR="+tmp)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("setpriv %s: %v\n%s", groups, err, out)
		}
		for _, w := range want {
			if !strings.Contains(string(out), w) {
				t.Errorf("%s: %s\nwant %s", groups, out, w)
			}
		}
	}
}

// What Isar needs is known from the project file alone, before anything is fetched.
func TestIsarPackages(t *testing.T) {
	for board, want := range map[string]bool{"isar-amd64": true, "isar-arm64": true, "isar-trixie-amd64": true, "qemux86-64": false} {
		spec, err := images.Load(board)
		if err != nil {
			t.Fatal(err)
		}
		project, _, err := images.Project(t.Context(), spec, images.Options{Offline: true})
		if err != nil {
			t.Fatal(err)
		}
		packages := HostPackages(spec, project.BuildSystem)
		if got := slices.Contains(packages, "sbuild") && !slices.Contains(packages, "chrpath"); got != want {
			t.Errorf("HostPackages(%s) = %q; want those of Isar: %v", board, packages, want)
		}
		if got := slices.Contains(packages, "qemu-user-static"); got != (want && runtime.GOARCH != spec.Arch) {
			t.Errorf("HostPackages(%s) has qemu-user-static: %v", board, got)
		}
		if got := slices.ContainsFunc(CheckHost(t.Context(), spec, project.BuildSystem), func(c HostCheck) bool { return c.What == "locale" }); !got {
			t.Errorf("CheckHost(%s) does not look for bitbake's locale", board)
		}
	}
}

// Isar without privileges wants other things of its user.
func TestIsarRootless(t *testing.T) {
	if packages := isarPackages(images.Spec{Arch: runtime.GOARCH}, rootless); !slices.Contains(packages, "uidmap") {
		t.Errorf("isarPackages(%s) = %q; want uidmap", rootless, packages)
	}
	for _, c := range isarChecks(t.Context(), images.Spec{Arch: runtime.GOARCH}, rootless) {
		if c.what == "sudo" || c.what == "group sbuild" {
			t.Errorf("isarChecks(%s) has %s; want it only where Isar has privileges", rootless, c.what)
		}
	}
}

// A file of another repository may name the build system. Until it is here, the files that
// are here count.
func TestBuildSystem(t *testing.T) {
	for said, want := range map[string]string{"": "", "build_system: isar": "isar-privileged"} {
		dir := t.TempDir()
		must(os.CopyFS(filepath.Join(dir, "b"), os.DirFS("../boards/isar-amd64")))
		must(os.WriteFile(filepath.Join(dir, "b/kas.yml"), []byte("header: {version: 14, includes: [{repo: r, file: kas.yml}]}\nrepos: {r: {url: /nonexistent, branch: main}}\n"+said+"\n"), 0o644))
		t.Setenv("SLIPWAY_BOARDS", dir)
		spec, err := images.Load("b")
		if err != nil {
			t.Fatal(err)
		}
		if p, _, err := images.Project(t.Context(), spec, images.Options{Dir: t.TempDir(), Offline: true}); !errors.Is(err, layers.ErrNotHere) || p.BuildSystem != want {
			t.Errorf("Project with %q in the file has the build system %q, %v; want %q", said, p.BuildSystem, err, want)
		}
	}
}

func TestRunsHere(t *testing.T) {
	if err := checkEmulation(t.Context(), images.Spec{Arch: runtime.GOARCH}); err != nil {
		t.Errorf("checkEmulation of this machine's own = %v", err)
	}
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	for answer, wrong := range map[string]bool{"exit 0": false, "exit 1": true} {
		must(os.WriteFile(filepath.Join(bin, "arch-test"), []byte("#!/bin/sh\n"+answer+"\n"), 0o755))
		err := checkEmulation(t.Context(), images.Spec{Arch: "riscv64"})
		if (err != nil) != wrong || wrong && !strings.Contains(err.Error(), "\nnext: sudo ") {
			t.Errorf("arch-test says %q: checkEmulation = %v", answer, err)
		}
	}
}

// inNamespace makes this test binary enable an emulator in a namespace of its own.
const inNamespace = "SLIPWAY_EMULATION"

// A kernel that knows no emulator gets the one that the package describes.
func TestFixEmulation(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		must(exec.Command("mount", "-t", "binfmt_misc", "binfmt_misc", binfmtDir).Run())
		for _, want := range []string{"Running:\n  dd status=none if=/usr/lib/binfmt.d/qemu-aarch64.conf of=" + binfmtDir + "/register\n", ""} {
			var out strings.Builder
			if err := fixEmulation(t.Context(), &out, "arm64"); err != nil || out.String() != want {
				t.Errorf("fixEmulation = %v, and printed %q; want %q", err, out.String(), want)
			}
		}
		if text, err := os.ReadFile(binfmtDir + "/qemu-aarch64"); err != nil || !strings.HasPrefix(string(text), "enabled\n") {
			t.Errorf("the kernel has %q, %v; want the emulator", text, err)
		}
		return
	}
	if _, err := os.Stat("/usr/lib/binfmt.d/qemu-aarch64.conf"); err != nil {
		t.Skip("needs the Debian package qemu-user-static")
	}
	if out, err := exec.Command("unshare", "-rm", "mount", "-t", "binfmt_misc", "binfmt_misc", binfmtDir).CombinedOutput(); err != nil {
		t.Skipf("needs a kernel with binfmt_misc for each namespace (Linux 6.7) and unshare: %v\n%s", err, out)
	}
	program, err := os.Executable()
	must(err)
	cmd := exec.Command("unshare", "-rm", program, "-test.run=^TestFixEmulation$")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// schroot names the file that it cannot read. One of an ended build is to go.
func TestCheckSchroot(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	for file, want := range map[string]string{
		"/etc/schroot/chroot.d/isar-builder-1": "sudo rm /etc/schroot/chroot.d/isar-builder-1",
		"/etc/schroot/schroot.conf":            "sudoedit /etc/schroot/schroot.conf",
	} {
		path := filepath.Join(bin, "schroot")
		must(os.WriteFile(path, []byte("#!/bin/sh\necho 'E: "+file+": line 1: Invalid line' >&2; exit 1\n"), 0o755))
		must(os.Chmod(path, 0o755|os.ModeSetuid))
		if err := checkSchroot(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "Invalid line\nnext: "+want) {
			t.Errorf("checkSchroot = %v; want next: %s", err, want)
		}
		must(os.Chmod(path, 0o755))
		if err := checkSchroot(t.Context()); err == nil || !strings.Contains(err.Error(), "set-user-ID") {
			t.Errorf("checkSchroot of a program without rights = %v; want it refused", err)
		}
	}
}

// What root can fix is fixed in order, as long as a check fails.
func TestFixAll(t *testing.T) {
	var fixed []string
	check := func(name string, fine bool, failure error) hostCheck {
		return hostCheck{
			what:  name,
			check: func() error { return map[bool]error{false: errors.New("not fine")}[fine] },
			fix: func(context.Context, io.Writer) error {
				fixed = append(fixed, name)
				return failure
			},
		}
	}
	byHand := check("by hand", false, nil)
	byHand.fix = nil
	checks := []hostCheck{check("fine", true, nil), byHand, check("a", false, nil), check("b", false, host.ErrNotRoot), check("c", false, nil)}
	err := fixAll(t.Context(), io.Discard, checks)
	if want := []string{"a", "b"}; !slices.Equal(fixed, want) || !errors.Is(err, host.ErrNotRoot) || !strings.HasPrefix(err.Error(), "b: ") {
		t.Errorf("fixed %q, %v; want %q, and that it is not root", fixed, err, want)
	}
}
