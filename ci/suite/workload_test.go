package suite

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	goyaml "go.yaml.in/yaml/v4"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/container"
	"slipway/images"
)

// A program of a built-in suite is sent as the file that it is, and no copy of it is left.
func TestBuiltInPrograms(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s, err := Load("pycuda")
	if err != nil {
		t.Fatal(err)
	}
	b := s.Checks[0].probe.(binary)
	file, remove, err := b.localFile()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("workloads/pycuda/pycuda_multiply.py")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, %v; want %d", file, len(got), err, len(want))
	}
	remove()
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The checks judge outputs by their names. What is wrong with a file of outputs is said.
func TestJudgeOutputs(t *testing.T) {
	s, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": "command:\n  a: {argv: [x], stdout: [good], exit-status: 3}\n  a b: {argv: [x], stdout: [good]}\nfile:\n  /c: {exists: true}\n"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, text, want string }{
		{"judged as they say", "-- pass: a --\nexit 3\ngood\n-- fail: a: good --\nexit 3\nbad\n-- pass: a b --\ngood\n-- fail: a b: exit status --\nexit 255\ngood\n", ""},
		{"a pass that fails", "-- pass: a --\ngood\n", "it fails: exit status: 3"},
		{"a fail that passes", "-- fail: a: good --\nexit 3\ngood\n", "it passes"},
		{"another reason", "-- fail: a: good --\ngood\n", "it fails for another reason: exit status: 3"},
		{"no reason", "-- fail: a:  --\nexit 3\nbad\n", "it is neither"},
		{"a longer name than the check's", "-- pass: a bc --\ngood\n", "it is neither"},
		{"a check without output", "-- pass: /c --\n", "it is neither"},
		{"no status", "-- pass: a --\nexit 256\ngood\n", "is no status"},
		{"one output alone", "-- pass: a --\nexit 3\ngood\n", "it lacks an output"},
	} {
		var wrong []string
		for _, v := range judgeFile("x.txtar", []byte(tt.text), s.Checks) {
			if v.Wrong != "" {
				wrong = append(wrong, v.Wrong)
			}
		}
		if got := strings.Join(wrong, "; "); tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q; want %q", tt.name, got, tt.want)
		}
	}
}

// Outputs of which workload.yml says nothing are wrong.
func TestUnclaimedOutputs(t *testing.T) {
	got, err := workload{name: "cuda-warp"}.judgeOutputs()
	if err != nil || len(got) != 1 || !strings.Contains(got[0].Wrong, "does not say") {
		t.Errorf("outputs without a claim: %v, %v", got, err)
	}
	if _, err := (workload{name: "containers", Proved: map[string]string{"recorded": "x"}}).judgeOutputs(); err == nil {
		t.Error("a claim without outputs passes")
	}
}

