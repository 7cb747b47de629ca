package lint

import (
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	ownLayer := on("wrynose")
	ownLayer.Others = true
	community := on("wrynose")
	community.Branch["meta-tegra-community"] = "wrynose"
	withOurs := on("wrynose")
	withOurs.Recipes = func() map[string]bool {
		return map[string]bool{"class:image-prelink": true, "class:buildhistroy": true, "fstype:tegraflash": true, "gcc:arm-8.2": true, "machine:jetson-nano": true}
	}
	noTegra := on("wrynose")
	delete(noTegra.Branch, "meta-tegra")
	clangLayer := on("scarthgap")
	clangLayer.Others = true
	otherCore := on("wrynose")
	delete(otherCore.Branch, "openembedded-core")
	otherCore.Others = true
	for _, tt := range []struct {
		name, text string
		layers     Layers
		want       []string // position, stops or not, a part of what to do
	}{
		{"tegraflash on wrynose", `IMAGE_FSTYPES = "tegraflash"`, on("wrynose"), []string{"1:18 true write tegraflash-tar instead"}},
		{"tegraflash beside others", `IMAGE_FSTYPES:append = " ext4.gz tegraflash wic.zst"`, on("wrynose"), []string{"1:34 true write tegraflash-tar"}},
		{"tegraflash.tar.gz on wrynose", `IMAGE_FSTYPES += "tegraflash.tar.gz"`, on("wrynose"), []string{"1:19 true write tegraflash-tar"}},
		{"tegraflash on walnascar", `IMAGE_FSTYPES = "tegraflash"`, on("walnascar"), []string{"1:18 true write tegraflash.tar"}},
		{"tegraflash on scarthgap", `IMAGE_FSTYPES = "tegraflash"`, on("scarthgap"), nil},
		{"tegraflash-tar on scarthgap", `IMAGE_FSTYPES = "tegraflash-tar"`, on("scarthgap"), []string{"1:18 true remove it"}},
		{"tegraflash taken out", `IMAGE_FSTYPES:remove = "tegraflash"`, on("wrynose"), nil},
		{"tegraflash for another machine", `IMAGE_FSTYPES:tegra = "tegraflash"`, on("wrynose"), []string{"1:24 false write tegraflash-tar"}},
		{"tegraflash that is replaced", "IMAGE_FSTYPES ?= \"tegraflash\"\nIMAGE_FSTYPES = \"ext4\"", on("wrynose"), nil},
		{"tegraflash that is replaced before", "IMAGE_FSTYPES = \"ext4\"\nIMAGE_FSTYPES ?= \"tegraflash\"", on("wrynose"), nil},
		{"tegraflash added and taken out", "IMAGE_FSTYPES:append = \" tegraflash\"\nIMAGE_FSTYPES:remove = \"tegraflash\"", on("wrynose"), nil},
		{"tegraflash appended to what is set", "IMAGE_FSTYPES:append = \" tegraflash\"\nIMAGE_FSTYPES:append = \" ext4\"", on("wrynose"), []string{"1:26 true write tegraflash-tar"}},
		{"both forms of an override", `FOO_append:qemuarm64 = " x"`, on("kirkstone"), []string{"1:1 true write FOO:append:qemuarm64"}},
		{"a name that only looks like an old override", `OUR_removed_things = "x"`, on("scarthgap"), []string{"1:1 true give the variable another name"}},
		{"such a name before honister", `OUR_removed_things = "x"`, on("dunfell"), nil},
		{"a space that is not ASCII", "FOO = \"a\"\u00a0", on("scarthgap"), nil},
		{"include_all", "include_all conf/x.inc", on("scarthgap"), []string{"1:1 true remove the line"}},
		{"include_all on wrynose", "include_all conf/x.inc", on("wrynose"), nil},
		{"tegraflash with another layer", `IMAGE_FSTYPES = "tegraflash"`, ownLayer, []string{"1:18 true write tegraflash-tar"}},
		{"a type of one's own", "IMAGE_FSTYPES = \"tegraflash ours\"\nIMAGE_CMD:tegraflash = \"make_it\"", on("wrynose"), nil},
		{"types that all branches have", `IMAGE_FSTYPES = "tar.bz2 ext4 wic wic.bmap squashfs hddimg iso live cpio.gz.u-boot ubi btrfs container ${OURS} our.own"`, on("wrynose"), nil},
		{"a class that is gone", `INHERIT += "rm_work image-prelink"`, on("wrynose"), []string{"1:21 true remove it"}},
		{"a class that is gone, in another list", `USER_CLASSES ?= "buildstats image-prelink image-mklibs"`, on("kirkstone"), []string{"1:29 true remove it", "1:43 true remove it"}},
		{"a class that was there", `USER_CLASSES ?= "buildstats image-prelink"`, on("dunfell"), nil},
		{"a packaging that is gone", `PACKAGE_CLASSES ?= "package_tar package_rpm"`, on("scarthgap"), []string{"1:21 true remove it"}},
		{"a class by a slip of the hand", `INHERIT += "buildhistroy"`, ownLayer, []string{"1:13 false write buildhistory, unless a layer of yours"}},
		{"a machine by a slip of the hand", `MACHINE = "jetson-orin-nano-devkti"`, Layers{Branch: on("scarthgap").Branch, Others: true}, []string{"1:12 false write jetson-orin-nano-devkit, unless"}},
		{"a type of images by a slip of the hand", `IMAGE_FSTYPES += "tegraflsh"`, on("scarthgap"), []string{"1:19 false write tegraflash, unless"}},
		{"a packaging by another name", `PACKAGE_CLASSES = "package_dpkg"`, on("scarthgap"), []string{"1:20 false write package_rpm, package_ipk or package_deb"}},
		{"an operator by a slip of the hand", `DISTRO_FEATURES:apend = " x"`, on("scarthgap"), []string{"1:1 false write DISTRO_FEATURES:append"}},
		{"a variable by a slip of the hand", `MACHNE ?= "qemux86-64"`, on("scarthgap"), []string{"1:1 false write MACHINE, unless"}},
		{"a class of one's own", `INHERIT += "our-own-class"`, ownLayer, nil},
		{"a class taken out", `INHERIT:remove = "image-prelink"`, on("wrynose"), nil},
		{"a class that bitbake works out", `INHERIT += "${@'image-prelink'}"`, on("wrynose"), nil},
		{"a provider that is gone", `PREFERRED_PROVIDER_virtual/kernel = "linux-tegra"`, on("wrynose"), []string{"1:38 true write linux-noble-nvidia-tegra instead"}},
		{"a provider that is there", `PREFERRED_PROVIDER_virtual/kernel = "linux-noble-nvidia-tegra"`, on("wrynose"), nil},
		{"a provider that a layer had before openembedded-core", `PREFERRED_PROVIDER_llvm = "clang"`, clangLayer, nil},
		{"a provider by the name of a package", `PREFERRED_PROVIDER_getopt = "util-linux-getopt"`, on("thud-l4t-r32.1"), nil},
		{"a provider of one's own", `PREFERRED_PROVIDER_virtual/kernel = "linux-ours"`, on("wrynose"), nil},
		{"gcc", `GCCVERSION = "8.%"`, on("scarthgap"), []string{"1:15 false remove the line"}},
		{"gcc that is there", `GCCVERSION ?= "13.%"`, on("scarthgap"), nil},
		{"gcc of meta-tegra's contrib layer", `GCCVERSION = "8.%"`, on("dunfell"), nil},
		{"gcc without that layer", `GCCVERSION = "8.3"`, noTegra, []string{"1:15 false remove the line"}},
		{"gcc that a layer without a table may have", `GCCVERSION = "arm-8.2"`, ownLayer, nil},
		{"gcc with a layer without a table", `GCCVERSION = "8.%"`, ownLayer, []string{"1:15 false remove the line, unless"}},
		{"gcc of a layer that is checked out", `GCCVERSION = "arm-8.%"`, withOurs, nil},
		{"a class that a layer keeps", `INHERIT += "image-prelink"`, withOurs, nil},
		{"a class whose name is like another's", `INHERIT += "buildhistroy"`, withOurs, nil},
		{"a type of images that a layer keeps", `IMAGE_FSTYPES = "tegraflash"`, withOurs, nil},
		{"a machine that a layer keeps", `MACHINE = "jetson-nano"`, withOurs, nil},
		{"a provider of openembedded-core under a name of one's own", `PREFERRED_PROVIDER_virtual/kernel = "linux-yocto"`, otherCore, nil},
		{"another version", `IMAGE_INSTALL:append = " deepstream-7.1"`, community, []string{"1:26 true write deepstream-9.1 instead"}},
		{"another version of a part", `IMAGE_INSTALL:append = " deepstream-7.1-samples"`, community, []string{"1:26 true write deepstream-9.1-samples instead"}},
		{"masks that go on", "BBMASK = \"a\"\nBBMASK .= \"|b\"\nBBMASK:append = \"|c\"", on("scarthgap"), nil},
		{"packages that mesa provides by code", `IMAGE_INSTALL:append = " libgl libegl libgles2-dev"`, on("wrynose"), nil},
		{"packages that later branches make by a pattern", `IMAGE_INSTALL:append = " alsa-utils-aplay"`, on("scarthgap"), nil},
		{"a repeated line", "IMAGE_INSTALL_append = \" a\"\nIMAGE_INSTALL_append = \" b\"\n", on("scarthgap"), []string{"1:1 true write IMAGE_INSTALL:append", "2:1 true write IMAGE_INSTALL:append"}},
		{"nothing is known of a branch", "INHERIT += \"image-prelink\"\nGCCVERSION = \"1.%\"", on("our-own"), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkText(t, tt.text, tt.layers, tt.want)
		})
	}
}

