package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/images/builder"
	"slipway/images/cache"
	"slipway/images/lint"
	"slipway/layers"
	"slipway/layers/git"
	"slipway/layers/run"
)

func find(all []Finding, what string) (Finding, bool) {
	i := slices.IndexFunc(all, func(f Finding) bool { return f.What == what })
	if i < 0 {
		return Finding{}, false
	}
	return all[i], true
}

// What build would stop at in its first second, doctor says before.
func TestLookSeesWhatBuildDoes(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // so that every board lacks something
	foreign := map[string]string{"amd64": "virt-arm64", "arm64": "virt"}[runtime.GOARCH]
	for _, tt := range []struct{ board, what, fix string }{{"jetson-orin-nano-devkit", "programs", "sudo "}, {foreign, "emulation", "sudo "}} {
		spec, err := images.Load(tt.board)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		opt := Options{Build: images.Options{Dir: t.TempDir(), Offline: true}, JSON: true}
		if err := Look(t.Context(), &out, spec, opt); !errors.Is(err, errNotReady) {
			t.Errorf("Look for %s = %v; want %v", tt.board, err, errNotReady)
		}
		var all []Finding
		if err := json.Unmarshal(out.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		if roots := slices.DeleteFunc(slices.Clone(all), func(f Finding) bool { return !strings.Contains(f.Saw, "root") }); len(roots) > 1 {
			t.Errorf("Look for %s speaks of root more than once: %+v", tt.board, roots)
		}
		f, found := find(all, tt.what)
		if !found || f.State != Stops || f.Saw == "" || f.Why == "" || !strings.Contains(f.Fix, tt.fix) {
			t.Errorf("Look for %s: %+v; want %q to fix it", tt.board, f, tt.fix)
		}
		build := builder.HostErrors(t.Context(), spec, "")
		if build == nil || !strings.Contains(build.Error(), f.Saw) {
			t.Errorf("HostErrors(%s) = %v; doctor saw %q", tt.board, build, f.Saw)
		}
	}
}

// A check that a signal cut off says nothing about this machine.
func TestLookStopped(t *testing.T) {
	spec, err := images.Load("virt")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	pressed := errors.New("interrupt")
	cancel(pressed)
	var out bytes.Buffer
	err = Look(ctx, &out, spec, Options{Build: images.Options{Dir: t.TempDir(), Offline: true}})
	if !errors.Is(err, pressed) || errors.Is(err, errNotReady) || out.Len() > 0 {
		t.Errorf("Look = %v\n%s; want only that it was stopped", err, out.String())
	}
}

// A layer that a checkout lacks stops bitbake.
func TestCheckLayers(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "kas.yml")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "meta"), 0o755), os.WriteFile(file, []byte("header: {version: 14}\nrepos:\n  here: {layers: {meta: , mta: }}\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	p, err := layers.Load(t.Context(), file, layers.Workspace{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	found := checkLayers(t.Context(), boardBuild{project: p, ws: layers.Workspace{Dir: dir}})
	if len(found) != 1 || found[0].State != Stops || !strings.Contains(found[0].Saw, file+":3:") || !strings.Contains(found[0].Saw, `no layer "mta"`) {
		t.Errorf("checkLayers = %+v; want only mta", found)
	}
}

// As root, too, a locale that is missing is found.
func TestBuildable(t *testing.T) {
	bin := t.TempDir()
	if err := run.WriteProgram(filepath.Join(bin, "locale"), []byte("#!/bin/sh\necho C\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	all := checkBuildable(t.Context(), boardBuild{spec: images.Spec{Board: "b"}})
	if f, _ := find(all, "locale"); f.State != Stops || !strings.Contains(f.Saw, "en_US.UTF-8") || !strings.Contains(f.Fix, "localedef") {
		t.Errorf("buildable without a locale: %+v", all)
	}
	for _, f := range all {
		if strings.Contains(f.Saw, "root") {
			t.Errorf("%+v is what user says", f)
		}
	}
}

func TestUnread(t *testing.T) {
	spec := images.Spec{Board: "b"}
	if f := unreadProject(spec, layers.Project{}, fmt.Errorf("kas.yml:1:1: repos.r: %w", layers.ErrNotHere)); f.State != Warning || !strings.Contains(f.Why, "those of OpenEmbedded") || !strings.Contains(f.Fix, "layers checkout b") {
		t.Errorf("offline, without a repository: %+v", f)
	}
	if f := unreadProject(spec, layers.Project{}, errors.New("kas.yml:1:1: not valid YAML")); f.State != Stops {
		t.Errorf("a broken file: %+v", f)
	}
}

func TestPrint(t *testing.T) {
	var text bytes.Buffer
	Finding{"a", Stops, "one\ntwo\x1b[2J\u009b2J", "why", "fix\nand more"}.writeText(&text)
	want := "  STOP  a             one\n        two[2J2J\n        why\n        fix\n        and more\n"
	if text.String() != want {
		t.Errorf("print = %q; want %q", text.String(), want)
	}
}

// Every board is read, and nothing in its own configuration is wrong.
func TestLookAtEveryBoard(t *testing.T) {
	boards, err := images.Boards()
	if err != nil {
		t.Fatal(err)
	}
	for _, board := range boards {
		spec, err := images.Load(board)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Debian != nil {
			continue
		}
		p := boardBuild{spec: spec, Options: Options{Build: images.Options{Dir: t.TempDir(), Offline: true}}}
		if p.project, p.ws, err = images.Project(t.Context(), spec, p.Build); err != nil {
			t.Errorf("%s: %v", board, err)
			continue
		}
		p.layers = lint.LayersOf(p.project, p.ws)
		if p.project.BuildSystem == "openembedded" && p.layers.Release() == "" {
			t.Errorf("%s: no release is known of %v", board, p.layers.Branch)
		}
		for _, f := range checkConfiguration(t.Context(), p) {
			if f.State != OK {
				t.Errorf("%s: %+v", board, f)
			}
		}
		if err := os.MkdirAll(filepath.Dir(p.siteConf()), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.siteConf(), []byte("inherit nothing\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if all := checkConfiguration(t.Context(), p); len(all) != 1 || all[0].State != Stops {
			t.Errorf("%s with a wrong site.conf: %+v; want one finding that stops", board, all)
		}
	}
}

func TestConf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "local.conf")
	if err := os.WriteFile(file, []byte("IMAGE_INSTALL_append = \" nvidia-docker\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Conf(&out, file, "wrynose", false); err == nil || !strings.Contains(out.String(), file+":1:26: IMAGE_INSTALL names nvidia-docker") {
		t.Errorf("Conf = %v:\n%s", err, out.String())
	}
	if err := Conf(&out, file, "dunfell", false); err != nil {
		t.Errorf("Conf on dunfell = %v", err)
	}
	if err := os.WriteFile(file, []byte("INHERIT += \"nosuchclass\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := Conf(&out, file, "scarthgap", false); err != nil || !strings.Contains(out.String(), withoutCheckouts) || strings.Contains(out.String(), "the layers lack") {
		t.Errorf("Conf, with a class that no layer has = %v:\n%s; want %q", err, out.String(), withoutCheckouts)
	}
	if err := Conf(&out, "", "dunfell", false); err == nil || !strings.Contains(err.Error(), "--conf is missing") {
		t.Errorf("Conf without a file = %v", err)
	}
	if err := Conf(&out, file, "", false); err == nil || !strings.Contains(err.Error(), "--branch is missing") {
		t.Errorf("Conf without a branch = %v", err)
	}
}

func TestTools(t *testing.T) {
	for _, tt := range []struct {
		have, least string
		want        bool
	}{{"3.9", "3.10", true}, {"3.11.7", "3.9", false}, {"1.34", "1.28", false}, {"12", "10.1", false}, {"2.22", "2.22.0", false}, {"1.8.3", "1.8.3.1", true}, {"3.6", "", false}} {
		if got := isOlder(tt.have, tt.least); got != tt.want {
			t.Errorf("older(%q, %q) = %t", tt.have, tt.least, got)
		}
	}
	for release, want := range map[string]string{"thud": "3.4", "kirkstone": "3.6", "scarthgap": "3.8", "wrynose": "3.9", "": ""} {
		if got := hostTools[0].minVersion(release); got != want {
			t.Errorf("python for %q: %q; want %q", release, got, want)
		}
	}
	bin := t.TempDir()
	if err := run.WriteProgram(filepath.Join(bin, "python3"), []byte("#!/bin/sh\necho Python 3.7.3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	p := boardBuild{layers: lint.Layers{Branch: map[string]string{"openembedded-core": "scarthgap"}}}
	if f := checkTools(t.Context(), p)[0]; f.State != Stops || f.Saw != "python is 3.7.3" || !strings.Contains(f.Why, "3.8") {
		t.Errorf("tools with an old python: %+v", f)
	}
}

// Old releases import what newer Pythons do not have.
func TestPython(t *testing.T) {
	for _, tt := range []struct{ release, lacks, want string }{
		{"zeus", "", ""},
		{"zeus", "Mapping", "python3 is 3.10 or later"},
		{"dunfell", "Mapping", ""},
		{"gatesgarth", "Mapping", "python3 is 3.10 or later"},
		{"hardknott", "Mapping", ""},
		{"dunfell", "distutils", "python3 has no distutils"},
		{"mickledore", "distutils", ""},
	} {
		bin := t.TempDir()
		script := "#!/bin/sh\ncase $4 in *" + tt.lacks + "*) exit 1; esac\n"
		if tt.lacks == "" {
			script = "#!/bin/sh\n"
		}
		if err := run.WriteProgram(filepath.Join(bin, "python3"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":/bin:/usr/bin")
		saw := ""
		for _, f := range checkPython(t.Context(), tt.release) {
			saw += f.Saw
		}
		if saw != tt.want {
			t.Errorf("%s with a Python without %s: %q; want %q", tt.release, tt.lacks, saw, tt.want)
		}
	}
}

func TestCrowd(t *testing.T) {
	p := boardBuild{spec: images.Spec{Board: "b", Build: images.Needs{TaskMiB: 1024}}}
	none := func(string) string { return "" }
	if f := checkParallel(p, 16*gib, 0, 16, none); f.State != OK {
		t.Errorf("16 GiB for 16: %+v", f)
	}
	if f := checkParallel(p, 16*gib, 0, 64, none); f.State != Warning || !strings.Contains(f.Fix, `BB_NUMBER_THREADS=16 PARALLEL_MAKE="-j 16"`) {
		t.Errorf("16 GiB for 64: %+v", f)
	}
	set := map[string]string{"BB_NUMBER_THREADS": "16", "PARALLEL_MAKE": "-j 16"}
	if f := checkParallel(p, 16*gib, 0, 64, func(name string) string { return set[name] }); f.State != OK {
		t.Errorf("16 GiB for 64, limited to 16: %+v", f)
	}
}

func TestSpace(t *testing.T) {
	p := boardBuild{spec: images.Spec{Board: "b"}}
	for free, want := range map[uint64]string{100 * gib: OK, 60 * gib: Warning, 40 * gib: Stops} {
		d := demand{dir: "/d", need: 100 * gib, free: free, counted: true}
		if f := d.spaceFinding(p); f.State != want {
			t.Errorf("%d GiB free of 100: %+v; want %s", free/gib, f, want)
		}
	}
	// What could not be counted may be all that a build needs.
	d := demand{dir: "/d", need: 100 * gib, free: gib}
	if f := d.spaceFinding(p); f.State != Warning || !strings.HasSuffix(f.Why, "could be counted in a moment") {
		t.Errorf("1 GiB free beside more than could be counted: %+v", f)
	}
}

// What the parts of a build take of one disk adds up.
func TestDisk(t *testing.T) {
	for _, name := range []string{"DL_DIR", "SSTATE_DIR"} {
		t.Setenv(name, "")
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", t.TempDir()) // the shell's, which is not bitbake's
	if err := os.WriteFile(filepath.Join(os.Getenv("TMPDIR"), "large"), make([]byte, 1<<16), 0o644); err != nil {
		t.Fatal(err)
	}
	p := boardBuild{
		spec:    images.Spec{Board: "b", Build: images.Needs{Disk: images.DiskNeeds{LayersGiB: 1, DownloadsGiB: 1, SstateGiB: 1, TmpGiB: 1 << 14}}},
		ws:      layers.Workspace{Dir: filepath.Join(dir, "b/layers")},
		Options: Options{Build: images.Options{Dir: dir}},
	}
	f, _ := find(checkDisk(t.Context(), p), "disk")
	if f.State != Stops || !strings.Contains(f.Saw, "16387 GiB still to be written") || !strings.HasSuffix(f.Why, "layers 1, downloads 1, sstate 1, tmp 16384") {
		t.Errorf("disk for 16 TiB: %+v", f)
	}
}

// The user's own site.conf overrules the environment where it does not give a default.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "b/bitbake/conf")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	project := "/project"
	for _, tt := range []struct {
		name, site, environment string
		project                 map[string]*string
		want                    string
	}{
		{name: "nothing set", want: "/otherwise"},
		{name: "environment", environment: "/mine", want: "/mine"},
		{name: "project", project: map[string]*string{"DL_DIR": &project}, want: "/project"},
		{name: "environment over project", environment: "/mine", project: map[string]*string{"DL_DIR": &project}, want: "/mine"},
		{name: "site.conf", site: `DL_DIR = "/site"`, want: "/site"},
		{name: "site.conf over environment", site: `DL_DIR = "/site"`, environment: "/mine", want: "/site"},
		{name: "a default in site.conf", site: `DL_DIR ?= "/site"`, environment: "/mine", want: "/mine"},
		{name: "a default that Slipway's own overrules", site: `DL_DIR ?= "/site"`, want: "/otherwise"},
		{name: "below TOPDIR", site: `DL_DIR = "${TOPDIR}/../dl"`, want: filepath.Join(dir, "b/bitbake") + "/../dl"},
		{name: "relative", site: `DL_DIR = "dl"`, want: filepath.Join(dir, "b/bitbake/dl")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("DL_DIR", tt.environment)
			if err := os.WriteFile(filepath.Join(conf, "site.conf"), []byte(tt.site+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			p := boardBuild{ws: layers.Workspace{Dir: filepath.Join(dir, "b/layers")}, project: layers.Project{Env: tt.project}}
			if got := p.variableFolder("DL_DIR", "/otherwise"); got != tt.want {
				t.Errorf("folder = %s; want %s", got, tt.want)
			}
		})
	}
	p := boardBuild{ws: layers.Workspace{Dir: filepath.Join(dir, "b/layers")}}
	for text, want := range map[string]string{`TMPDIR ?= "/site/tmp"`: "/site/tmp", "": "/otherwise"} {
		if err := os.WriteFile(filepath.Join(conf, "site.conf"), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := p.variableFolder("TMPDIR", "/otherwise"); got != want { // no build gives it to bitbake
			t.Errorf("TMPDIR with %q is %s; want %s", text, got, want)
		}
	}
}

// What lies in the folders already is not needed again.
func TestDiskSubtractsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "downloads"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "downloads/a"), make([]byte, 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, link} {
		if got, counted := usedBytes(t.Context(), at); got < 8<<20 || got > 9<<20 || !counted {
			t.Errorf("used in %s = %d, %t; want 8 MiB", at, got, counted)
		}
	}
	if got, counted := usedBytes(t.Context(), filepath.Join(dir, "none")); got != 0 || !counted {
		t.Errorf("used of no folder = %d, %t", got, counted)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, counted := usedBytes(ended, dir); counted {
		t.Error("used counted all although its time was over")
	}
}

func TestPath(t *testing.T) {
	for dir, want := range map[string]string{"/src/build": OK, "/my src/build": Stops, "/src/a+b": Stops, "/größe/build": Stops, "/" + strings.Repeat("x", 400): Stops} {
		p := boardBuild{ws: layers.Workspace{Dir: dir + "/board/layers"}}
		if f := checkPath(t.Context(), p)[0]; f.State != want {
			t.Errorf("path %s: %+v; want %s", dir, f, want)
		}
	}
}

// A file system that runs no programs, and one without owners and links.
func TestFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := tryFiles(t.Context(), dir); err != nil {
		t.Errorf("tried in a folder for tests: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Skipf("cannot mount here (%v): run this as root", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if err := tryFiles(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "noexec") {
		t.Errorf("tried on noexec = %v", err)
	}
	all := checkFileSystem(t.Context(), boardBuild{Options: Options{Build: images.Options{Dir: filepath.Join(dir, "build")}}})
	if len(all) < 2 || all[0].State != Warning || !strings.Contains(all[0].Saw, "tmpfs") || all[1].State != Stops {
		t.Errorf("checkFileSystem on a tmpfs with noexec: %+v", all)
	}
}

func TestRunning(t *testing.T) {
	dir := t.TempDir()
	p := boardBuild{ws: layers.Workspace{Dir: filepath.Join(dir, "layers")}}
	if f := checkOtherBuilds(t.Context(), p)[0]; f.State != OK {
		t.Errorf("running in an empty folder: %+v", f)
	}
	f, err := os.Create(filepath.Join(dir, "build.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if f := checkOtherBuilds(t.Context(), p)[0]; f.State != Stops {
		t.Errorf("running beside a build: %+v", f)
	}
}

// bitbake makes the same namespace, and build would find out minutes later.
func TestUserNamespaces(t *testing.T) {
	p := boardBuild{layers: lint.Layers{Branch: map[string]string{"openembedded-core": "scarthgap"}}}
	works := exec.Command("unshare", "--user", "--map-current-user", "--net", "true").Run() == nil
	if f := checkUserNamespaces(t.Context(), p)[0]; (f.State == OK) != works {
		t.Errorf("checkUserNamespaces: %+v; unshare works: %t", f, works)
	}
	bin := t.TempDir()
	if err := run.WriteProgram(filepath.Join(bin, "unshare"), []byte("#!/bin/sh\necho 'unshare: write failed /proc/self/uid_map: Operation not permitted' >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	if f := checkUserNamespaces(t.Context(), p)[0]; f.State != Stops || !strings.Contains(f.Saw, "uid_map") {
		t.Errorf("checkUserNamespaces where none can be made: %+v", f)
	}
}

// The files of SDK Manager: not set, some of them, those for Xavier in their own folder.
func TestManualDownloads(t *testing.T) {
	dir := t.TempDir()
	p := boardBuild{
		ws:      layers.Workspace{Dir: filepath.Join(dir, "board/layers")},
		project: layers.Project{Machine: "jetson-xavier"},
		layers:  lint.Layers{Branch: map[string]string{"meta-tegra": "zeus-l4t-r32.3.1"}},
	}
	if f := checkManualDownloads(t.Context(), p)[0]; f.State != Warning || !strings.Contains(f.Fix, "\nlibcudnn7_7.6.3.28-1+cuda10.0_arm64.deb\n") || !strings.Contains(f.Fix, "\nDLA/libnvinfer6_") {
		t.Errorf("without %s: %+v", devnet, f)
	}
	p.project.LocalConf = map[string]string{"nvidia": devnet + ` = "file://${TOPDIR}/sdkm"`}
	d, _ := p.layers.DownloadsOf()
	for _, file := range d.SDKManager[1:] {
		at := filepath.Join(p.bitbakeDir(), "sdkm", strings.Replace(file, "NoDLA/", "DLA/", 1))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if f := checkManualDownloads(t.Context(), p)[0]; f.State != Warning || !strings.HasSuffix(f.Fix, "folder:\n"+d.SDKManager[0]) {
		t.Errorf("without one of the files: %+v", f)
	}
	p.project.Env = map[string]*string{devnet: nil}
	if f := checkManualDownloads(t.Context(), p)[0]; !strings.HasSuffix(f.Fix, "folder:\n"+d.SDKManager[0]) {
		t.Errorf("passed on, and not in the environment: %+v", f)
	}
	t.Setenv(devnet, "file://"+filepath.Join(p.bitbakeDir(), "sdkm"))
	p.project.LocalConf, p.project.Env = nil, map[string]*string{devnet: nil}
	if f := checkManualDownloads(t.Context(), p)[0]; !strings.HasSuffix(f.Fix, "folder:\n"+d.SDKManager[0]) {
		t.Errorf("by the environment: %+v", f)
	}
	p.layers.Branch["meta-tegra"] = "kirkstone-l4t-r32.7.x"
	if all := checkManualDownloads(t.Context(), p); len(all) != 0 {
		t.Errorf("on a branch that needs none: %+v", all)
	}
}

// Who follows doctor's advice to name a mirror is not stopped any more.
func TestMirrored(t *testing.T) {
	t.Setenv(cache.Environment, "off")
	p := boardBuild{ws: layers.Workspace{Dir: filepath.Join(t.TempDir(), "layers")}}
	if p.hasMirrors() {
		t.Error("mirrored without a mirror")
	}
	p.project.LocalConf = map[string]string{"m": `PREMIRRORS:prepend = "https://.*/.* http://localhost/"`}
	if !p.hasMirrors() {
		t.Error("not mirrored with PREMIRRORS")
	}
	p.project.LocalConf = nil
	t.Setenv(cache.Environment, "http://localhost:8600")
	if !p.hasMirrors() {
		t.Error("not mirrored with a cache")
	}
}

func TestProxies(t *testing.T) {
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} {
		t.Setenv(name, "")
	}
	if all := checkProxies(t.Context(), boardBuild{}); len(all) != 0 {
		t.Errorf("without proxies: %+v", all)
	}
	t.Setenv("HTTPS_PROXY", "http://p:3128")
	if all := checkProxies(t.Context(), boardBuild{}); len(all) != 1 || !strings.Contains(all[0].Fix, "export https_proxy=") {
		t.Errorf("in capitals: %+v", all)
	}
}

// A server that says no stops a build, but not one whose layers are here.
func TestUnreached(t *testing.T) {
	r := layers.Reached{Repo: layers.Repo{Remote: git.Remote{ID: "a", URL: "https://h/a"}}, Err: fmt.Errorf("no answer within 1s")}
	if f := unreachedFinding(r); f.State != Stops || !strings.Contains(f.Fix, "git ls-remote https://h/a HEAD") {
		t.Errorf("unreached: %+v", f)
	}
	r.Repo.URL = "https://h/$(id)"
	r.Err = errors.New("Host key verification failed.")
	if f := unreachedFinding(r); !strings.HasSuffix(f.Saw, " Host key verification failed.") || strings.Count(f.Fix, "'https://h/$(id)'") != 2 {
		t.Errorf("unreached by ssh: %+v", f)
	}
	r.Here = true
	if f := unreachedFinding(r); f.State != Warning {
		t.Errorf("unreached, but here: %+v", f)
	}
}

func TestSuites(t *testing.T) {
	virt, err := images.Load("virt")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		suites []string
		state  string
		saw    string
	}{
		"right":   {[]string{"base", "dpu-flow"}, OK, "base, dpu-flow"},
		"unknown": {[]string{"bse"}, Warning, `no suite "bse": did you mean base?`},
		"none":    {nil, Warning, "board virt has no suites"},
	} {
		virt.Suites = tt.suites
		if all := checkSuites(t.Context(), boardBuild{spec: virt}); len(all) != 1 || all[0].State != tt.state || !strings.Contains(all[0].Saw, tt.saw) {
			t.Errorf("%s: %+v; want %s and %q", name, all, tt.state, tt.saw)
		}
	}
}
