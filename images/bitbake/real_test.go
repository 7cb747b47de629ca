package bitbake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/images/bitbake/bitbaketest"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testdata() string {
	if dir := os.Getenv("SLIPWAY_TESTDATA"); dir != "" {
		return dir
	}
	return "../testdata"
}

// realTree is a build folder with the layer in testdata.
func realTree(t *testing.T, checkout, dir string) Tree {
	t.Helper()
	tree := Tree{Dir: filepath.Join(dir, "board"), Build: filepath.Join(dir, "board", "bitbake"), Programs: filepath.Join(checkout, "bin")}
	if !localfile.Exists(tree.programPath("bitbake")) {
		t.Fatalf("SLIPWAY_BITBAKE: %s holds no bin/bitbake", checkout)
	}
	must(t, os.CopyFS(filepath.Join(dir, "meta-tiny"), os.DirFS(filepath.Join(testdata(), "bitbake/meta-tiny"))))
	must(t, os.MkdirAll(filepath.Join(tree.Build, "conf"), 0o755))
	must(t, os.WriteFile(filepath.Join(tree.Build, "conf/local.conf"), []byte("MACHINE ??= \"qemuarm64\"\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(tree.Build, "conf/bblayers.conf"),
		[]byte("BBPATH = \"${TOPDIR}\"\nBBFILES ?= \"\"\nBBLAYERS = \"${TOPDIR}/../../meta-tiny\"\n"), 0o644))
	t.Cleanup(func() {
		if left := tree.leftoverProcesses(); len(left) > 0 {
			_ = tree.stopProcesses(left)
		}
	})
	return tree
}

func job(targets ...string) Job {
	return Job{Board: "tiny", Machine: "qemuarm64", Task: "build", Targets: targets}
}

// Every bitbake at hand builds, fails and is stopped.
func TestRealBitbake(t *testing.T) {
	for _, checkout := range bitbaketest.ForUser(t, "../testdata") {
		t.Run(filepath.Base(checkout), func(t *testing.T) {
			tree := realTree(t, checkout, t.TempDir())
			s := &progresstest.Recorder{}
			ctx := progress.With(t.Context(), progress.New(s))
			rec, err := tree.Run(ctx, job("tiny-image"))
			if err != nil {
				t.Fatal(err)
			}
			if rec.State != Succeeded || rec.Exit != 0 || rec.Counts.Ran != 16 || rec.Setscene.Misses != 4 {
				t.Errorf("record = %+v; want 16 tasks run, 4 of them not in shared state", rec)
			}
			if e := s.Last("tasks"); e.State != progress.Done || e.Count != 17 || e.Total != 17 {
				t.Errorf("tasks ended as %+v; want 17 of 17", e)
			}
			if !s.Saw("tasks", "libc compile") {
				t.Error("nothing was said of libc's task")
			}
			if dir := rec.Variables["DEPLOY_DIR_IMAGE"]; dir != filepath.Join(tree.Build, "tmp/deploy/images/qemuarm64") {
				t.Errorf("DEPLOY_DIR_IMAGE = %q; want it from the event log", dir)
			}
			checkRealPage(t, tree, rec)
			checkRealInputs(t, tree, rec)
			if asked, err := tree.Variables(t.Context(), "", "DEPLOY_DIR_IMAGE"); err != nil || asked["DEPLOY_DIR_IMAGE"] != rec.Variables["DEPLOY_DIR_IMAGE"] {
				t.Errorf("Variables = %q, %v; want what the event log says", asked, err)
			}
			dryRunRealBitbake(t, tree)
			failRealBitbake(t, tree)
			now := make(chan struct{})
			close(now)
			stopRealBitbake(t, tree, now)
			finishRealBitbake(t, tree)
		})
	}
}

// checkRealInputs wants what the build read, and other recipes' files apart from it.
func checkRealInputs(t *testing.T, tree Tree, rec Record) {
	t.Helper()
	must(t, SaveInputs(rec, tree.Dir, filepath.Join(filepath.Dir(tree.Dir), "meta-tiny"), Commit{Commit: "c0ffee"}))
	in, err := OpenInputs(tree.Dir)
	must(t, err)
	read := map[string]string{}
	for _, name := range []string{"liba.bb", "libb.bb", "libc.bb", "tiny-image.bb"} {
		read["recipes/"+name] = name
	}
	if !maps.Equal(in.Read, read) {
		t.Errorf("read = %v; want %v", in.Read, read)
	}
	if want := []string{"recipes/broken-image.bb", "recipes/skipped.bb", "recipes/slow-image.bb"}; !slices.Equal(in.Unread, want) {
		t.Errorf("unread = %v; want %v", in.Unread, want)
	}
}

// checkRealPage wants the critical path, the load and links to logs that exist.
func checkRealPage(t *testing.T, tree Tree, rec Record) {
	t.Helper()
	if chain := rec.criticalChain(); len(chain) == 0 || chain[len(chain)-1].Recipe != "tiny-image" {
		t.Errorf("critical path = %s; want one that ends with tiny-image", chainOf(chain))
	}
	if l := rec.Load; l == nil || len(l.Busy) == 0 || l.Processors < 1 {
		t.Errorf("load = %+v; want a sample for each second", l)
	}
	page, err := os.ReadFile(filepath.Join(tree.Dir, PageName))
	must(t, err)
	links := regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(string(page), -1)
	for _, link := range links {
		if !localfile.Exists(filepath.Join(tree.Dir, link[1])) {
			t.Errorf("the page links to %s, which does not exist", link[1])
		}
	}
	if len(links) < 16+8 { // of the timeline, and of the tables
		t.Errorf("the page has %d links to logs; want one for each of 16 tasks", len(links))
	}
}

// dryRunRealBitbake leaves everything of the last build as it was, and says what it is.
func dryRunRealBitbake(t *testing.T, tree Tree) {
	t.Helper()
	was := map[string]string{}
	for _, name := range []string{filepath.Join(tree.Dir, RecordName), filepath.Join(tree.Dir, PageName), tree.Log()} {
		data, err := os.ReadFile(name)
		must(t, err)
		was[name] = string(data)
	}
	j := job("broken-image")
	j.DryRun = true
	rec, err := tree.Run(t.Context(), j)
	must(t, err)
	for name, before := range was {
		if data, err := os.ReadFile(name); string(data) != before {
			t.Errorf("a dry run changed %s of the last build, %v", name, err)
		}
	}
	page, err := os.ReadFile(filepath.Join(tree.Dir, dryRunPageName))
	if !strings.Contains(string(page), "<b>dry run ended</b>") || !localfile.Exists(rec.Log) {
		t.Errorf("the page of a dry run: %v, its log %s\n%s", err, rec.Log, page)
	}
}

func failRealBitbake(t *testing.T, tree Tree) {
	t.Helper()
	_, err := tree.Run(t.Context(), job("broken-image"))
	for _, want := range []string{"failed: broken-image do_compile\n", "temp/log.do_compile", "| cannot find -lnothing", "exit status 1", tree.Log()} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a build that fails = %v; want an error with %q", err, want)
		}
	}
	opened, err := Open(tree.Dir)
	if err != nil || opened.State != Failed || opened.Exit != 1 || len(opened.Failures) != 1 {
		t.Errorf("the record is %+v, %v; want one failure", opened, err)
	}
}