// checkText has Check look at a file, and wants findings such as "LINE:COLUMN STOPS FIX".
func checkText(t *testing.T, text string, layers Layers, wanted []string) {
	t.Helper()
	all, err := Check([]Source{{File: "a.conf", Text: text}}, layers)
	if err != nil {
		t.Fatal(err)
	}
	ok := len(all) == len(wanted)
	for i := 0; ok && i < len(all); i++ {
		want := strings.SplitN(wanted[i], " ", 3)
		ok = all[i].Where == "a.conf:"+want[0] && all[i].Stops == (want[1] == "true") && strings.Contains(all[i].Fix, want[2])
	}
	if !ok {
		t.Errorf("Check found\n%s\nwant %q", write(all), wanted)
	}
}

// What every branch's own configuration says is no mistake of anybody's.
func TestSettingsOfOwnBranches(t *testing.T) {
	for release, text := range map[string]string{
		"scarthgap": "USER_CLASSES ?= \"buildstats\"\nPACKAGE_CLASSES ?= \"package_rpm package_deb package_ipk\"\nINHERIT += \"uninative buildhistory own-mirrors rm_work create-spdx cve-check icecc\"\nIMAGE_CLASSES += \"image_types_tegra image_types_wic testimage\"\n",
		"wrynose":   "USER_CLASSES ?= \"buildstats\"\nPACKAGE_CLASSES ?= \"package_rpm package_deb package_ipk\"\nINHERIT += \"uninative buildhistory own-mirrors rm_work create-spdx\"\nIMAGE_CLASSES += \"image_types_tegra image_types_wic testimage\"\n",
		"dunfell":   "USER_CLASSES ?= \"buildstats image-mklibs image-prelink\"\nINHERIT += \"cve-check\"\nIMAGE_FSTYPES = \"tegraflash tar.gz cpio.gz.cboot\"\n",
	} {
		all, err := Check([]Source{{File: "a.conf", Text: text}}, on(release))
		if err != nil || len(all) != 0 {
			t.Errorf("%s: %v\n%s", release, err, write(all))
		}
	}
}

// The value of a variable is the one that bitbake gets from the same lines.
func TestAssignedValue(t *testing.T) {
	for text, want := range map[string]string{
		"A = \"a\"\nA += \"b\"\nA .= \"c\"\nA =+ \"d\"\nA =. \"e\"": "ed a bc",
		"A ??= \"a\"\nA .= \"b\"":                                   "b",
		"A ?= \"a\"\nA .= \"b\"\nA ?= \"c\"":                        "ab",
		"A += \"b\"\nA = \"a\"":                                     "a",
	} {
		statements, _, err := parseConf(Source{File: "a.conf", Text: text})
		if got := assignedValue(statements, "A", ""); err != nil || got != want {
			t.Errorf("assignedValue of\n%s\n= %q, %v; want %q", text, got, err, want)
		}
	}
}
