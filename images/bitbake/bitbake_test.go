package bitbake

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/layers/htmlstyle/pagetest"
	"slipway/layers/run"
)

func TestArguments(t *testing.T) {
	tree := Tree{Programs: "/b/bin"}
	tests := []struct {
		name string
		job  Job
		want string
	}{
		{"nothing more", Job{}, "-c build -- an-image"},
		{"targets that look like options", Job{Targets: []string{"-e", "u-boot"}}, "-c build -- -e u-boot"},
		{"a task that goes on", Job{Task: "fetch", Continue: true}, "-c fetch -k -- an-image"},
		{"a dry run", Job{DryRun: true}, "-c build -n -- an-image"},
		{"only recipes", Job{Parse: true}, "-c build -p -- an-image"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.job.Task == "" {
				tt.job.Task = "build"
			}
			if tt.job.Targets == nil {
				tt.job.Targets = []string{"an-image"}
			}
			if got := strings.Join(tt.job.bitbakeArgs(tree), " "); got != "/b/bin/bitbake "+tt.want {
				t.Errorf("%s; want /b/bin/bitbake %s", got, tt.want)
			}
		})
	}
}

// Each text is what the program named said, of a release in use.
func TestKnown(t *testing.T) {
	tests := []struct{ name, text, why, next string }{
		{"gcc without memory", "| g++: fatal error: Killed signal terminated program cc1plus", "(cc1plus)", "BB_NUMBER_THREADS"},
		{"disk", "tar: ./usr/lib/libLLVM.so: Cannot write: No space left on device", "disk is full", "free some space"},
		{"disk monitor", `ERROR: No new tasks can be executed since the disk space monitor action is "STOPTASKS"!`, "disk is full", "free some space"},
		{"disk monitor of 2.x", `ERROR: Immediately halt since the disk space monitor action is "HALT"!`, "disk is full", "free some space"},
		{"checksum", "ERROR: zlib-1.3.1-r0 do_fetch: Checksum failure encountered with download of x - will attempt other sources if available", "not what the recipe expects", "downloads"},
		{"sha256", "File: '/d/x.tar.gz' has sha256 checksum aa when bb was expected", "not what the recipe expects", "downloads"},
		{"revision", "bb.fetch2.FetchError: Fetcher failure: Unable to find revision 0123abcd in branch main even from upstream", "commit 0123abcd", "SRCREV"},
		{"no network", "NetworkAccess: Network access disabled through BB_NO_NETWORK (or set indirectly due to use of BB_FETCH_PREMIRRORONLY) but access requested", "BB_NO_NETWORK forbids", "--task=fetch"},
		{"fetch", "ERROR: zlib-1.3.1-r0 do_fetch: Bitbake Fetcher Error: FetchError('Unable to fetch URL from any source.', 'https://example.org/x')", "a download failed", "DL_DIR"},
		{"name", "wget: unable to resolve host address 'example.org'", "name could not be looked up", "DNS"},
		{"series", "ERROR: Layer meta-tegra is not compatible with the core layer which only supports these series: scarthgap (layer is compatible with kirkstone)", "layer meta-tegra is for other releases", "branch"},
		{"layer", "ERROR: Layer 'meta-python' depends on layer 'openembedded-layer', but this layer is not enabled in your configuration", "layer 'meta-python' needs", "repos"},
		{"provider", "ERROR: Nothing RPROVIDES 'nvidia-docker' (but /b/x.bb RDEPENDS on or otherwise requires it)", "provides nvidia-docker", "doctor"},
		{"root", "Do not use Bitbake as root.", "as root", "normal user"},
		{"tools", "The following required tools (as specified by HOSTTOOLS) appear to be unavailable in PATH, please install them in order to proceed:\n  chrpath", "programs are missing", "doctor"},
		{"locale", "Your system needs to support the en_US.UTF-8 locale.", "locale", "localedef"},
		{"server", "ERROR: Unable to connect to bitbake server, or start one (server startup failures would be in bitbake-cookerdaemon.log).", "server did not start", "bitbake-cookerdaemon.log"},
		{"locale of 2.x", "Please make sure locale 'en_US.UTF-8' is available on your system", "locale", "localedef"},
		{"inotify of 2.0", "ERROR: No space left on device or exceeds fs.inotify.max_user_watches?", "inotify", "max_user_watches"},
		{"namespaces", "ERROR: User namespaces are not usable by BitBake, possibly due to AppArmor.", "user namespaces", "apparmor"},
		{"bubblewrap", "| bwrap: Can't mount on symlink destination /bin", "bubblewrap is newer", "releases/isar.yml"},
		{"a locale by the way", "| + export LC_ALL=en_US.UTF-8\n| cannot find -lnothing", "", ""},
		{"anything else", "| cannot find -lnothing", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			why, next := explainKnownFailure(tt.text)
			if !strings.Contains(strings.ReplaceAll(why, "layer meta-python", "layer 'meta-python'"), tt.why) || !strings.Contains(next, tt.next) || (tt.why == "") != (why == "") {
				t.Errorf("known = %q, %q; want %q, %q", why, next, tt.why, tt.next)
			}
		})
	}
}

