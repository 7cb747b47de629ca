package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"slipway/layers"
)

// miniature is a layer with files whose names and lines openembedded-core has.
var miniature = map[string]string{
	"conf/layer.conf":                               "BBFILES += \"${LAYERDIR}/recipes-*/*/*.bb ${LAYERDIR}/../recipes/*/*.bb\"\n",
	"../recipes/ours/ours_1.bb":                     "",
	"conf/bitbake.conf":                             "",
	"conf/distro/defaultsetup.conf":                 "require conf/distro/include/tclibc-${TCLIBC}.inc\n",
	"conf/distro/poky.conf":                         "DISTRO = \"poky\"\n",
	"conf/distro/include/tclibc-glibc.inc":          "",
	"conf/distro/include/tclibc-musl.inc":           "",
	"conf/distro/include/init-manager-systemd.inc":  "VIRTUAL-RUNTIME_init_manager ??= \"systemd\"\n",
	"conf/distro/include/init-manager-sysvinit.inc": "",
	"conf/distro/include/default-distrovars.inc":    "DISTRO_FEATURES_DEFAULT ?= \"acl alsa bluetooth wayland\"\n",
	"recipes-core/busybox/busybox_1.36.1.bb":        "PACKAGES =+ \"${PN}-hwclock\"\n",
	"recipes-core/systemd/systemd_255.bb":           "REQUIRED_DISTRO_FEATURES += \"usrmerge\"\n",
	"recipes-core/packagegroups/base.bb":            "RDEPENDS = \"${VIRTUAL-RUNTIME_init_manager}\"\n",
	"recipes-kernel/linux/linux-yocto_6.6.bb":       "",
	"recipes-kernel/linux/linux-yocto_6.12.bb":      "",
	"recipes-kernel/linux/linux-yocto-dev.bb":       "",
	"recipes-x/u-boot/u-boot_git.bb":                "",
	"conf/machine/qemuarm64.conf":                   "",
	"conf/multiconfig/second.conf":                  "",
	"classes-recipe/ours.bbclass":                   "IMAGE_CMD:sdimg = \"true\"\nFEATURE_PACKAGES_tools-debug = \"gdb\"\n",
}

