package layers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const confProject = `
header: {version: 8}
machine: jetson-orin-nano-devkit
distro: tegrademo
target: [core-image-minimal, mc:xavier:core-image-base, multiconfig:xavier:core-image-minimal]
repos:
  oe: {url: %[2]s, refspec: main, layers: {meta: }}
  meta-b: {url: %[1]s, refspec: main, layers: {meta-two: disabled, meta-one: }}
  top:
  renamed: {name: aaa, url: %[1]s, refspec: main}
local_conf_header:
  z-last: |
    A = "1"
  a-first: B = "2"
bblayers_conf_header:
  x: |
    POKY_BBLAYERS_CONF_VERSION = "2"
`

func conf(t *testing.T, build, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(build, "conf", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestConfigure(t *testing.T) {
	dir := t.TempDir()
	p := load(t, dir, strings.Replace(fmt.Sprintf(confProject, "u", "u"), "{meta: }", "{meta: , high: {prio: 5}}", 1))
	build := filepath.Join(dir, "build")
	if err := Configure(p, Workspace{Dir: dir}, build); err != nil {
		t.Fatal(err)
	}
	want := "# a-first\nB = \"2\"\n# z-last\nA = \"1\"\n\nMACHINE ??= \"jetson-orin-nano-devkit\"\nDISTRO ??= \"tegrademo\"\nBBMULTICONFIG ?= \"xavier\"\n"
	if diff := cmp.Diff(want, conf(t, build, "local.conf")); diff != "" {
		t.Errorf("local.conf: (-want +got)\n%s", diff)
	}
	want = `# x
POKY_BBLAYERS_CONF_VERSION = "2"

BBLAYERS ?= " \
    ${TOPDIR}/../oe/high \
    ${TOPDIR}/../aaa \
    ${TOPDIR}/../meta-b/meta-one \
    ${TOPDIR}/../oe/meta \
    ${TOPDIR}/.."
BBPATH ?= "${TOPDIR}"
BBFILES ??= ""
`
	if diff := cmp.Diff(want, conf(t, build, "bblayers.conf")); diff != "" {
		t.Errorf("bblayers.conf: (-want +got)\n%s", diff)
	}
}

// The build folder may be on another disk, behind a symbolic link.
func TestConfigureBehindLink(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(t.TempDir(), "a/b/c")
	if err := os.MkdirAll(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	build := filepath.Join(dir, "build")
	if err := os.Symlink(disk, build); err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"inside/conf/layer.conf": "", "build/layers/oe/meta/conf/layer.conf": ""})
	ws := Workspace{Dir: filepath.Join(build, "layers")}
	p := load(t, dir, "header: {version: 14}\nrepos:\n  here: {layers: {inside: }}\n  oe: {url: u, commit: "+strings.Repeat("1", 40)+", layers: {meta: }}\n")
	if err := Configure(p, ws, filepath.Join(build, "bitbake")); err != nil {
		t.Fatal(err)
	}
	got := conf(t, filepath.Join(build, "bitbake"), "bblayers.conf")
	want := "BBLAYERS ?= \" \\\n    " + dir + "/inside \\\n    ${TOPDIR}/../layers/oe/meta\"\n"
	if !strings.HasPrefix(got, want) {
		t.Errorf("bblayers.conf = %q; want %q at its start", got, want)
	}
}

func TestConfigureWritesOnlyChanges(t *testing.T) {
	dir := t.TempDir()
	build := filepath.Join(dir, "build")
	write(t, build, map[string]string{"conf/site.conf": "mine\n", "conf/.new-local.conf": "half a file of a run that was killed"})
	p := load(t, dir, fmt.Sprintf(confProject, "u", "u"))
	long := time.Now().Add(-time.Hour).Truncate(time.Second)
	for range 2 {
		if err := Configure(p, Workspace{Dir: dir}, build); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"local.conf", "bblayers.conf"} {
			if err := os.Chtimes(filepath.Join(build, "conf", name), long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.Machine = "other"
	if err := Configure(p, Workspace{Dir: dir}, build); err != nil {
		t.Fatal(err)
	}
	for name, wantOld := range map[string]bool{"local.conf": false, "bblayers.conf": true} {
		info, err := os.Stat(filepath.Join(build, "conf", name))
		if err != nil || info.ModTime().Equal(long) != wantOld {
			t.Errorf("%s: untouched = %t, %v; want %t", name, info.ModTime().Equal(long), err, wantOld)
		}
	}
	if got := conf(t, build, "site.conf"); got != "mine\n" {
		t.Errorf("site.conf = %q; want the user's", got)
	}
	if left, err := filepath.Glob(filepath.Join(build, "conf/.new-*")); len(left) > 0 || err != nil {
		t.Errorf("conf has %q, %v; want nothing half-written", left, err)
	}
}

// kas itself writes the same files. Debian's kas 3.1 sorts layers by their paths and writes
// absolute ones, so of bblayers.conf only the headers and the set of layers are compared.
func TestConfigureAsKas(t *testing.T) {
	if _, err := exec.LookPath("kas"); err != nil {
		t.Skip("kas is not installed (Debian package kas)")
	}
	url, _, _ := server(t)
	oe, _, _ := server(t)
	write(t, oe, map[string]string{"oe-init-build-env": "export BUILDDIR=\"$1\"\n"})
	mustRun(t, oe, "git", "add", "-A")
	mustRun(t, oe, "git", "commit", "-q", "-m", "init script")
	dir := t.TempDir()
	mustRun(t, dir, "git", "init", "-q")
	p := load(t, dir, fmt.Sprintf(confProject, url, oe))

	theirs := filepath.Join(dir, "theirs")
	if err := os.Mkdir(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	kas := exec.Command("kas", "checkout", filepath.Join(dir, "p.yml"))
	kas.Dir = dir
	kas.Env = append(os.Environ(), "KAS_WORK_DIR="+theirs)
	if out, err := kas.CombinedOutput(); err != nil {
		t.Fatalf("kas checkout: %v\n%s", err, out)
	}
	ours := filepath.Join(dir, "ours")
	if err := Checkout(t.Context(), p, Workspace{Dir: ours}); err != nil {
		t.Fatal(err)
	}
	if err := Configure(p, Workspace{Dir: ours}, filepath.Join(ours, "build")); err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{"oe", "meta-b", "aaa"} {
		if got, want := headOf(t, filepath.Join(ours, r)), headOf(t, filepath.Join(theirs, r)); got != want {
			t.Errorf("%s is at %s; kas has %s", r, got, want)
		}
	}
	if diff := cmp.Diff(conf(t, filepath.Join(theirs, "build"), "local.conf"), conf(t, filepath.Join(ours, "build"), "local.conf")); diff != "" {
		t.Errorf("local.conf: (-kas +ours)\n%s", diff)
	}
	if diff := cmp.Diff(conf(t, filepath.Join(theirs, "build"), "bblayers.conf"), conf(t, filepath.Join(ours, "build"), "bblayers.conf")); diff != "" {
		t.Logf("bblayers.conf: (-kas +ours)\n%s", diff)
	}
}

// Backups leave a build folder out, as tar does with this option.
func TestConfigureTagsCache(t *testing.T) {
	dir := t.TempDir()
	p := load(t, dir, fmt.Sprintf(confProject, "u", "u"))
	if err := Configure(p, Workspace{Dir: dir}, filepath.Join(dir, "build")); err != nil {
		t.Fatal(err)
	}
	listed, err := exec.Command("tar", "--exclude-caches-all", "-C", dir, "-cvf", "/dev/null", ".").CombinedOutput()
	if err != nil || strings.Contains(string(listed), "build/conf") {
		t.Errorf("tar keeps the build folder: %v\n%s", err, listed)
	}
}