func TestTailOf(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	must(t, os.WriteFile(log, []byte(strings.Repeat("a line\n", 2000)+"the \x1b[31mend\n"), 0o644))
	if got := logTail(log); !strings.HasSuffix(got, "a line\nthe end") || strings.Count(got, "\n") != tailLines-1 {
		t.Errorf("logTail = %q; want the last lines without escapes", got)
	}
	must(t, os.WriteFile(log, []byte("cc hook.c\nhook.c:1: error: no such type\ndpkg-buildpackage: error: debian/rules failed\n"+strings.Repeat("Cleanup\n", 99)), 0o644))
	if got, want := logTail(log), "cc hook.c\nhook.c:1: error: no such type\ndpkg-buildpackage: error: debian/rules failed"; got != want {
		t.Errorf("logTail of sbuild's log = %q; want %q", got, want)
	}
	for _, path := range []string{"", dir, filepath.Join(dir, "none"), "/dev/zero"} {
		if got := logTail(path); got != "" {
			t.Errorf("logTail(%q) = %q; want nothing", path, got)
		}
	}
}

func TestForecast(t *testing.T) {
	known := map[string]int64{}
	for _, task := range []string{"a", "b", "c", "d", "e"} {
		known["|"+task+".bb:do_compile"] = 120_000
	}
	tests := []struct {
		name      string
		remaining int64
		done      []string
		begun     []begunTask
		want      string
	}{
		{"all of it", 5, nil, nil, "about 5 min left"},
		{"two done", 3, []string{"a", "b"}, nil, "about 3 min left"},
		{"one at work", 3, []string{"a", "b"}, []begunTask{{"|c.bb:do_compile", time.Minute}}, "about 3 min left"},
		{"the last takes longest", 1, []string{"a", "b", "c", "d"}, []begunTask{{"|e.bb:do_compile", 5 * time.Second}}, "about 2 min left"},
		{"longer than ever", 1, []string{"a", "b", "c", "d"}, []begunTask{{"|e.bb:do_compile", time.Hour}}, "less than a minute left"},
		{"too many unknown", 20, nil, nil, ""},
		{"another target", 2, nil, nil, ""},
		{"done", 0, nil, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			f := forecast{Tasks: known, Parallel: 2}
			rec := Record{Counts: Counts{Ran: 1}}
			must(t, f.saveDurations(dir, rec))
			f = loadForecast(dir)
			for _, task := range tt.done {
				f.dropTask("|" + task + ".bb:do_compile")
			}
			if got := f.timeLeft(tt.remaining, tt.begun); got != tt.want {
				t.Errorf("left = %q; want %q", got, tt.want)
			}
		})
	}
}

// A file of durations that is no such file costs the forecast, not the build.
func TestForecastOfNoSense(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, durationsName), []byte(`{"tasksMs": [`), 0o644))
	if f := loadForecast(dir); f.Tasks == nil || f.timeLeft(1, nil) != "" {
		t.Errorf("loadForecast = %+v; want an empty one", f)
	}
}