// stopRealBitbake ends a build in the middle of a task that takes minutes.
func stopRealBitbake(t *testing.T, tree Tree, now <-chan struct{}) {
	t.Helper()
	s := &progresstest.Recorder{}
	ctx, cancel := context.WithCancelCause(progress.With(t.Context(), progress.New(s)))
	defer cancel(nil)
	pressed := errors.New("Ctrl-C")
	go func() {
		for !s.Saw("tasks", "slow-image compile") && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
		}
		cancel(pressed)
	}()
	j := job("slow-image")
	j.Now = now
	began := time.Now()
	rec, err := tree.Run(ctx, j)
	if !errors.Is(err, pressed) || rec.State != Interrupted {
		t.Errorf("a build that is stopped = %v, %s; want it interrupted", err, rec.State)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v to stop", took)
	}
	if left := processesIn(tree.Dir); len(left) > 0 {
		t.Errorf("still running after the build was stopped:\n%s", strings.Join(left, "\n"))
	}
}

// finishRealBitbake lets the task that runs at a first Ctrl-C come to its end, and no other begin.
func finishRealBitbake(t *testing.T, tree Tree) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Join(tree.Build, "tmp")))
	must(t, os.RemoveAll(filepath.Join(filepath.Dir(tree.Dir), "sstate-cache")))
	s := &progresstest.Recorder{}
	ctx, cancel := context.WithCancel(progress.With(t.Context(), progress.New(s)))
	defer cancel()
	go func() {
		for !s.Saw("tasks", "libc compile") && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
		}
		cancel()
	}()
	j := job("tiny-image")
	j.Now = make(chan struct{})
	rec, err := tree.Run(ctx, j)
	if !errors.Is(err, context.Canceled) || rec.State != Interrupted {
		t.Errorf("a build that is asked to end = %v, %s; want it interrupted", err, rec.State)
	}
	outcome := map[string]string{}
	for _, task := range rec.Tasks {
		outcome[task.Recipe+" "+task.Task] = task.Outcome
	}
	if outcome["libc do_compile"] != TaskSucceeded || outcome["tiny-image do_deploy"] != "" {
		t.Errorf("tasks = %v; want libc's compile finished and nothing of the image begun", outcome)
	}
	if left := processesIn(tree.Dir); len(left) > 0 {
		t.Errorf("still running after the build was stopped:\n%s", strings.Join(left, "\n"))
	}
}

// processesIn lists the processes that work in a folder, by their command lines.
func processesIn(dir string) []string {
	var found []string
	for _, p := range listProcesses() {
		if at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid)); err == nil && strings.HasPrefix(at, dir) {
			found = append(found, p.String())
		}
	}
	return found
}
