package lint

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/layers"
)

// on is a build of a branch of meta-tegra with the layers that go with it.
func on(branch string) Layers {
	release := seriesOf(branch)
	return Layers{DistroKnown: true, Branch: map[string]string{
		"openembedded-core": release, "meta-openembedded": release, "meta-virtualization": release, "meta-tegra": branch,
	}}
}

func write(all []Finding) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "%s stops=%t\n  %s\n  %s\n  %s\n", f.Where, f.Stops, f.What, f.Why, f.Fix)
	}
	return b.String()
}

// The configuration that people copied from each other in 2020, on the branch that it
// was written for and on those that they move it to.
func TestCheckOf2020(t *testing.T) {
	text, err := os.ReadFile("testdata/2020/local.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, branch := range []string{"warrior-l4t-r32.2", "zeus-l4t-r32.3.1", "dunfell-l4t-r32.4.3", "dunfell", "kirkstone-l4t-r32.7.x", "kirkstone", "scarthgap", "wrynose"} {
		all, err := Check([]Source{{File: "conf/local.conf", Text: string(text)}}, on(branch))
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata/2020", branch+".txt")
		if *update {
			if err := os.WriteFile(golden, []byte(write(all)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), write(all)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", branch, diff)
		}
	}
}

// A name that a typing mistake made would never be found, or never be written.
func TestRenamesAreOfRealNames(t *testing.T) {
	real := func(name string) bool {
		return slices.ContainsFunc(tables(), func(t table) bool { return t.findBranches(name) != 0 })
	}
	for _, r := range renames {
		for _, name := range append(slices.Clone(r.old), words(strings.Join(r.new, " "))...) {
			if !real(name) {
				t.Errorf("no branch of any layer has %q", name)
			}
		}
	}
	for _, name := range slices.Concat(gpuContainers, engines) {
		if !real(name) {
			t.Errorf("no branch of any layer has %q", name)
		}
	}
}

func TestCheck(t *testing.T) {
	const systemd = "INIT_MANAGER = \"systemd\"\nDISTRO_FEATURES:append = \" virtualization\"\n"
	withoutContainers := on("scarthgap")
	delete(withoutContainers.Branch, "meta-virtualization")
	unknownDistro := on("scarthgap")
	unknownDistro.DistroKnown = false
	own := on("wrynose")
	own.Recipes = func() map[string]bool { return map[string]bool{"nvidia-docker": true} }
	inOurs := on("scarthgap")
	inOurs.DistroName = "ours"
	others := on("scarthgap")
	delete(others.Branch, "meta-tegra-community")
	others.Others = true
	tests := []struct {
		name, text string
		layers     Layers
		want       []string // the position, and a part of what is said
	}{
		{"nothing wrong", systemd + `IMAGE_INSTALL:append = " nvidia-docker python3-numpy our-own-thing"`, on("scarthgap"), nil},
		{"in a recipe's own layer", systemd + `IMAGE_INSTALL:append = " nvidia-docker docker"`, own, nil},
		{"taken out", "IMAGE_INSTALL:remove = \"tensorrt cuda-container-csv\"", on("wrynose"), nil},
		{"a package of a recipe", systemd + `IMAGE_INSTALL:append = " tensorrt-core-dev libnvidia-container-tools"`, on("wrynose"), nil},
		{"what another layer may have", `IMAGE_INSTALL:append = " gpu-burn"`, others, nil},
		{"what another layer may have had first", `IMAGE_INSTALL:append = " clang"`, others, nil},
		{"on an unknown branch", `IMAGE_INSTALL_append = " cuda-container-csv"`, on("our-own"), nil},
		{"old python", `IMAGE_INSTALL_append = " python-numpy"`, on("dunfell"), []string{"1:26 write python3-numpy instead"}},
		{"colon before dunfell", `A:append = " x"`, on("zeus"), []string{"1:1 write A_append"}},
		{"colon on dunfell", `A:append = " x"`, on("dunfell"), nil},
		{
			"old overrides", "A_append_tegra = \" x\"\nB_pn-x = \"1\"\nPREFERRED_VERSION_linux-tegra = \"6\"\nSRCREV_tegra = \"1\"", on("kirkstone"),
			[]string{"1:1 write A:append:tegra", "2:1 write B:pn-x"},
		},
		{"no space", `IMAGE_INSTALL:append = "vim"`, on("scarthgap"), []string{`1:1 begin the value with a space: " vim…"`}},
		{"no space before a feature", systemd + `DISTRO_FEATURES:append = "wifi"`, on("scarthgap"), []string{`3:1 begin the value with a space: " wifi…"`}},
		{"no space in an option's list", `PACKAGECONFIG:append:pn-qemu = "sdl"`, on("scarthgap"), []string{`1:1 begin the value with a space`}},
		{"debug-tweaks", "A = 1\nEXTRA_IMAGE_FEATURES ?= \"debug-tweaks\"\nB = 1", on("wrynose"), []string{"1:5 with the quotes", "2:26 allow-root-login", "3:5 with the quotes"}},
		{"debug-tweaks while there are", `EXTRA_IMAGE_FEATURES ?= "debug-tweaks"`, on("styhead"), nil},
		{"a space that bitbake works out", `IMAGE_INSTALL:append = "${@' vim'}"`, on("scarthgap"), nil},
		{"a comment in a value", "IMAGE_INSTALL = \"vim \\\n# \\\n\"", on("scarthgap"), []string{"2:1 move the comment out"}},
		{"no virtualization", "INIT_MANAGER = \"systemd\"\nIMAGE_INSTALL:append = \" docker\"", on("scarthgap"), []string{`2:26 add DISTRO_FEATURES:append = " virtualization"`}},
		{"virtualization taken out", systemd + "DISTRO_FEATURES:remove = \"virtualization\"\nIMAGE_INSTALL:append = \" docker\"", on("scarthgap"), []string{"4:26 add DISTRO_FEATURES"}},
		{"no virtualization in a distro of one's own", "INIT_MANAGER = \"systemd\"\nIMAGE_INSTALL:append = \" docker\"", unknownDistro, nil},
		{"no virtualization in poky", "DISTRO ?= \"poky\"\nINIT_MANAGER = \"systemd\"\nIMAGE_INSTALL:append = \" docker\"", unknownDistro, []string{`3:26 add DISTRO_FEATURES:append = " virtualization"`}},
		{"no virtualization in a distro that the project does not name", "DISTRO = \"theirs\"\nIMAGE_INSTALL:append = \" docker\"", inOurs, nil},
		{"no virtualization in the project's distro", "DISTRO ??= \"ours\"\nINIT_MANAGER = \"systemd\"\nIMAGE_INSTALL:append = \" docker\"", inOurs, []string{"3:26 add DISTRO_FEATURES"}},
		{"virtualization may be in another file", "require conf/features.conf\nIMAGE_INSTALL:append = \" docker\"", on("scarthgap"), nil},
		{"ldconfig taken out", systemd + "DISTRO_FEATURES_OPTED_OUT = \"ldconfig\"\nIMAGE_INSTALL:append = \" docker nvidia-container-toolkit\"", on("wrynose"), []string{"3:1 remove ldconfig"}},
		{"no engine", systemd + `IMAGE_INSTALL:append = " nvidia-container-toolkit"`, on("wrynose"), []string{"3:26 add docker docker-registry-config"}},
		{"brings its engine", systemd + `IMAGE_INSTALL:append = " nvidia-container-toolkit"`, on("whinlatter"), nil},
		{
			"no meta-virtualization", systemd + `IMAGE_INSTALL:append = " docker nvidia-container-toolkit"`, withoutContainers,
			[]string{"3:26 add the layer meta-virtualization", "3:33 add meta-virtualization"},
		},
		{"renamed in wrynose", `DISTRO_FEATURES_BACKFILL_CONSIDERED = "x"`, on("wrynose"), []string{"1:1 write DISTRO_FEATURES_OPTED_OUT"}},
		{"not yet renamed", `DISTRO_FEATURES_BACKFILL_CONSIDERED = "x"`, on("scarthgap"), nil},
		{"a comment behind a value", "A = \"1\" # why", on("scarthgap"), []string{`1:5 move the comment onto a line of its own`}},
		{"no quotes", "MACHINE = jetson-tx2", on("scarthgap"), []string{`1:11 write it as NAME = "value"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all, err := Check([]Source{{File: "a.conf", Text: tt.text}}, tt.layers)
			if err != nil {
				t.Fatal(err)
			}
			ok := len(all) == len(tt.want)
			for i := 0; ok && i < len(all); i++ {
				where, fix, _ := strings.Cut(tt.want[i], " ")
				ok = all[i].Where == "a.conf:"+where && strings.Contains(all[i].Fix, fix)
			}
			if !ok {
				t.Errorf("Check found\n%s\nwant %q", write(all), tt.want)
			}
		})
	}
}

// A file of nothing but mistakes takes no longer than another.
func TestCheckLimits(t *testing.T) {
	var b strings.Builder
	b.WriteString(`IMAGE_INSTALL = "`)
	for i := range 50_000 {
		fmt.Fprintf(&b, "#%d ", i)
	}
	began := time.Now()
	all, err := Check([]Source{{File: "a.conf", Text: b.String() + `"`}}, on("scarthgap"))
	if took := time.Since(began); err != nil || len(all) != maxFindings || took > 10*time.Second {
		t.Errorf("Check = %d findings, %v, after %v; want %d at once", len(all), err, took, maxFindings)
	}
}

// bitbake reads such a file as it reads recipes.
func TestCheckOfIncludes(t *testing.T) {
	const text = "inherit extrausers\naddhandler ours\npython ours() {\n    pass\n}\nINHERIT += \"image-prelink\"\n"
	for file, want := range map[string]int{"a.inc": 1, "a.conf": 6} {
		if all, err := Check([]Source{{File: file, Text: text}}, on("wrynose")); err != nil || len(all) != want {
			t.Errorf("Check(%s): %v, %d findings\n%s; want %d", file, err, len(all), write(all), want)
		}
	}
}

// A project's own blocks are found in its file; what is checked out overrules the tables.
func TestProject(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "kas.yml"), `header: {version: 14}
machine: jetson-tx2
distro: ours
repos:
  ours: {layers: {meta-ours: }}
  poky: {url: "https://git.yoctoproject.org/poky", branch: wrynose, layers: {meta: }}
  meta-tegra: {url: "https://github.com/OE4T/meta-tegra", commit: 0123456789012345678901234567890123456789}
  meta-virtualization: {url: "https://git.yoctoproject.org/meta-virtualization", branch: wrynose}
local_conf_header:
  packages: |
    # ours
    IMAGE_INSTALL:append = " docker nvidia-docker libnvvpi3"
  short: 'TCLIBCAPPEND = ""'
`)
	put(t, filepath.Join(dir, "meta-ours/conf/distro/ours.conf"), "include conf/distro/include/ours.inc\nINIT_MANAGER = \"systemd\"\n")
	put(t, filepath.Join(dir, "meta-ours/conf/distro/include/ours.inc"), "DISTRO_FEATURES = \"virtualization\"\n")
	put(t, filepath.Join(dir, "meta-ours/recipes/a/libnvvpi3_1.bb"), "")
	put(t, filepath.Join(dir, "build/conf/auto.conf"), "IMAGE_INSTALL_append = \" vim\"\n")
	all := lintProject(t, dir)
	var got []string
	for _, f := range all {
		rel, _ := filepath.Rel(dir, f.Where)
		fix, _, _ := strings.Cut(f.Fix, " from ")
		got = append(got, rel+" "+fix)
	}
	want := []string{"kas.yml:2:10 build it as jetson-tx2-devkit", "kas.yml:12:37 write docker nvidia-container-toolkit docker-registry-config instead", "kas.yml:13:11 remove the line", "build/conf/auto.conf:1:1 write IMAGE_INSTALL:append"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Project: (-want +got)\n%s", diff)
	}
}

// What a layer that is checked out keeps of older releases is there, and a commit of
// master may be older than what master holds today.
func TestProjectOfOlderNames(t *testing.T) {
	const settings = "local_conf_header:\n  a: |\n    INHERIT += \"cve-check\"\n    IMAGE_FSTYPES = \"tegraflash\"\n    GCCVERSION = \"arm-9.2\"\n"
	const core = "header: {version: 14}\nmachine: jetson-tx2\nrepos:\n  openembedded-core: {url: \"https://github.com/openembedded/openembedded-core\", branch: "
	const tegra = "  meta-tegra: {url: \"https://github.com/OE4T/meta-tegra\", branch: wrynose}\n"
	const ours = "  ours: {layers: {meta-ours: }}\n"
	const pin = "master, commit: 0123456789012345678901234567890123456789}\n"
	for _, tt := range []struct {
		name, text string
		want       int
	}{
		{"of a release", core + "wrynose}\n" + tegra + settings, 4},
		{"of master", core + "master}\n" + settings, 4},
		{"of a commit of master", core + pin + settings, 0},
		{"of a commit of master beside a release", core + pin + tegra + settings, 4},
		{"with a layer that keeps them", core + "wrynose}\n" + tegra + ours + settings, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, filepath.Join(dir, "kas.yml"), tt.text)
			put(t, filepath.Join(dir, "meta-ours/classes/cve-check.bbclass"), "")
			put(t, filepath.Join(dir, "meta-ours/classes-recipe/ours.bbclass"), "oe_mk() {\n    true\n}\nIMAGE_CMD:tegraflash = \"oe_mk\"\n")
			put(t, filepath.Join(dir, "meta-ours/conf/machine/jetson-tx2.conf"), "")
			put(t, filepath.Join(dir, "meta-ours/recipes/gcc/gcc_arm-9.2.bb"), "")
			if all := lintProject(t, dir); len(all) != tt.want {
				t.Errorf("Project: %d findings\n%s; want %d", len(all), write(all), tt.want)
			}
		})
	}
}

