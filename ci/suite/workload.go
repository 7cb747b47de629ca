package suite

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v4"

	"slipway/images/strict"
	"slipway/layers/plaintext"
)

// Workload is a system that people put on boards, with the suite that proves it. It is a
// folder below workloads.
type Workload struct {
	Name    string            `json:"name"`
	System  string            `json:"system"`
	Proves  string            `json:"proves"`
	Needs   string            `json:"needs"`
	Recipes map[string]string `json:"recipes"` // by Releases
	Proved  map[string]string `json:"proved"`  // by Proofs: what or which boards
	Checks  []string          `json:"checks"`
	Metrics []string          `json:"metrics"`
}

// Releases are those that a workload can have recipes for: L4T's, that of DPUs, Isar, and
// Debian's own packages.
var Releases = []string{"r32", "r35", "r36", "r39", "dpu", "isar", "debian"}

// Proofs are the ways in which a workload can have been proved, the strongest first.
var Proofs = []string{"hardware", "real programs", "virtual board", "rig", "simulated", "recorded"}

// Workloads returns all workloads, sorted by name.
func Workloads() ([]Workload, error) {
	files, err := fs.Glob(embedded, "workloads/*/workload.yml")
	all := make([]Workload, 0, len(files))
	for _, file := range files {
		text, rerr := embedded.ReadFile(file)
		w, perr := parseWorkload(file, text)
		if err = cmp.Or(err, rerr, perr); err != nil {
			return nil, err
		}
		w.Name = path.Base(path.Dir(file))
		s, lerr := Load(w.Name)
		if lerr != nil {
			return nil, lerr
		}
		for _, c := range s.Checks {
			w.Checks = append(w.Checks, c.Name)
			w.Metrics = append(w.Metrics, c.Metrics()...)
		}
		slices.Sort(w.Metrics)
		w.Metrics = slices.Compact(w.Metrics)
		all = append(all, w)
	}
	return all, err
}

// Metrics returns the names of the metrics that a check can have. Sensors have those of the
// board, and none here.
func (c Check) Metrics() []string {
	if p, ok := c.probe.(interface{ Metrics() []string }); ok {
		return p.Metrics()
	}
	return nil
}

// FindWorkload returns the workload of a name.
func FindWorkload(name string) (Workload, error) {
	all, err := Workloads()
	if err != nil {
		return Workload{}, err
	}
	var names []string
	for _, w := range all {
		if w.Name == name {
			return w, nil
		}
		names = append(names, w.Name)
	}
	return Workload{}, fmt.Errorf("no workload %q%s (have %s)\nnext: workloads", name, plaintext.DidYouMean(name, names), strings.Join(names, ", "))
}

const maxWorkloadText = 2000

var workloadKeys = []string{"system", "proves", "needs", "recipes", "proved"}

// parseWorkload reads a workload.yml.
func parseWorkload(file string, text []byte) (Workload, error) {
	root, err := strict.ParseMapping(file, text, "a workload is a mapping ("+strings.Join(workloadKeys, ", ")+")")
	if err != nil {
		return Workload{}, err
	}
	key := &yaml.Node{Kind: yaml.ScalarNode, Value: path.Base(path.Dir(file)), Line: 1, Column: 1}
	e, err := strict.NewEntry(file, "workload", workloadKeys, key, root)
	if err != nil {
		return Workload{}, err
	}
	w := Workload{
		System: readSentence(e, "system"), Proves: readSentence(e, "proves"), Needs: readSentence(e, "needs"),
		Recipes: readTexts(e, "recipes", Releases), Proved: readTexts(e, "proved", Proofs),
	}
	return w, e.Err
}

func readSentence(e *strict.Entry, key string) string {
	text := strings.TrimSpace(e.Text(key, ""))
	if n := cmp.Or(e.Fields[key], e.Key); text == "" || len(text) > maxWorkloadText || strings.ContainsAny(text, "|\n\x00") {
		e.Fail(n, "%s must be one line of text, of at most %d bytes and without |", key, maxWorkloadText)
	}
	return text
}

// readTexts reads a mapping of some of the allowed keys to texts.
func readTexts(e *strict.Entry, key string, allowed []string) map[string]string {
	n := cmp.Or(e.Fields[key], e.Key)
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		e.Fail(n, "%s must be a mapping with at least one of %s", key, strings.Join(allowed, ", "))
		return nil
	}
	one, err := strict.NewEntry(e.File, key, allowed, e.Key, n)
	if err != nil {
		e.Err = cmp.Or(e.Err, err)
		return nil
	}
	texts := map[string]string{}
	for name := range one.Fields {
		texts[name] = readSentence(one, name)
	}
	e.Err = cmp.Or(e.Err, one.Err)
	return texts
}