// A task that was broken off or failed did not take as long as it takes.
func TestForecastOfWhatDidNotEnd(t *testing.T) {
	const k = "|x_1.bb:do_compile"
	queued := event{class: "bb.runqueue.runQueueTaskStarted", state: map[string]any{"taskfile": "/l/x_1.bb", "taskname": "do_compile"}}
	failed := event{class: "bb.runqueue.runQueueTaskFailed", state: queued.state}
	for _, rest := range [][]event{{queued}, {queued, failed}} {
		times := forecast{Tasks: map[string]int64{k: 3_600_000}, remaining: map[string]int64{k: 3_600_000}, remainingMS: 3_600_000}
		w := newWatch(t.Context(), &Record{Started: time.Now()}, times)
		for _, e := range rest {
			w.handleEvent(e)
		}
		w.finishBuild(errors.New("exit status 1"))
		if times.Tasks[k] != 3_600_000 {
			t.Errorf("after %d events an hour of earlier is %d ms; want it kept", len(rest), times.Tasks[k])
		}
	}
}

// bitbake drops its event log after one failed write, as on a full disk. The console continues.
func TestEventLogThatEndsEarly(t *testing.T) {
	rec := Record{Started: time.Now()}
	w := newWatch(t.Context(), &rec, forecast{Tasks: map[string]int64{}})
	w.handleEvent(event{class: "bb.runqueue.runQueueTaskStarted", state: map[string]any{"taskfile": "/l/x_1.bb", "taskname": "do_compile"}})
	for _, line := range []string{
		"NOTE: Running task 1 of 9 (/l/x_1.bb:do_compile)",
		"ERROR: Logfile of failure stored in: /l/x/temp/log.do_compile.1",
		"ERROR: Task (/l/x_1.bb:do_compile) failed with exit code '1'",
	} {
		w.readConsoleLine(line)
	}
	w.finishBuild(errors.New("exit status 1"))
	want := []Failure{{Recipe: "x", Task: "do_compile", Log: "/l/x/temp/log.do_compile.1"}}
	if diff := cmp.Diff(want, rec.Failures); diff != "" || rec.Counts.Failed != 1 {
		t.Errorf("%d failed (-want +got)\n%s", rec.Counts.Failed, diff)
	}
}

// What recipes and logs are called reaches a terminal.
func TestNamesAreInert(t *testing.T) {
	var rec Record
	w := newWatch(t.Context(), &rec, forecast{Tasks: map[string]int64{}})
	e := event{class: "bb.build.TaskStarted", state: map[string]any{"pn": "x\x1b[2J\ny"}}
	if got := e.textField("pn"); got != "x[2J y" {
		t.Errorf("text = %q; want it without control characters", got)
	}
	w.readConsoleLine("ERROR: a\x1b[2Jb")
	if len(rec.Errors) != 1 || rec.Errors[0] != "a[2Jb" {
		t.Errorf("errors = %q; want them without control characters", rec.Errors)
	}
}

// What a build did is still known after a dry run, and a dry run that was killed is
// noticed like a build.
func TestRecordsOfDryRuns(t *testing.T) {
	tree := Tree{Dir: t.TempDir(), Build: t.TempDir()}
	must(t, Record{Board: "built", State: Succeeded}.save(tree.Dir))
	must(t, Record{Board: "looked", State: Running, DryRun: true}.save(tree.Dir))
	if rec, err := Open(tree.Dir); err != nil || rec.Board != "built" {
		t.Errorf("Open after a dry run = %q, %v; want the build's", rec.Board, err)
	}
	if _, err := os.Stat(filepath.Join(tree.Dir, PageName)); err != nil {
		t.Errorf("after a dry run: %v", err)
	}
	built := tree.newRecord(Job{}).Log
	for _, look := range []Job{{DryRun: true}, {Parse: true}} {
		if log := tree.newRecord(look).Log; log == built {
			t.Errorf("%+v writes the log of the build, %s", look, log)
		}
	}
	if tree.wasCutOff(RecordName) || !tree.wasCutOff(dryRunRecordName) {
		t.Errorf("cut off: build %v, dry run %v; want the dry run alone", tree.wasCutOff(RecordName), tree.wasCutOff(dryRunRecordName))
	}
}

