package builder

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/testscript"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/bitbake/bitbaketest"
	"slipway/images/cache"
	"slipway/layers"
)

// The test binary is also the bitbake of the checkouts that tests make: a replay
// of what the real one (2.8.1) wrote about the layer in testdata/bitbake. Builds in
// tests use no cache, whatever the developer's own builds do.
func TestMain(m *testing.M) {
	must(os.Setenv(cache.Environment, "off"))
	testscript.Main(m, map[string]func(){"bitbake": replay})
}

func replay() {
	build := os.Getenv("BUILDDIR")
	if os.Args[1] == "-e" {
		answerNames(build, os.Args[2])
		return
	}
	record := strings.Join(append(os.Args[1:], "cwd="+here(), "locale="+os.Getenv("LC_ALL"),
		"pass="+os.Getenv("BB_ENV_PASSTHROUGH_ADDITIONS"), "EDITION="+os.Getenv("EDITION"), "DL_DIR="+os.Getenv("DL_DIR"), "BB_HASHSERVE_DB_DIR="+os.Getenv("BB_HASHSERVE_DB_DIR"), "pre="+os.Getenv("BBPRECONF")), "\n")
	must(os.WriteFile(filepath.Join(build, "asked"), []byte(record), 0o644))
	target := os.Args[len(os.Args)-1]
	if target == "slow-image" {
		waitForTwoInterrupts()
	}
	f, err := os.Open(filepath.Join(os.Getenv("REPLAY"), target+".txt"))
	if errors.Is(err, fs.ErrNotExist) {
		return // not an image: it leaves nothing
	}
	must(err)
	status := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "rc=%d", &status); err != nil {
			fmt.Println(lines.Text())
		}
	}
	if status == 0 {
		deployed := deployFolder(build)
		must(os.MkdirAll(deployed, 0o755))
		must(os.WriteFile(filepath.Join(deployed, target+"-qemuarm64.wic.gz"), make([]byte, 4096), 0o644))
	}
	os.Exit(status)
}

// answerNames says where a target's images are. As real ones do, it knows other names for the
// targets of other configurations, and none for some.
func answerNames(build, target string) {
	fmt.Printf("# a comment\n#   IMAGE_LINK_NAME=\"wrong\"\nDEPLOY_DIR_IMAGE=\"%s\"\n", deployFolder(build))
	switch {
	case strings.HasPrefix(target, "mc:"):
		fmt.Printf("export IMAGE_FULLNAME=\"%s-debian\"\nIMAGE_ROOTFS=\"%s\"\n", target[strings.LastIndex(target, ":")+1:], rootFolder(build))
	case target != "no-image":
		if strings.HasSuffix(target, "-image") {
			fmt.Println(`IMAGE_TYPES="wic ext4"`)
		}
		fmt.Printf("IMAGE_LINK_NAME=\"%s-qemuarm64\"\n", target)
	}
}

func deployFolder(build string) string { return filepath.Join(build, "tmp/deploy/images/qemuarm64") }

func rootFolder(build string) string { return filepath.Join(build, "tmp/work/rootfs") }

func here() string {
	dir, err := os.Getwd()
	must(err)
	return dir
}

func waitForTwoInterrupts() {
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt)
	fmt.Println("NOTE: Running task 1 of 4 (/b/recipes/slow-image.bb:do_compile)")
	<-interrupts
	<-interrupts
	os.Exit(1)
}