// inOrder returns "a, b: text" for the texts that are the same, in the order of keys.
func inOrder(texts map[string]string, keys []string) []string {
	var lines []string
	for i := 0; i < len(keys); {
		text, found := texts[keys[i]]
		same := i + 1
		for found && same < len(keys) && texts[keys[same]] == text {
			same++
		}
		if found {
			lines = append(lines, strings.Join(keys[i:same], ", ")+": "+text)
		}
		i = same
	}
	return lines
}

// ShowWorkloads writes the catalogue, or all that is known of one workload.
func ShowWorkloads(w io.Writer, name string, asJSON bool) error {
	all, err := Workloads()
	if name != "" {
		var one Workload
		one, err = FindWorkload(name)
		all = []Workload{one}
	}
	switch {
	case err != nil:
		return err
	case asJSON:
		if name != "" {
			return plaintext.WriteJSON(w, all[0])
		}
		return plaintext.WriteJSON(w, all)
	case name != "":
		return all[0].write(w)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "WORKLOAD\tSYSTEM\tRECIPES FOR\tPROVED BY")
	for _, one := range all {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", one.Name, one.System, keysInOrder(one.Recipes, Releases), keysInOrder(one.Proved, Proofs))
	}
	fmt.Fprintln(tw, "\nRun one on a board: smoke HOST --suite=WORKLOAD")
	return tw.Flush()
}

func keysInOrder(texts map[string]string, keys []string) string {
	var has []string
	for _, key := range keys {
		if texts[key] != "" {
			has = append(has, key)
		}
	}
	return strings.Join(has, ", ")
}

func (w Workload) write(out io.Writer) error {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range []struct {
		name  string
		lines []string
	}{
		{"workload", []string{w.Name}},
		{"system", []string{w.System}},
		{"proves", []string{w.Proves}},
		{"needs", []string{w.Needs}},
		{"recipes", inOrder(w.Recipes, Releases)},
		{"checks", w.Checks},
		{"metrics", w.Metrics},
		{"proved", inOrder(w.Proved, Proofs)},
	} {
		for i, line := range row.lines {
			fmt.Fprintf(tw, "%s\t%s\n", plaintext.Either(i == 0, row.name, ""), line)
		}
	}
	return tw.Flush()
}

// WriteWorkloadsPage writes the catalogue's page, in Markdown.
func WriteWorkloadsPage(w io.Writer) error {
	all, err := Workloads()
	if err != nil {
		return err
	}
	fmt.Fprint(w, `# Workloads

A workload is a system that people put on boards. Its suite proves it, and its metrics are kept over time.

`+"```"+`
go tool mage workloads  # this table, shorter
go tool mage workloads cuda-warp  # all that is known of one
go tool mage smoke root@192.0.2.7 --suite=cuda-warp  # run it on a board
`+"```"+`

This page is generated. To add a workload, add a folder to `+"`ci/suite/workloads`"+` with these files, and run `+"`go test ./ci -run TestWorkloadsPage -update`"+`:

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
		_, err = fmt.Fprintln(w, "| "+strings.Join(cells, " | ")+" |")
	}
	return err
}

// Verdict is what a check finds in an output that a workload brings along.
type Verdict struct {
	File   string // recorded.txtar or simulated.txtar
	Output string // "pass: CHECK" or "fail: CHECK: REASON"
	Wrong  string // why the verdict is not the one that Output says; "" if it is
}

// JudgeOutputs has the checks judge the outputs that the workload brings along. A check that
// reads output needs one that passes and one that fails.
func (w Workload) JudgeOutputs() (all []Verdict, err error) {
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
			all = append(all, Verdict{File: file, Output: how, Wrong: "workload.yml does not say that it was proved so"})
		case claimed:
			all = append(all, judgeFile(file, text, s.Checks)...)
		}
	}
	return all, nil
}

// judgeFile has the checks judge the outputs of a file.
func judgeFile(file string, text []byte, checks []Check) (all []Verdict) {
	seen := map[string]bool{}
	for _, output := range txtar.Parse(text).Files {
		v := Verdict{File: file, Output: output.Name}
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
			all = append(all, Verdict{File: file, Output: c.Name, Wrong: "it lacks an output that passes, or one that fails"})
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

// ShowOutputs writes how the checks of a workload judge the outputs that it brings along.
func ShowOutputs(w io.Writer, name string) error {
	one, err := FindWorkload(name)
	if err != nil {
		return err
	}
	all, err := one.JudgeOutputs()
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("workload %s brings no output along: it was proved by %s", name, keysInOrder(one.Proved, Proofs))
	}
	wrong := 0
	for _, v := range all {
		fmt.Fprintln(w, v.Output)
		if v.Wrong != "" {
			wrong++
			fmt.Fprintln(w, "  wrong: "+v.Wrong)
		}
	}
	if wrong > 0 {
		err = fmt.Errorf("%d of %d outputs of %s are judged wrongly", wrong, len(all), name)
	}
	return err
}
