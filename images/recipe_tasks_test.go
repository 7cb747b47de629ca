package images

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"slipway/images/bitbake/bitbaketest"
	"slipway/layers"
	"slipway/layers/plaintext"
)

var updateFiles = flag.Bool("update", false, "write the files that tests compare with, and recipes/TESTED.md")

// taskBoards are boards whose layers read our recipes, in the order of releases. A recipe
// that the first board of a release skips is tried with the next. master is not locked:
// each repository's newest commit counts.
var taskBoards = []struct{ release, board string }{
	{"kirkstone", "jetson-nano-devkit"},
	{"scarthgap", "bluefield2"},
	{"scarthgap", "jetson-orin-nano-devkit"},
	{"wrynose", "jetson-orin-nano-devkit-wrynose"},
	{"master", "jetson-orin-nano-devkit-wrynose"},
}

const tasksPage = "../recipes/TESTED.md"

// sourceTasks adds a task that runs what a recipe has of the tasks of its sources.
const sourceTasks = `python () {
    tasks = ["do_" + t for t in "recipe_qa fetch unpack patch populate_lic".split()]
    tasks = [t for t in tasks if d.getVarFlag(t, "task") and not d.getVarFlag(t, "noexec")]
    d.setVarFlag("do_slipway_sources", "nostamp", "1")
    bb.build.addtask("do_slipway_sources", None, " ".join(tasks), d)
}
python do_slipway_sources() {
    pass
}
`

// sourceConf takes quilt from Debian: its own recipe would be built for do_patch.
const sourceConf = `INHERIT += "slipway-sources"
INHERIT:remove = "uninative"
CONNECTIVITY_CHECK_URIS = ""
HOSTTOOLS += "quilt"
QUILTRCFILE = "/etc/quilt.quiltrc"
DL_DIR = "%s"
`

// Each recipe's source is fetched, unpacked and patched, and its licences and metadata are
// proved, by the bitbake of each release. recipes/TESTED.md says what came of it, and -update
// writes that page. bitbake reads one recipe at a time (-b), without what it depends on.
func TestRecipeTasks(t *testing.T) {
	config := os.Getenv("SLIPWAY_MIRRORS")
	if config == "" {
		t.Skip("SLIPWAY_MIRRORS is not set: name a git configuration file whose url.<folder>.insteadOf lead from the URLs of layers and sources to bare clones of them")
	}
	if testing.Short() {
		t.Skip("-short: bitbake starts once for each recipe and release")
	}
	if _, err := os.Stat("/etc/quilt.quiltrc"); err != nil {
		t.Skip("quilt is not installed (Debian package quilt)")
	}
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	downloads := bitbaketest.PublicDir(t)
	bitbaketest.Own(t, downloads, bitbaketest.Builder(t))
	got, ran := outcomes{}, 0
	for _, b := range taskBoards {
		t.Run(b.release+"/"+b.board, func(t *testing.T) {
			ran++
			got.runBoard(t, newTaskRun(t, b.release, b.board, downloads), b.release)
		})
	}
	if ran < len(taskBoards) { // by -run
		t.Skipf("%d of %d boards were run: the page stays\n%s", ran, len(taskBoards), got.table())
	}
	got.compare(t)
}

// outcomes says for each recipe and release what its tasks came to.
type outcomes map[string]map[string]string

func (o outcomes) runBoard(t *testing.T, r taskRun, release string) {
	for _, recipe := range r.recipes(t) {
		name := strings.TrimSuffix(filepath.Base(recipe), ".bb")
		if o[name] == nil {
			o[name] = map[string]string{}
		}
		if before := o[name][release]; before != "" && !strings.HasPrefix(before, "skipped") {
			continue
		}
		out := r.bitbake(t, "-b", recipe, "-c", "slipway_sources")
		outcome := readOutcome(out)
		if o[name][release] = outcome; outcome != "all" {
			t.Logf("%s: %s\n%s", recipe, outcome, out)
		}
	}
}