// testdata is images' own, or a copy that another user may read.
func testdata() string {
	if dir := os.Getenv("SLIPWAY_TESTDATA"); dir != "" {
		return dir
	}
	return "../testdata"
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func runGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@localhost"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// standIn makes a git repository whose bitbake is this test binary.
func standIn(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, sub := range []string{"bin", "lib/bb"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(self, filepath.Join(dir, "bin/bitbake")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lib/bb/__init__.py"), []byte("__version__ = \"2.8.1\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	runGit(t, dir, "init", "-q", "-b", "main")
	runGit(t, dir, "add", "-A")
	runGit(t, dir, "commit", "-q", "-m", "stand-in")
	return dir
}

// tinyProject is a project of a bitbake repository and the layer in testdata.
func tinyProject(t *testing.T, bitbake, target string) (layers.Project, string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed (Debian package git)")
	}
	dir := t.TempDir()
	layer := filepath.Join(dir, "meta-tiny")
	if err := os.CopyFS(layer, os.DirFS(filepath.Join(testdata(), "bitbake/meta-tiny"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(layer, "kas.yml")
	content := fmt.Sprintf(`
header: {version: 14}
machine: qemuarm64
target: %s
env: {EDITION: field}
repos:
  meta-tiny:
  bitbake: {url: %s, commit: %s, layers: {}}
`, target, bitbake, runGit(t, bitbake, "rev-parse", "HEAD"))
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := layers.Load(t.Context(), file, layers.Workspace{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return p, filepath.Join(dir, "build", "tiny")
}

const passedOn = "BB_HASHSERVE_DB_DIR BB_NO_NETWORK BB_NUMBER_THREADS DL_DIR EDITION GIT_SSL_CAINFO PARALLEL_MAKE SSH_AUTH_SOCK SSTATE_DIR all_proxy ftp_proxy http_proxy https_proxy no_proxy"

var tiny = images.Spec{Board: "tiny", Arch: "arm64"}

func replayed(t *testing.T) {
	t.Helper()
	records, err := filepath.Abs(filepath.Join(testdata(), "bitbake"))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("REPLAY", records)
	for _, own := range []string{"DL_DIR", "SSTATE_DIR", "BB_HASHSERVE_DB_DIR", "BB_NO_NETWORK"} { // the developer's hold in builds
		t.Setenv(own, "") // so that it comes back
		must(os.Unsetenv(own))
	}
}

func TestCostOf(t *testing.T) {
	began := time.Unix(1000, 0)
	r := bitbake.Record{Started: began, Ended: began.Add(1500 * time.Millisecond), Setscene: bitbake.Setscene{Hits: 3, Misses: 2}}
	if got := costOf(r); got == nil || *got != (images.Cost{BuildMS: 1500, CacheHits: 3, CacheMisses: 2}) {
		t.Errorf("costOf = %+v; want 1500 ms, 3 hits and 2 misses", got)
	}
	if got := costOf(bitbake.Record{}); got != nil {
		t.Errorf("costOf a build that did not run = %+v; want nil", got)
	}
}

func TestBuildWithBitbake(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "tiny-image")
	a, err := buildProject(t.Context(), tiny, p, images.Options{Dir: filepath.Dir(dir)})
	if err != nil {
		t.Fatal(err)
	}
	want := []images.File{{Kind: images.DiskImage, Name: "tiny-image-qemuarm64.wic.gz", SizeBytes: 4096, SHA256: "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7"}}
	if diff := cmp.Diff(want, builtFiles(a)); diff != "" {
		t.Errorf("files: (-want +got)\n%s", diff)
	}
	reopened, err := images.OpenArtifact(dir)
	if diff := cmp.Diff(a, reopened, cmpopts.IgnoreUnexported(images.Artifact{})); diff != "" || err != nil {
		t.Errorf("OpenArtifact: %v (-built +opened)\n%s", err, diff)
	}
	record, err := bitbake.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	took := record.Ended.Sub(record.Started).Milliseconds()
	if diff := cmp.Diff(&images.Cost{BuildMS: took, CacheHits: record.Setscene.Hits, CacheMisses: record.Setscene.Misses}, a.Cost); diff != "" || took < 1 {
		t.Errorf("cost %+v of %d ms: (-want +got)\n%s", a.Cost, took, diff)
	}
	asked, err := os.ReadFile(filepath.Join(dir, "bitbake/asked"))
	if err != nil {
		t.Fatal(err)
	}
	wantAsked := []string{
		"-c", "build", "--", "tiny-image", "cwd=" + filepath.Join(dir, "bitbake"), "locale=en_US.UTF-8",
		"pass=" + passedOn, "EDITION=field", "DL_DIR=" + filepath.Join(filepath.Dir(dir), "downloads"),
		"BB_HASHSERVE_DB_DIR=" + filepath.Join(filepath.Dir(dir), "sstate-cache"), "pre=",
	}
	if diff := cmp.Diff(wantAsked, strings.Split(string(asked), "\n")); diff != "" {
		t.Errorf("bitbake was asked: (-want +got)\n%s", diff)
	}
	log, err := os.ReadFile(filepath.Join(dir, "bitbake.log"))
	if err != nil || !strings.Contains(string(log), "Tasks Summary: Attempted 16 tasks") {
		t.Errorf("bitbake.log = %q, %v; want the whole console text", log, err)
	}
}

// The digest of an image that is the same file as before is not made again; that of
// one that was written to is.
func TestCollectReadsWhatChanged(t *testing.T) {
	deploy, dir := t.TempDir(), t.TempDir()
	const name = "an-image-tiny.wic"
	b := projectBuild{dir: dir}
	gather := func() images.File {
		t.Helper()
		files, err := b.collectFiles(t.Context(), []image{{kind: images.DiskImage, name: filepath.Join(deploy, name)}}, b.unchangedFiles())
		if err != nil {
			t.Fatal(err)
		}
		return files[0]
	}
	must(os.WriteFile(filepath.Join(deploy, name), []byte("image 1"), 0o644))
	first := gather()
	time.Sleep(20 * time.Millisecond) // the kernel's clock ticks
	marked := first
	marked.SHA256 = "as described"
	must(images.Artifact{Board: "tiny", Files: []images.File{marked}}.Save(dir))
	if got := gather(); got != marked {
		t.Errorf("an image that did not change is %+v; want it as described", got)
	}
	time.Sleep(20 * time.Millisecond)
	must(os.WriteFile(filepath.Join(deploy, name), []byte("image 2"), 0o644)) // the same file, with the same size
	if got := gather(); got.SHA256 == marked.SHA256 || got.SHA256 == first.SHA256 {
		t.Errorf("an image that was written to is %+v; want its own digest", got)
	}
	must(images.Artifact{Board: "tiny", Files: []images.File{marked}}.Save(dir))
	must(os.Remove(filepath.Join(deploy, name)))
	must(os.WriteFile(filepath.Join(deploy, name), []byte("image 3"), 0o644))
	if got := gather(); got.SHA256 == marked.SHA256 {
		t.Errorf("another image of the same name is %+v; want its own digest", got)
	}
}

func TestBuildWithBitbakeNamesTheFailedTask(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "broken-image")
	_, err := buildProject(t.Context(), tiny, p, images.Options{Dir: filepath.Dir(dir)})
	for _, want := range []string{
		"failed: broken-image do_compile\n",
		"log of the failed task: /b/tmp/work/broken-image/temp/log.do_compile.",
		"exit status 1",
		"full log: " + filepath.Join(dir, "bitbake.log"),
		"page of the build: " + filepath.Join(dir, "build.html"),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("build = %v; want an error with %q", err, want)
		}
	}
	if _, err := images.OpenArtifact(dir); err == nil {
		t.Error("a failed build left an artifact")
	}
}

// One interrupt would let the tasks that run go on to their end.
func TestBuildWithBitbakeStopped(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "slow-image")
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped by the test")
	go func() {
		for ctx.Err() == nil {
			if log, err := os.Stat(filepath.Join(dir, "bitbake.log")); err == nil && log.Size() > 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		cancel(stopped)
	}()
	_, err := buildProject(ctx, tiny, p, images.Options{Dir: filepath.Dir(dir)})
	if !errors.Is(err, stopped) || !strings.HasSuffix(err.Error(), "\nnext: repeat the line  # it continues") {
		t.Errorf("build = %v; want it stopped, and the next step", err)
	}
}

// The whole build with the real bitbake: checkout, configuration, build, artifact.
func TestRealBitbake(t *testing.T) {
	for _, source := range bitbaketest.ForUser(t, testdata()) {
		if _, err := os.Stat(filepath.Join(source, ".git")); err != nil {
			t.Skipf("%s is no git clone, which a project file can name", source)
		}
		p, dir := tinyProject(t, source, "tiny-image")
		opt := images.Options{Dir: filepath.Dir(dir)}
		a, err := buildProject(t.Context(), tiny, p, opt)
		checkInputs(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Files) != 1 || a.Files[0].Name != "tiny-image-qemuarm64.wic.gz" {
			t.Errorf("files = %+v; want the image", a.Files)
		}
		again, err := buildProject(t.Context(), tiny, p, opt)
		if err != nil || again.Key != a.Key {
			t.Errorf("built again: %v, key %s; want key %s", err, again.Key, a.Key)
		}
	}
}

// checkInputs wants what a build read. Its project is in no git repository.
func checkInputs(t *testing.T, dir string) {
	t.Helper()
	in, err := bitbake.OpenInputs(dir)
	if err != nil || !in.Edited || in.Read["recipes/tiny-image.bb"] == "" || !slices.Contains(in.Unread, "recipes/slow-image.bb") {
		t.Errorf("inputs = %+v, %v; want tiny-image read, slow-image not, and no commit", in, err)
	}
}

func TestCheckHost(t *testing.T) {
	request := images.BuildRequest{Targets: []string{"a", "b"}, Task: "fetch", Continue: true, DryRun: true}
	t.Setenv("SUDO_USER", "")
	if err := rootError("build", "orin", requestFlags(request)); !errors.Is(err, ErrRoot) || !strings.HasSuffix(err.Error(), "\nnext: doctor orin") {
		t.Errorf("rootError without sudo = %v; want doctor", err)
	}
	t.Setenv("SUDO_USER", "ann")
	if err := rootError("build", "orin", requestFlags(request)); !errors.Is(err, ErrRoot) || !strings.HasSuffix(err.Error(), " build orin --target=a,b --task=fetch --continue --dry-run") {
		t.Errorf("rootError = %v; want what to do", err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := checkPrograms(hostPrograms); err == nil || !strings.Contains(err.Error(), "apt-get install -y --no-install-recommends bzip2 chrpath") {
		t.Errorf("checkPrograms without any = %v; want the apt line", err)
	}
}

// A build of something else leaves the artifact to those who flash it.
func TestBuildOfOtherTargetsKeepsTheArtifact(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "tiny-image")
	opt := images.Options{Dir: filepath.Dir(dir)}
	built, err := buildProject(t.Context(), tiny, p, opt)
	if err != nil {
		t.Fatal(err)
	}
	for _, ask := range []images.BuildRequest{{DryRun: true}, {Targets: []string{"liba"}}, {Task: "fetch"}} {
		opt.Request = ask
		if a, err := buildProject(t.Context(), tiny, p, opt); err != nil || a.Board != "" {
			t.Errorf("build with %+v = %+v, %v; want no artifact", ask, a, err)
		}
		if a, err := images.OpenArtifact(dir); err != nil || a.Key != built.Key {
			t.Errorf("after a build with %+v the artifact is %+v, %v; want the earlier one", ask, a, err)
		}
	}
}

// A task or target of the project file counts as one of the command line does.
func TestBuildOfNoImage(t *testing.T) {
	replayed(t)
	for _, tt := range []struct{ target, task, want string }{
		{"tiny-image", "populate_sdk", ""},
		{"meta-toolchain", "", ""},
		{"other-image", "", "bitbake left no image of other-image that can be flashed"},
	} {
		p, dir := tinyProject(t, standIn(t), tt.target)
		if tt.task != "" {
			p.Task = tt.task
		}
		a, err := buildProject(t.Context(), tiny, p, images.Options{Dir: filepath.Dir(dir)})
		if got := fmt.Sprint(err); a.Board != "" || (tt.want == "") != (err == nil) || !strings.Contains(got, tt.want) {
			t.Errorf("build of %s, task %q = %+v, %v; want no artifact and error %q", tt.target, tt.task, a, err, tt.want)
		}
	}
}

func TestBuildDebianRefusesBitbakeRequests(t *testing.T) {
	spec, err := images.Load("virt")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Prepare(t.Context(), spec, images.Options{Dir: t.TempDir(), Request: images.BuildRequest{Parse: true}}, "build")
	if err == nil || !strings.Contains(err.Error(), "made of Debian packages") {
		t.Errorf("Build = %v; want it refused", err)
	}
}

// What a command line leaves out is not requested.
func TestRequestIsAny(t *testing.T) {
	if changesBuild(images.BuildRequest{Targets: []string{}}) {
		t.Error("an empty list of targets asks for something")
	}
	if !changesBuild(images.BuildRequest{Targets: []string{"a"}}) || !changesBuild(images.BuildRequest{Parse: true}) {
		t.Error("a target, or to parse, asks for nothing")
	}
}

// A rig has nothing that Build could make.
func TestBuildRig(t *testing.T) {
	spec, err := images.Load("bluefield-rig")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(t.Context(), spec, images.Options{Dir: t.TempDir()}, "build"); err == nil || !strings.Contains(err.Error(), "rig up") {
		t.Errorf("Build = %v; want that rig up is for it", err)
	}
}

// What is built from a user's folder is not taken for the project's commit later.
func TestBuildRecordsALocalFolder(t *testing.T) {
	replayed(t)
	bitbakeDir := standIn(t)
	_, dir := tinyProject(t, bitbakeDir, "tiny-image")
	mine := standIn(t)
	file := filepath.Join(filepath.Dir(filepath.Dir(dir)), "meta-tiny/kas.yml")
	p, err := layers.Load(t.Context(), file, layers.Workspace{Dir: dir, Local: map[string]string{"bitbake": mine}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mine, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	a, err := buildProject(t.Context(), tiny, p, images.Options{Dir: filepath.Dir(dir)})
	if err != nil {
		t.Fatal(err)
	}
	want := bitbake.Commit{Repo: "bitbake", Commit: runGit(t, mine, "rev-parse", "HEAD"), Edited: true, Local: mine}
	if diff := cmp.Diff(want, a.Layers[1]); diff != "" {
		t.Errorf("layers of the artifact (-want +got):\n%s", diff)
	}
	record, err := os.ReadFile(filepath.Join(dir, "build.json"))
	if err != nil || !strings.Contains(string(record), `"local": "`+mine+`"`) {
		t.Errorf("the build's record, %v, does not name the folder:\n%s", err, record)
	}
}

// A project file is a board too. Builds of it have a folder of their own.
func TestProjectFileAsBoard(t *testing.T) {
	replayed(t)
	p, _ := tinyProject(t, standIn(t), "tiny-image")
	folder := filepath.Dir(p.File)
	kas := &fstest.MapFile{Data: []byte("header: {version: 14}\n")}
	must(os.CopyFS(folder, fstest.MapFS{"my.debug.yml": kas, "virt.yml": kas, "my lab/kas.yml": kas, "oe.conf.json": {Data: []byte("{}")}, "x.conf": kas}))
	t.Chdir(folder)
	for text, want := range map[string]string{
		"my.debug.yml": "my", "virt.yml": "virt-project", "kas.yml": "meta-tiny", "./kas.yml:my.debug.yml": "meta-tiny", "my lab/kas.yml": "my-lab",
		"oe.conf.json": "oe", "oe.conf.json#poky,machine/qemuarm64": "oe-poky-machine-qemuarm64",
	} {
		if spec, err := images.Load(text); spec.Board != want || err != nil {
			t.Errorf("Load(%s) = board %q, %v; want %s", text, spec.Board, err, want)
		}
	}
	for typed, want := range map[string]string{
		"my.debug.yaml":         "did you mean my.debug.yml?\nnext: repeat the line with my.debug.yml for my.debug.yaml",
		"kas.yaml:my.debug.yml": "did you mean kas.yml?\nnext: repeat the line with kas.yml:my.debug.yml for kas.yaml:my.debug.yml",
		"my lab/kas.yaml":       "did you mean my lab/kas.yml?\nnext: repeat the line with 'my lab/kas.yml' for 'my lab/kas.yaml'",
		"x.conf.json":           "x.conf.json: no such project file\nnext: ls .",
	} {
		if _, err := images.Load(typed); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("Load(%s) = %v; want %q", typed, err, want)
		}
	}
	if _, err := images.Load("none.yml"); err == nil || !strings.Contains(err.Error(), "none.yml: no such project file\nnext: ls .") {
		t.Errorf("Load of no file: %v", err)
	}
	if _, err := images.Load("no/where/none.yml"); err == nil || !strings.HasSuffix(err.Error(), "\nnext: ls .") {
		t.Errorf("Load of a file in no folder: %v; want the nearest folder", err)
	}
	if _, err := images.Load("my lab"); err == nil || !strings.HasSuffix(err.Error(), "\nnext: ls 'my lab'/*.yml") {
		t.Errorf("Load of a folder with project files: %v; want them", err)
	}
	broken, err := images.Load("oe.conf.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckoutLayers(t.Context(), broken, images.Options{Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "oe.conf.json:1:1: ") {
		t.Errorf("checkout of an empty file = %v; want its place", err)
	}
	spec, err := images.Load("kas.yml")
	if err != nil {
		t.Fatal(err)
	}
	opt := images.Options{Dir: filepath.Join(t.TempDir(), "build")}
	if _, err := images.ArtifactOf(spec, opt.BoardDir(spec)); err == nil || !strings.HasSuffix(err.Error(), "\nnext: build kas.yml") {
		t.Errorf("before its build: %v", err)
	}
	project, _, err := images.Project(t.Context(), spec, opt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := buildProject(t.Context(), spec, project, opt); err != nil {
		t.Fatal(err)
	}
	if a, err := images.ArtifactOf(spec, opt.BoardDir(spec)); err != nil || len(builtFiles(a)) != 1 || a.Board != "meta-tiny" {
		t.Errorf("its artifact is %+v, %v", a, err)
	}
}