// The page of a run that built nothing says so, and shows no task as one that ran.
func TestPagesOfDryRuns(t *testing.T) {
	tasks := []Task{{Recipe: "gcc", Task: "do_compile", TookMS: 3, Outcome: TaskSucceeded, Shared: Miss}}
	for _, tt := range []struct {
		r          Record
		want, lack []string
	}{
		{Record{State: Succeeded}, []string{"<b>succeeded</b>", "<dd>build</dd>", "7 run", "Timeline", "Shared state"}, []string{"dry run", "parse"}},
		{Record{State: Succeeded, DryRun: true}, []string{"<b>dry run ended</b>", "b dry run ended:", "build: not run", "7 would run"}, []string{"succeeded</b>", "Timeline", "Slowest", "Shared state"}},
		{Record{State: Interrupted, DryRun: true}, []string{"<b>dry run interrupted</b>", "build: not run"}, []string{"<b>interrupted"}},
		{Record{State: Failed, DryRun: true, Errors: []string{"no recipe"}}, []string{"<b>dry run failed</b>", "no recipe"}, nil},
		{Record{State: Succeeded, Parse: true}, []string{"<b>parse ended</b>", "none: the recipes were read"}, []string{"succeeded</b>", "<dd>build"}},
		{Record{State: Interrupted, Parse: true}, []string{"<b>parse interrupted</b>"}, nil},
	} {
		tt.r.Board, tt.r.Task, tt.r.Tasks, tt.r.Counts = "b", "build", tasks, Counts{Total: 9, Ran: 7}
		page, err := tt.r.renderPage()
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(page), "</style>")
		body = string(page[:bytes.Index(page, []byte("<style>"))]) + body
		for _, want := range tt.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s, dry run %v, parse %v: no %q in the page\n%s", tt.r.State, tt.r.DryRun, tt.r.Parse, want, body)
			}
		}
		for _, lack := range tt.lack {
			if strings.Contains(body, lack) {
				t.Errorf("%s, dry run %v, parse %v: the page says %q", tt.r.State, tt.r.DryRun, tt.r.Parse, lack)
			}
		}
	}
}

// The page shows what recipes and logs say as text.
func TestPageEscapes(t *testing.T) {
	const evil = `<script>alert("x")</script>`
	const log = "/b/x:y/" + evil
	r := Record{
		Board: evil, Targets: []string{evil}, State: Failed, Started: time.Now(), Errors: []string{evil}, Log: "/b/bitbake.log",
		Tasks:    []Task{{Recipe: evil, Task: "do_compile", Config: evil, TookMS: 10, Outcome: TaskFailed, Shared: Miss, Log: log}},
		Failures: []Failure{{Recipe: evil, Task: evil, Tail: evil, Log: log}},
	}
	page, err := r.renderPage()
	if err != nil || strings.Contains(string(page), "<script") || !strings.Contains(string(page), "&lt;script&gt;") {
		t.Errorf("html: %v; want every name escaped", err)
	}
	if strings.Contains(string(page), "://") {
		t.Error("the page names something outside itself")
	}
	pagetest.Check(t, string(page))
}

func TestPageIsBounded(t *testing.T) {
	r := Record{Started: time.Now()}
	for i := range 20_000 {
		r.Tasks = append(r.Tasks, Task{Recipe: "r", Task: "do_x", StartMS: int64(i), TookMS: 500, Outcome: TaskSucceeded})
	}
	page, err := r.renderPage()
	if n := strings.Count(string(page), "<rect"); err != nil || n != maxBars {
		t.Errorf("html draws %d bars, %v; want %d", n, err, maxBars)
	}
}

// A pickle that names a function of the system is told of, once, and passed by.
func TestEventLogRefuses(t *testing.T) {
	line := []byte(`{"class": "bb.build.TaskStarted", "vars": "gASVHQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAJpZJSFlFKULg=="}` + "\n")
	var rec Record
	w := newWatch(t.Context(), &rec, forecast{Tasks: map[string]int64{}})
	r := &logReader{onEvent: w.handleEvent, onBadLine: w.noteBadLine}
	defer r.close()
	for range 3 {
		_, _ = r.Write(line)
	}
	want := "event log, line 1: an event bb.build.TaskStarted: it names posix.system, which is no part of an event; refused"
	if len(rec.Warnings) != 1 || rec.Warnings[0] != want {
		t.Errorf("warnings = %q; want %q", rec.Warnings, want)
	}
}