// compare judges the page, or writes it.
func (o outcomes) compare(t *testing.T) {
	old, err := os.ReadFile(tasksPage)
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := bytes.Cut(old, []byte("| recipe |"))
	if !found {
		t.Fatalf("%s has no table that begins with recipe", tasksPage)
	}
	page := string(head) + o.table()
	if *updateFiles {
		if err := os.WriteFile(tasksPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if page != string(old) {
		t.Errorf("the table in %s is\n%s\nwant, by this run\n%s", tasksPage, old[len(head):], o.table())
	}
}

func (o outcomes) table() string {
	releases := []string{"kirkstone", "scarthgap", "wrynose", "master"}
	var b strings.Builder
	fmt.Fprintf(&b, "| recipe | %s |\n|---|%s\n", strings.Join(releases, " | "), strings.Repeat("---|", len(releases)))
	for _, recipe := range slices.Sorted(maps.Keys(o)) {
		fmt.Fprintf(&b, "| %s |", recipe)
		for _, release := range releases {
			fmt.Fprintf(&b, " %s |", strings.TrimSpace(o[recipe][release]))
		}
		b.WriteString("\n")
	}
	return strings.ReplaceAll(b.String(), "|  |", "| |")
}

var (
	taskEnded  = plaintext.Regexp(`(?m)^NOTE: recipe \S+: task do_(\w+): Succeeded$`)
	taskFailed = plaintext.Regexp(`(?m)^NOTE: recipe \S+: task do_(\w+): Failed$`)
	notFetched = plaintext.Regexp(`FetchError\(.*'\w+://([^;']+)`)
	wasSkipped = plaintext.Regexp(`(?m)was skipped: ([^:;\n(]+)`)
	complained = plaintext.Regexp(`(?m)^(?:WARNING|ERROR): (.{1,40})`)
)

// readOutcome says in a few words what bitbake printed of one recipe.
func readOutcome(out string) string {
	if skipped := wasSkipped().FindStringSubmatch(out); skipped != nil {
		return "skipped: " + strings.TrimSpace(skipped[1])
	}
	if failed := taskFailed().FindStringSubmatch(out); failed != nil {
		if url := notFetched().FindStringSubmatch(out); url != nil {
			return "no source: " + path.Base(url[1])
		}
		return failed[1] + " failed"
	}
	ended := taskEnded().FindAllStringSubmatch(out, -1)
	if len(ended) == 0 || ended[len(ended)-1][1] != "slipway_sources" {
		return "bitbake failed"
	}
	for _, complaint := range complained().FindAllStringSubmatch(out, -1) {
		if !strings.HasPrefix(complaint[1], "Buildfile specified") { // of -b itself
			return "complaint: " + complaint[1]
		}
	}
	if len(ended) == 1 {
		return "has none"
	}
	return "all"
}

func TestReadOutcome(t *testing.T) {
	done := "NOTE: recipe a-1-r0: task do_fetch: Succeeded\nNOTE: recipe a-1-r0: task do_slipway_sources: Succeeded\n"
	for _, tt := range []struct{ out, want string }{
		{done, "all"},
		{"NOTE: recipe a-1-r0: task do_slipway_sources: Succeeded\n", "has none"},
		{"WARNING: Buildfile specified, so what\n" + done, "all"},
		{"WARNING: a-1-r0 do_recipe_qa: QA Issue: a [missing-metadata]\n" + done, "complaint: a-1-r0 do_recipe_qa: QA Issue: a [missin"},
		{"ERROR: a-1-r0 do_fetch: Bitbake Fetcher Error: FetchError('Unable to fetch URL from any source.', 'git://example.com/x/y;protocol=https')\nNOTE: recipe a-1-r0: task do_fetch: Failed\n", "no source: y"},
		{"NOTE: recipe a-1-r0: task do_patch: Failed\n", "patch failed"},
		{"ERROR: a.bb was skipped: X is not set: name one\n", "skipped: X is not set"},
		{"ERROR: no server\n", "bitbake failed"},
	} {
		if got := readOutcome(tt.out); got != tt.want {
			t.Errorf("readOutcome(%q) = %q; want %q", tt.out, got, tt.want)
		}
	}
}

// taskRun is a build folder with a board's layers.
type taskRun struct {
	bitbakeDir, core, build, own string
	builder                      *syscall.Credential
}

func newTaskRun(t *testing.T, release, board, downloads string) taskRun {
	t.Helper()
	spec, err := Load(board)
	if err != nil {
		t.Fatal(err)
	}
	dir := metadata(t, release)
	p, _, err := Project(t.Context(), spec, Options{Dir: filepath.Join(dir, "none")})
	if err != nil {
		t.Fatal(err)
	}
	ws := layers.Workspace{Dir: filepath.Join(dir, "layers")}
	for i := range p.Repos {
		r := &p.Repos[i]
		if r.URL == "" {
			r.Path = filepath.Join(dir, "slipway")
		} else if release == "master" {
			r.Branch, r.Commit = "master", ""
		}
	}
	if err := layers.Checkout(t.Context(), p, ws); err != nil {
		t.Fatal(err)
	}
	r := taskRun{own: filepath.Join(dir, "slipway"), build: filepath.Join(dir, "build"), builder: bitbaketest.Builder(t)}
	for _, repo := range p.Repos {
		switch repo.ID {
		case "bitbake":
			r.bitbakeDir = p.Dir(ws, repo)
		case "openembedded-core":
			r.core = p.Dir(ws, repo)
		}
	}
	if err := layers.Configure(p, ws, r.build); err != nil {
		t.Fatal(err)
	}
	writeFiles(t, r.build, map[string]string{
		// Of the environment, bitbake hands git only HOME.
		".gitconfig":                      "[safe]\n\tdirectory = *\n[include]\n\tpath = " + os.Getenv("GIT_CONFIG_GLOBAL") + "\n",
		"conf/auto.conf":                  fmt.Sprintf(sourceConf, downloads),
		"classes/slipway-sources.bbclass": sourceTasks,
	})
	bitbaketest.Own(t, dir, r.builder)
	t.Cleanup(func() { r.run(context.WithoutCancel(t.Context()), "bitbake", "-m") })
	return r
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// run runs a program in the build folder. bitbake's server stays for the next recipe.
func (r taskRun) run(ctx context.Context, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	const script = `. "$1/oe-init-build-env" "$2" > /dev/null && shift 2 && exec "$@"`
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", script, "bash", r.core, r.build}, argv...)...)
	cmd.Dir = r.build
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.builder}
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + r.build, "LC_ALL=en_US.UTF-8", "BITBAKEDIR=" + r.bitbakeDir,
		"BB_SERVER_TIMEOUT=60",
	}
	return cmd.CombinedOutput()
}

func (r taskRun) bitbake(t *testing.T, args ...string) string {
	t.Helper()
	out, _ := r.run(t.Context(), append([]string{"bitbake"}, args...)...)
	return string(out)
}

var bbfiles = plaintext.Regexp(`(?m)^BBFILES="(.*)"$`)

// recipes returns the recipes of ours that the layers have, and those of others that a
// bbappend of ours changes.
func (r taskRun) recipes(t *testing.T) []string {
	t.Helper()
	out, err := r.run(t.Context(), "bitbake-getvar", "BBFILES")
	patterns := bbfiles().FindSubmatch(out)
	if err != nil || patterns == nil {
		t.Fatalf("bitbake-getvar BBFILES: %v\n%s", err, out)
	}
	var theirs, ours, appends []string
	for pattern := range strings.FieldsSeq(string(patterns[1])) {
		found, err := filepath.Glob(filepath.Clean(pattern))
		if err != nil {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range found {
			mine, isAppend := strings.HasPrefix(file, r.own), strings.HasSuffix(file, ".bbappend")
			switch {
			case mine && isAppend:
				appends = append(appends, file)
			case mine:
				ours = append(ours, file)
			case !isAppend:
				theirs = append(theirs, file)
			}
		}
	}
	for _, a := range appends {
		if recipe := newestOf(theirs, filepath.Base(a)); recipe != "" {
			applyAppend(t, recipe, a)
			ours = append(ours, recipe)
		}
	}
	return ours
}

// newestOf returns the newest recipe that a bbappend changes, which is the one that
// bitbake builds. It is never one that follows a branch (_git).
func newestOf(recipes []string, bbappend string) (newest string) {
	name := regexp.QuoteMeta(strings.TrimSuffix(bbappend, ".bbappend"))
	changes := regexp.MustCompile("^" + strings.Replace(name, "%", ".*", 1) + `\.bb$`)
	for _, recipe := range recipes {
		base := filepath.Base(recipe)
		if changes.MatchString(base) && !strings.HasSuffix(base, "_git.bb") && base > filepath.Base(newest) {
			newest = recipe
		}
	}
	return newest
}

// applyAppend has a recipe of the checkout read a bbappend: from 2.8 on, bitbake -b leaves
// bbappends out. require takes no file of that name.
func applyAppend(t *testing.T, recipe, bbappend string) {
	t.Helper()
	text, err := os.ReadFile(bbappend)
	if err != nil {
		t.Fatal(err)
	}
	include := strings.NewReplacer("%", "any", ".bbappend", "-append.bb").Replace(bbappend)
	if err := os.WriteFile(include, text, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(recipe, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "\nrequire %s\n", include); err != nil {
		t.Fatal(err)
	}
}
