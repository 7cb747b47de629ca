package bitbake

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What a broken off task of Isar leaves mounted is gone before the next build removes
// files: the innermost first, and a mount over another one too. Other mounts stay.
func TestReleaseMounts(t *testing.T) {
	if _, err := exec.LookPath("sudo"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and sudo (Debian package sudo)")
	}
	tree := Tree{Build: filepath.Join(t.TempDir(), "a b")}
	tmp := filepath.Join(tree.Build, "tmp")
	must(t, os.MkdirAll(filepath.Join(tree.Build, "worker"), 0o755))
	must(t, tree.releaseMounts(t.Context()))
	for _, at := range []string{"", "work/x/rootfs/dev", "work/x/rootfs/dev/shm", "work/x/rootfs/sys", "work/x/rootfs/sys"} {
		at = filepath.Join(tmp, at)
		must(t, os.MkdirAll(at, 0o755))
		if err := unix.Mount("none", at, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("cannot mount: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	must(t, tree.releaseMounts(t.Context()))
	left, err := mountsBelow(tree.Build)
	if want := []string{tmp}; err != nil || !slices.Equal(left, want) {
		t.Errorf("releaseMounts left %q, %v; want %q, which the user mounted", left, err, want)
	}
}

func TestChrootsBelow(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"ours":   "[ours]\ntype=directory\ndirectory=/b/tmp/deploy/chroot\n",
		"other":  "[other]\ndirectory=/bb/tmp/deploy/chroot\n",
		"named":  "[named]\ndescription=directory=/b/tmp\n",
		"large":  "[large]\n" + strings.Repeat("#", maxChrootBytes) + "\ndirectory=/b/tmp\n",
		"empty":  "",
		"binary": "\x00\xff\ndirectory=/b\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	if got := chrootsBelow(dir, "/b"); !slices.Equal(got, []string{"ours"}) {
		t.Errorf("chrootsBelow = %q; want ours", got)
	}
	if got := chrootsBelow(filepath.Join(dir, "none"), "/b"); got != nil {
		t.Errorf("chrootsBelow without schroot = %q; want none", got)
	}
}