// Over SSH the suite of power modes ends by its timeout, or its script is killed: the mode of
// before is restored, and nothing is left.
func TestPowerIsRestored(t *testing.T) {
	text, err := os.ReadFile("workloads/power/suite.yml")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("workloads/power/power-modes.sh")
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t)
	for _, tt := range []struct{ name, workload, want string }{
		{"a workload that hangs", "sleep 600", "no answer in time (3s)"},
		{"a script that is killed", "kill -KILL $PPID", "exit status 137"},
	} {
		dir := t.TempDir()
		state, saved := filepath.Join(dir, "state"), filepath.Join(dir, "saved")
		env := "    env: ['PATH=" + dir + ":/usr/bin:/bin', 'CONF=" + dir + "/conf', 'SAVED=" + saved + "', 'HWMON=" + dir + "', 'WORKLOAD=touch " + dir + "/ran; " + tt.workload + "']"
		suite := regexp.MustCompile(`(?m)^    env: .*`).ReplaceAllLiteralString(string(text), env)
		suite = strings.NewReplacer("timeout: 1800000", "timeout: 3000", "path: power-modes.sh", "path: power-modes.sh\n    dir: "+dir,
			"/run/slipway-power-mode", saved, "nvpmodel -m", dir+"/nvpmodel -m").Replace(suite)
		spec := specOf(t, suite)
		for name, data := range map[string]string{
			filepath.Join(filepath.Dir(spec.Suites[0]), "power-modes.sh"): string(script),
			filepath.Join(dir, "conf"):                                    "< POWER_MODEL ID=0 NAME=MAXN >\n",
			filepath.Join(dir, "nvpmodel"):                                "#!/bin/sh\ncase $1 in\n-q) echo NV Power Mode: MAXN; cat " + state + " ;;\n-m) echo $2 >" + state + " ;;\nesac\n",
			state:                                                         "2\n",
		} {
			if err := os.WriteFile(name, []byte(data), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Run(t.Context(), conn, spec, images.Artifact{})
		if len(r.Suites) == 0 {
			t.Fatalf("%v in\n%s", err, suite)
		}
		if c := r.Suites[0].Checks[0]; !errors.Is(err, report.ErrFailed) || !strings.Contains(c.Saw, tt.want) {
			t.Errorf("%s: %v: %+v; want %s", tt.name, err, c, tt.want)
		}
		mode, err := os.ReadFile(state)
		if _, left := os.Stat(saved); string(mode) != "2\n" || err != nil || left == nil {
			t.Errorf("%s: mode %s, %v, file of the mode of before: %v", tt.name, mode, err, left)
		}
		if _, err := os.Stat(filepath.Join(dir, "ran")); err != nil {
			t.Errorf("%s: the workload did not run: %v", tt.name, err)
		}
		if folders, err := filepath.Glob(filepath.Join(dir, "slipway-*")); err != nil || len(folders) > 0 {
			t.Errorf("%s: left behind: %v, %v", tt.name, folders, err)
		}
	}
}

// The samples of TensorRT set the clocks to their maximum. The clocks of before are restored,
// and the samples' folder is removed, also after samples that fail or hang.
func TestClocksAreRestored(t *testing.T) {
	text, err := os.ReadFile("workloads/tensorrt-tests/suite.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, samples, want string }{
		{"samples that pass", "echo Tests run: 2; echo Tests passed: 2; echo Tests skipped: 0; echo Tests failed: 0", "OK restored clocks; run 2; passed 2; skipped 0"},
		{"samples that fail", "echo Tests failed: 1; exit 1", "OK restored clocks / exit status: 0\n"},
		{"samples that hang", "echo $$ >$HOME/pid; sleep 600; sleep 600", "failed: no answer in time (2s)"},
	} {
		dir := t.TempDir()
		clocks := filepath.Join(dir, "clocks")
		t.Setenv("HOME", dir)
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		for name, data := range map[string]string{
			"jetson_clocks":      "#!/bin/sh\ncase $1 in\n--store) cp " + clocks + " \"$2\" ;;\n--restore) cp \"$2\" " + clocks + " ;;\n*) echo most >" + clocks + " ;;\nesac\n",
			"run-tensorrt-tests": "#!/bin/sh\njetson_clocks\necho >sample\n" + tt.samples + "\n",
			"clocks":             "few\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		r := runHere(t, t.Context(), dir, strings.NewReplacer("/run/slipway-clocks", dir+"/stored", "timeout: 3600000", "timeout: 2000").Replace(string(text)))
		if got := suitetest.FormatResult(r.Checks[0]); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s; want %s", tt.name, got, tt.want)
		}
		if pid, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil {
			waitForEnd(t, tt.name+": the samples", strings.TrimSpace(string(pid)))
		}
		if got, err := os.ReadFile(clocks); string(got) != "few\n" || err != nil {
			t.Errorf("%s: the clocks are %q, %v", tt.name, got, err)
		}
		for _, left := range []string{"stored", "slipway-tensorrt-tests"} {
			if _, err := os.Stat(filepath.Join(dir, left)); err == nil {
				t.Errorf("%s: left behind: %s", tt.name, left)
			}
		}
	}
}

// waitForEnd waits for a process that was killed: it ends when it next has a processor.
func waitForEnd(t *testing.T, what, pid string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		if len(line) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%s still run as %s: %q", what, pid, line)
			return
		}
	}
}