func TestEventLogOfHugeLines(t *testing.T) {
	seen := 0
	r := &logReader{onEvent: func(event) { seen++ }, onBadLine: func(err error) { t.Error(err) }}
	defer r.close()
	for class, most := range map[string]int{"bb.event.ReachableStamps": 4 << 20, treeClass: 2 * maxTreeBytes} {
		seen = 0
		_, _ = r.Write([]byte(`{"class": "` + class + `", "vars": "`))
		for range 100 {
			_, _ = r.Write([]byte(strings.Repeat("A", 1<<20)))
			if cap(r.line) > most {
				t.Fatalf("%d bytes are kept of a line %s; want at most %d", cap(r.line), class, most)
			}
		}
		_, _ = r.Write([]byte("\"}\n" + `{"allvariables": {"DISTRO": {"v": "tiny"}}}` + "\n"))
		if seen != 1 {
			t.Errorf("%d events after a huge line %s; want the one that follows it", seen, class)
		}
	}
}

func TestExplain(t *testing.T) {
	r := Record{Failures: []Failure{
		{Recipe: "gcc", Task: "do_compile", Log: "/b/log.1", Tail: "x", Why: "memory", Next: "less"},
		{Recipe: "llvm", Task: "do_compile", Log: "/b/log.2", Tail: "y", Why: "memory", Next: "less"},
	}}
	err := r.explainFailure(&run.Failure{Argv: []string{"bitbake"}, Status: "exit status 1"})
	want := "failed: gcc do_compile, llvm do_compile\n  log of the failed task: /b/log.1\n  log of the failed task: /b/log.2\nbitbake: exit status 1\n  why: memory\nnext: less"
	if err == nil || err.Error() != want {
		t.Errorf("explain = %q; want %q", err, want)
	}
	for tail, want := range map[string]string{
		"ERROR:  OE-core's config sanity checker\n    Fetcher failure for URL: 'https://a.example/x'. URL doesn't work.":    "bitbake: exit status 1\n  | ERROR:  OE-core's config sanity checker\n  |     Fetcher failure for URL: 'https://a.example/x'. URL doesn't work.\n  full log: /b/log\n  why: bitbake's check of the network cannot reach https://a.example/x\nnext: ",
		"ERROR: The following layer directories do not exist:\nERROR:    /b/../layers/oe/metaa":                             "project file names a layer that is not there: /b/../layers/oe/metaa\nnext: ls /b/../layers/oe, ",
		"ImportError: cannot import name 'MutableMapping' from 'collections' (/usr/lib/python3.11/collections/__init__.py)": "\n  why: this bitbake is too old for the Python of this machine\nnext: ",
		"odd": "\nnext: less /b/log",
	} {
		err := Record{}.explainFailure(&run.Failure{Argv: []string{"bitbake"}, Status: "exit status 1", Tail: tail, Log: "/b/log"})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "next: ") != 1 {
			t.Errorf("explain of %q = %v; want %q", tail, err, want)
		}
	}
	if err := r.explainFailure(context.Canceled); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "gcc") {
		t.Errorf("explain of what was stopped = %v; want it as it is", err)
	}
}

// A recipe is built for two configurations at a time. Queue and tasks name those differently.
func TestMulticonfig(t *testing.T) {
	var rec Record
	w := newWatch(t.Context(), &rec, forecast{Tasks: map[string]int64{}})
	for _, mc := range []string{"", "xavier"} {
		id, file := "/l/x_1.bb:do_fetch", "/l/x_1.bb"
		if mc != "" {
			id, file = "mc:"+mc+":"+id, "mc:"+mc+":"+file
		}
		queued := map[string]any{"taskid": id, "taskfile": file, "taskname": "do_fetch"}
		task := map[string]any{"_mc": mc, "taskfile": "/l/x_1.bb", "taskname": "do_fetch", "pn": "x", "pv": "1", "time": 1e9}
		w.handleEvent(event{class: "bb.runqueue.runQueueTaskStarted", state: queued})
		w.handleEvent(event{class: "bb.build.TaskStarted", state: task})
	}
	if rec.Workers != 2 {
		t.Errorf("%d tasks ran at one time; want 2", rec.Workers)
	}
	w.handleEvent(event{class: "bb.runqueue.runQueueTaskCompleted", state: map[string]any{"taskid": "mc:xavier:/l/x_1.bb:do_fetch", "taskfile": "mc:xavier:/l/x_1.bb", "taskname": "do_fetch"}})
	if len(rec.Tasks) != 1 || rec.Tasks[0].Config != "xavier" || rec.Tasks[0].Recipe != "x" || rec.Tasks[0].Outcome != TaskSucceeded {
		t.Errorf("tasks = %+v; want xavier's ended", rec.Tasks)
	}
}
