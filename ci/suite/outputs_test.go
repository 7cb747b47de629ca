package suite

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"slipway/ci/suite/suitetest"
)

// WriteWorkloadsPage writes the catalogue's page, in Markdown.
func WriteWorkloadsPage(w io.Writer, all []Workload) {
	fmt.Fprint(w, `# Workloads

A workload is a system that people put on boards. Its suite proves it, and its metrics are kept over time.

`+"```"+`
go tool mage workloads  # this table, shorter
go tool mage workloads cuda-warp  # all that is known of one
go tool mage smoke root@192.0.2.7 --suite=cuda-warp  # run it on a board
`+"```"+`

This page is generated. To add a workload, add a folder to `+"`ci/suite/workloads`"+` with these files, and run `+"`go test ./ci/suite -run TestWorkloadsPage -update`"+`:

- `+"`workload.yml`"+`: what it proves, what it needs, its recipes, and where it was proved
- `+"`suite.yml`"+`: its [checks](suites.md)
- the programs that the suite sends to the board
- `+"`recorded.txtar`"+`: output of the real programs, where it was proved so. The checks judge it in a test.
- `+"`simulated.txtar`"+`: output written by hand, likewise

`)
	fmt.Fprintln(w, "| workload | proves | needs | recipes | checks | metrics | proved |\n|---|---|---|---|---|---|---|")
	for _, one := range all {
		cells := []string{
			"**" + one.Name + "**: " + one.System, one.Proves, one.Needs, strings.Join(inOrder(one.Recipes, Releases), "<br>"),
			strings.Join(one.Checks, "<br>"), cmp.Or(strings.Join(one.Metrics, ", "), "the time of each check"), strings.Join(inOrder(one.Proved, Proofs), "<br>"),
		}
		fmt.Fprintln(w, "| "+strings.Join(cells, " | ")+" |")
	}
}

// OutputVerdict is what a check finds in an output that a workload brings along.
type OutputVerdict struct {
	File   string // recorded.txtar or simulated.txtar
	Output string // "pass: CHECK" or "fail: CHECK: REASON"
	Wrong  string // why the verdict is not the one that Output says; "" if it is
}

// JudgeOutputs has the checks judge the outputs that the workload brings along. A check that
// reads output needs one that passes and one that fails.
func (w Workload) JudgeOutputs() (all []OutputVerdict, err error) {
	s, err := Load(w.Name)
	if err != nil {
		return nil, err
	}
	for _, how := range []string{"recorded", "simulated"} {
		file := path.Join("workloads", w.Name, how+".txtar")
		text, err := embedded.ReadFile(file)
		claimed := w.Proved[how] != "" && slices.ContainsFunc(s.Checks, Check.readsOutput)
		switch {
		case claimed && err != nil:
			return nil, err
		case !claimed && err == nil:
			all = append(all, OutputVerdict{File: file, Output: how, Wrong: "workload.yml does not say that it was proved so"})
		case claimed:
			all = append(all, judgeFile(file, text, s.Checks)...)
		}
	}
	return all, nil
}

// judgeFile has the checks judge the outputs of a file.
func judgeFile(file string, text []byte, checks []Check) (all []OutputVerdict) {
	seen := map[string]bool{}
	for _, output := range txtar.Parse(text).Files {
		v := OutputVerdict{File: file, Output: output.Name}
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
			all = append(all, OutputVerdict{File: file, Output: c.Name, Wrong: "it lacks an output that passes, or one that fails"})
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
	got, err := Workload{Name: "cuda-warp"}.JudgeOutputs()
	if err != nil || len(got) != 1 || !strings.Contains(got[0].Wrong, "does not say") {
		t.Errorf("outputs without a claim: %v, %v", got, err)
	}
	if _, err := (Workload{Name: "containers", Proved: map[string]string{"recorded": "x"}}).JudgeOutputs(); err == nil {
		t.Error("a claim without outputs passes")
	}
}