func TestCheckouts(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string // position, stops or not, a part of what to do
	}{
		{"distro", `DISTRO = "pokky"`, []string{"1:11 true write poky instead"}},
		{"distro that is there", `DISTRO = "poky"`, nil},
		{"the base of distros", `DISTRO = "nodistro"`, nil},
		{"distro that is set again", "DISTRO ?= \"pokky\"\nDISTRO = \"poky\"", nil},
		{"distro that is not known", `DISTRO = "our-own"`, []string{"1:11 true write one that the layers have: poky"}},
		{"distro that bitbake works out", `DISTRO = "${OURS}"`, nil},
		{"libc", `TCLIBC = "muls"`, []string{"1:11 true write musl instead"}},
		{"libc that is there", `TCLIBC ?= "musl"`, nil},
		{"init", `INIT_MANAGER = "sytemd"`, []string{"1:17 true write systemd instead"}},
		{"init for one machine", `INIT_MANAGER:qemuarm = "sytemd"`, nil},
		{"version", `PREFERRED_VERSION_linux-yocto = "6.1%"`, nil}, // begins as 6.12 does
		{"version that is gone", `PREFERRED_VERSION_linux-yocto = "5.15%"`, []string{"1:34 false write 6.12, or add a layer"}},
		{"version of a file that is a link", `PREFERRED_VERSION_busybox = "1.35.0"`, nil},
		{"version with an epoch", `PREFERRED_VERSION_busybox = "1:1.36.1"`, nil},
		{"version that must be", `REQUIRED_VERSION_busybox ?= "1.2.3"`, []string{"1:30 false write 1.36.1, or"}},
		{"version of a recipe from git", `PREFERRED_VERSION_u-boot = "2020.01"`, nil},
		{"version of a recipe that is not there", `PREFERRED_VERSION_linux-ours = "1"`, nil},
		{"version of a slip of the hand", `PREFERRED_VERSION_busibox = "1.36.1"`, []string{"1:1 false write PREFERRED_VERSION_busybox instead"}},
		{"feature", `DISTRO_FEATURES:append = " alsa waylnd"`, []string{"1:33 false write wayland instead"}},
		{"feature that a recipe requires", `DISTRO_FEATURES:append = " usrmerge"`, nil},
		{"feature that one's own file reads", "DISTRO_FEATURES:append = \" ours\"\nIMAGE_INSTALL:append = \" ${@bb.utils.contains('DISTRO_FEATURES', 'ours', 'busybox', '', d)}\"", nil},
		{"feature taken out", `DISTRO_FEATURES:remove = "bluetoth"`, []string{"1:27 false write bluetooth instead"}},
		{"runtime", `VIRTUAL-RUNTIME_init_manager = "sytemd"`, []string{"1:33 false write systemd instead"}},
		{"runtime that a recipe makes", `VIRTUAL-RUNTIME_init_manager = "busybox-hwclock"`, nil},
		{"runtime that is nothing", `VIRTUAL-RUNTIME_init_manager = ""`, nil},
		{"runtime that nothing reads", `VIRTUAL-RUNTIME_init_manger = "systemd"`, []string{"1:1 false write VIRTUAL-RUNTIME_init_manager instead"}},
		{"mask", `BBMASK += "/recipes-core/sytemd/ recipes-x/"`, []string{"1:12 false correct the path"}},
		{"mask of one file", `BBMASK = "linux-yocto_6\.12\.bb$"`, nil},
		{"mask of a recipe beside the layer", `BBMASK = "recipes/ours/"`, nil},
		{"mask that is none", `BBMASK = "recipes-[x a(b *c"`, []string{`1:11 true put a \ before`, `1:22 true put a \`, `1:26 true put a \`}},
		{"mask that is Python's alone", `BBMASK = "recipes-(?!x)"`, nil},
		{"class", `INHERIT += "ours nosuch"`, []string{"1:18 true correct the name"}},
		{"class by a slip of the hand", `INHERIT += "buildhistroy"`, []string{"1:13 true write buildhistory instead"}},
		{"class for another machine", `INHERIT:append:tegra = " nosuch"`, []string{"1:26 false correct the name"}},
		{"class that is taken out again", "INHERIT += \"nosuch\"\nINHERIT:remove = \"nosuch\"", nil},
		{"class that is replaced", "USER_CLASSES ?= \"nosuch\"\nUSER_CLASSES = \"\"", nil},
		{"class before the list is set anew", "INHERIT += \"nosuch\"\nINHERIT = \"\"", nil},
		{"type of images", `IMAGE_FSTYPES = "nosuchtype sdimg ext4.nosuch sdimg.gz"`, []string{"1:18 true correct the name", "1:35 true correct the name"}},
		{"type of images for another machine", `IMAGE_FSTYPES:tegra = "tegraflash-tar"`, []string{"1:24 false remove it"}},
		{"machine", `MACHINE = "qemuarm46"`, []string{"1:12 true write qemuarm64 instead"}},
		{"machine of another release", `MACHINE = "jetson-tx1"`, []string{"1:12 true build it as"}},
		{"second configuration", `BBMULTICONFIG = "second secnd"`, []string{"1:25 true write second instead"}},
		{"feature of images", `EXTRA_IMAGE_FEATURES = "tools-debug debug-tweaks tools-dbug ours-own"`, []string{"1:50 true correct the name", "1:61 true correct the name"}},
		{"feature of images that is one's own", "IMAGE_FEATURES += \"ours-own\"\nFEATURE_PACKAGES_ours-own = \"busybox\"", nil},
		{"feature of images taken out", `EXTRA_IMAGE_FEATURES:remove = "nosuch-feature"`, nil},
		{"require", "require conf/distro/poky.conf\nrequire nosuch.inc\nrequire ${OURS}", []string{"2:9 true correct the path"}},
		{"include of nothing", "include nosuch.inc", nil},
		{"mask that bitbake works out", `BBMASK = "${LAYERDIR}/x"`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "meta")
			for name, text := range miniature {
				put(t, filepath.Join(dir, name), text)
			}
			if err := os.Symlink("busybox_1.36.1.bb", filepath.Join(dir, "recipes-core/busybox/busybox_1.35.0.bb")); err != nil {
				t.Fatal(err)
			}
			l := on("scarthgap")
			if l.Checkout = newCheckout([]string{dir}); l.Checkout == nil {
				t.Fatal("the layer is not seen")
			}
			checkText(t, tt.text, l, tt.want)
		})
	}
}

// A layer that is not here may have what the others lack. The distro of a project file
// is looked at too.
func TestCheckoutsOfAProject(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "kas.yml"), "header: {version: 14}\nmachine: qemuarm64\ndistro: pokky\nrepos:\n  ours: {layers: {meta: , meta-late: }}\nlocal_conf_header:\n  a: |\n    TCLIBC = \"muls\"\n")
	for name, text := range miniature {
		put(t, filepath.Join(dir, "meta", name), text)
	}
	ws := layers.Workspace{Dir: filepath.Join(dir, "layers")}
	p, err := layers.Load(t.Context(), filepath.Join(dir, "kas.yml"), ws)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := Project(p, ws, filepath.Join(dir, "build")); err != nil || len(all) != 0 {
		t.Errorf("with a layer that is missing: %v\n%s", err, write(all))
	}
	put(t, filepath.Join(dir, "meta-late/conf/layer.conf"), "")
	all, err := Project(p, ws, filepath.Join(dir, "build"))
	if err != nil || len(all) != 2 || all[0].Where != p.File+":3:9" || all[1].Where != p.File+":8:15" {
		t.Errorf("Project: %v\n%s; want pokky and muls", err, write(all))
	}
	for block, want := range map[string]int{"POKY_BBLAYERS_CONF_VERSION = \"2\"\nBBPATH = \"${TOPDIR}\"": 2, "BBLAYERS += \"/x\"": 0, "require more.conf": 0} {
		p.BBLayersConf = map[string]string{"a": block}
		if all, err := Project(p, ws, filepath.Join(dir, "build")); err != nil || len(all) != want {
			t.Errorf("with %q in bblayers.conf: %v\n%s; want %d findings", block, err, write(all), want)
		}
	}
	p.BBLayersConf = nil
	put(t, filepath.Join(dir, "build/conf/distro/pokky.conf"), "")
	if all, err := Project(p, ws, filepath.Join(dir, "build")); err != nil || len(all) != 1 {
		t.Errorf("with the distro in the build folder: %v\n%s; want muls", err, write(all))
	}
}

// A layer may be a link to a folder. A part of a project without openembedded-core does
// not show what the whole has.
func TestCheckoutOfALink(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "kas.yml"), "header: {version: 14}\nmachine: qemuarm64\nrepos:\n  linked: {path: "+dir+"/linked}\nlocal_conf_header:\n  a: |\n    DISTRO = \"poky\"\n    VIRTUAL-RUNTIME_init_manager = \"systemd\"\n    BBMASK = \"/linked/recipes-core/systemd/\"\n    PREFERRED_VERSION_linux-yocto = \"5.15%\"\n")
	for name, text := range miniature {
		put(t, filepath.Join(dir, "meta", name), text)
	}
	if err := os.Symlink("meta", filepath.Join(dir, "linked")); err != nil {
		t.Fatal(err)
	}
	ws := layers.Workspace{Dir: filepath.Join(dir, "layers")}
	p, err := layers.Load(t.Context(), filepath.Join(dir, "kas.yml"), ws)
	if err != nil {
		t.Fatal(err)
	}
	all, err := Project(p, ws, filepath.Join(dir, "build"))
	if err != nil || len(all) != 1 || all[0].Where != p.File+":10:38" {
		t.Errorf("Project: %v\n%s; want the version of linux-yocto alone", err, write(all))
	}
	if err := os.Remove(filepath.Join(dir, "meta/conf/bitbake.conf")); err != nil {
		t.Fatal(err)
	}
	if all, err := Project(p, ws, filepath.Join(dir, "build")); err != nil || len(all) != 0 {
		t.Errorf("without openembedded-core: %v\n%s", err, write(all))
	}
}

// What openembedded-core proposes in its own files is no mistake.
func TestCheckoutsOfOpenembeddedCore(t *testing.T) {
	clone := clonesOf(os.Getenv("SLIPWAY_LAYER_CLONES"))["openembedded-core"]
	if clone == "" {
		t.Skip("SLIPWAY_LAYER_CLONES has no openembedded-core: it is NAME=FOLDER,... with git clones")
	}
	for _, release := range []string{"kirkstone", "scarthgap", "master"} {
		dir := t.TempDir()
		archive := exec.Command("git", "-C", clone, "archive", release, "meta")
		unpack := exec.Command("tar", "-x", "-C", dir)
		var err error
		if unpack.Stdin, err = archive.StdoutPipe(); err == nil {
			err = unpack.Start()
		}
		if err == nil {
			err = archive.Run()
		}
		if err == nil {
			err = unpack.Wait()
		}
		if err != nil {
			t.Fatal(release, err)
		}
		l := Layers{Branch: map[string]string{"openembedded-core": release}, Checkout: newCheckout([]string{filepath.Join(dir, "meta")})}
		read := 0
		walkFiles([]string{filepath.Join(dir, "meta/conf/distro")}, func(file string) {
			src, err := Read(file)
			if err != nil {
				t.Fatal(err)
			}
			read++
			src.Text = withoutFunctions(src.Text)
			all, err := Check([]Source{src}, l)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range all {
				t.Errorf("%s: %s", release, write([]Finding{f}))
			}
		})
		if read < 10 {
			t.Errorf("%s: %d files were read", release, read)
		}
	}
}