// The checks judge what the real programs printed. Each has an output that passes and one
// that fails, for the reason that stands in the name.
func TestRecordedWorkloads(t *testing.T) {
	files, err := fs.Glob(embedded, "workloads/*/workload.yml")
	if err != nil {
		t.Fatal(err)
	}
	judged := 0
	for _, file := range files {
		w := workload{name: path.Base(path.Dir(file))}
		if slices.Contains([]string{"dpu-doca", "dpu-flow", "dpu-pbr"}, w.name) {
			continue // package offload has its checks, and they judge no output
		}
		text, err := embedded.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := goyaml.Load(text, &w); err != nil {
			t.Fatal(err)
		}
		verdicts, err := w.judgeOutputs()
		if err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
		s, err := Load(w.name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(w.Metrics, metricNames(s.Checks)); diff != "" {
			t.Errorf("%s: metrics of the suite (-workload.yml +suite.yml):\n%s", w.name, diff)
		}
		for _, v := range verdicts {
			if judged++; v.Wrong != "" {
				t.Errorf("%s: %q: %s", v.File, v.Output, v.Wrong)
			}
		}
	}
	if judged < 40 {
		t.Errorf("%d outputs were judged; want at least 40", judged)
	}
}

// workload is what the tests read of a workload.yml.
type workload struct {
	name    string
	Proved  map[string]string
	Metrics []string
}

// metricNames returns the sorted names of the checks' metrics. Sensors depend on the board.
func metricNames(checks []Check) (names []string) {
	for _, c := range checks {
		var all figures
		switch p := c.probe.(type) {
		case command:
			all = p.figures
		case binary:
			all = p.figures
		case containerProgram:
			all = p.figures
		case metric:
			all = figures{p.figure}
		}
		for _, m := range all {
			names = append(names, m.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// judgement is what a check finds in an output that a workload brings along.
type judgement struct {
	File   string // recorded.txtar or simulated.txtar
	Output string // "pass: CHECK" or "fail: CHECK: REASON"
	Wrong  string // why the judgement is not the one that Output says; "" if it is
}

// judgeOutputs has the checks judge the outputs that the workload brings along. A check that
// reads output needs one that passes and one that fails.
func (w workload) judgeOutputs() (all []judgement, err error) {
	s, err := Load(w.name)
	if err != nil {
		return nil, err
	}
	for _, how := range []string{"recorded", "simulated"} {
		file := path.Join("workloads", w.name, how+".txtar")
		text, err := embedded.ReadFile(file)
		claimed := w.Proved[how] != "" && slices.ContainsFunc(s.Checks, Check.readsOutput)
		switch {
		case claimed && err != nil:
			return nil, err
		case !claimed && err == nil:
			all = append(all, judgement{File: file, Output: how, Wrong: "workload.yml does not say that it was proved so"})
		case claimed:
			all = append(all, judgeFile(file, text, s.Checks)...)
		}
	}
	return all, nil
}

// judgeFile has the checks judge the outputs of a file.
func judgeFile(file string, text []byte, checks []Check) (all []judgement) {
	seen := map[string]bool{}
	for _, output := range txtar.Parse(text).Files {
		v := judgement{File: file, Output: output.Name}
		c, kind, reason := readOutputName(output.Name, checks)
		if kind == "" {
			v.Wrong = "it is neither pass: CHECK nor fail: CHECK: REASON"
		} else {
			v.Wrong = c.judgeOutput(kind, reason, string(output.Data))
			seen[kind+c.Name] = true
		}
		all = append(all, v)
	}
	for _, c := range checks {
		if c.readsOutput() && (!seen["pass"+c.Name] || !seen["fail"+c.Name]) {
			all = append(all, judgement{File: file, Output: c.Name, Wrong: "it lacks an output that passes, or one that fails"})
		}
	}
	return all
}

// readOutputName returns the check that an output is of, "pass" or "fail", and the reason to
// fail. Without a kind the name is not one of an output.
func readOutputName(name string, checks []Check) (c Check, kind, reason string) {
	for _, c := range checks {
		if !c.readsOutput() {
			continue
		}
		if name == "pass: "+c.Name {
			return c, "pass", ""
		}
		if reason, ok := strings.CutPrefix(name, "fail: "+c.Name+": "); ok {
			return c, "fail", reason
		}
	}
	return c, "", ""
}

// judge is a probe that reads a program's output.
type judge interface {
	judge(status int, output string) Finding
}

func (o outputs) judge(status int, output string) Finding {
	return o.check(boardssh.Result{Status: status, Stdout: []byte(output)})
}

func (c containerProgram) judge(status int, output string) Finding {
	return c.judgeExit(container.Exit{Status: uint32(status), Output: []byte(output)})
}

func (m metric) judge(status int, output string) (f Finding) {
	f.Expect(status == 0, "exit status 0", fmt.Sprintf("exit status %d", status))
	if f.OK() {
		m.figure.check(&f, output)
	}
	return f
}

func (c Check) readsOutput() bool {
	_, ok := c.probe.(judge)
	return ok
}

// judgeOutput returns why an output is not judged as its name says; "" if it is. A first line
// "exit N" is the program's status.
func (c Check) judgeOutput(kind, reason, output string) string {
	status := 0
	if rest, ok := strings.CutPrefix(output, "exit "); ok {
		line, rest, _ := strings.Cut(rest, "\n")
		n, err := strconv.ParseUint(line, 10, 8)
		if err != nil {
			return fmt.Sprintf("exit %q is no status from 0 to 255", line)
		}
		status, output = int(n), rest
	}
	misses := strings.Join(c.probe.(judge).judge(status, output).Want, "; ")
	switch {
	case kind == "pass" && misses != "":
		return "it fails: " + misses
	case kind == "fail" && misses == "":
		return "it passes"
	case kind == "fail" && !strings.Contains(misses, reason):
		return "it fails for another reason: " + misses
	}
	return ""
}