// lintProject checks the kas.yml of a folder.
func lintProject(t *testing.T, dir string) []Finding {
	t.Helper()
	ws := layers.Workspace{Dir: filepath.Join(dir, "layers")}
	p, err := layers.Load(t.Context(), filepath.Join(dir, "kas.yml"), ws)
	if err != nil {
		t.Fatal(err)
	}
	all, err := Project(p, ws, filepath.Join(dir, "build"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// What the layers' own distro installs exists on its branch: a finding would be wrong.
func TestCheckOfTegraDemoDistro(t *testing.T) {
	clone := clonesOf(os.Getenv("SLIPWAY_LAYER_CLONES"))["tegra-demo-distro"]
	if clone == "" {
		t.Skip("SLIPWAY_LAYER_CLONES has no tegra-demo-distro: it is NAME=FOLDER,... with git clones")
	}
	files := &blobs{t: t, clone: clone, seen: map[string]string{}}
	read := 0
	for _, branch := range origins[0].branches {
		out, err := exec.Command("git", "-C", clone, "rev-parse", "-q", "--verify", "refs/heads/"+branch).Output()
		if err != nil || len(out) == 0 {
			continue
		}
		l := on(branch)
		l.DistroKnown = false
		l.Branch["meta-tegra-community"] = branch
		f := files.branch(branch)
		own := map[string]bool{}
		for file := range f.ids {
			f.names(file, func(name string, _ bool) { own[name] = true })
		}
		l.Recipes = func() map[string]bool { return own }
		for file, id := range f.ids {
			if strings.Contains(file, "/recipes-") && !strings.Contains(file, "image") {
				continue
			}
			all, err := Check([]Source{{File: branch + ":" + file, Text: files.seen[id]}}, l)
			if err != nil {
				t.Fatal(err)
			}
			read++
			for _, f := range all {
				if strings.Contains(f.What, " names ") || strings.Contains(f.What, "MACHINE") || strings.Contains(f.What, "syntax") {
					t.Errorf("%s", write([]Finding{f}))
				}
			}
		}
	}
	t.Logf("%d files", read)
	if read == 0 {
		t.Errorf("nothing was read in %s", clone)
	}
}

func TestBranch(t *testing.T) {
	if _, err := Branch("scarthgab"); err == nil || !strings.HasSuffix(err.Error(), "with --branch=scarthgap") {
		t.Errorf("Branch of a mistyped name = %v; want the one it resembles in the next line", err)
	}
	l, err := Branch("kirkstone-l4t-r32.7.x")
	if err != nil || l.Branch["meta-tegra"] != "kirkstone-l4t-r32.7.x" || l.Branch["meta-virtualization"] != "kirkstone" {
		t.Errorf("Branch = %+v, %v", l, err)
	}
	if _, err := Branch("jammy"); err == nil || !strings.Contains(err.Error(), "scarthgap-l4t-r35.x") {
		t.Errorf("Branch(jammy) = %v; want the branches that there are", err)
	}
}
