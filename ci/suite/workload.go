package suite

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// Workload is a software system for boards, with the suite that tests it. It is a folder below
// workloads.
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

// Releases are the base systems for which a workload can have recipes: L4T's releases, DPUs, Isar
// and Debian's own packages.
var Releases = []string{"r32", "r35", "r36", "r39", "dpu", "isar", "debian"}

// Proofs are the ways in which a workload can have been tested, the strongest first.
var Proofs = []string{"hardware", "real programs", "virtual board", "rig", "simulated", "recorded"}

// Workloads loads all built-in workloads with their suites, sorted by name.
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

// Metrics returns the names of the metrics that a check can report. It is empty for sensors, whose
// metrics depend on the board.
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

// parseWorkload parses a workload.yml.
func parseWorkload(file string, text []byte) (Workload, error) {
	root, err := yaml.ParseMapping(file, text, "a workload is a mapping ("+strings.Join(workloadKeys, ", ")+")")
	if err != nil {
		return Workload{}, err
	}
	key := &goyaml.Node{Kind: goyaml.ScalarNode, Value: path.Base(path.Dir(file)), Line: 1, Column: 1}
	e, err := yaml.NewEntry(file, "workload", workloadKeys, key, root)
	if err != nil {
		return Workload{}, err
	}
	w := Workload{
		System: readSentence(e, "system"), Proves: readSentence(e, "proves"), Needs: readSentence(e, "needs"),
		Recipes: readTexts(e, "recipes", Releases), Proved: readTexts(e, "proved", Proofs),
	}
	return w, e.Err
}

func readSentence(e *yaml.Entry, key string) string {
	text := strings.TrimSpace(e.Text(key, ""))
	if n := cmp.Or(e.Fields[key], e.Key); text == "" || len(text) > maxWorkloadText || strings.ContainsAny(text, "|\n\x00") {
		e.Fail(n, "%s must be one line of text, of at most %d bytes and without |", key, maxWorkloadText)
	}
	return text
}

// readTexts parses an attribute that is a mapping of some of the allowed keys to one-line texts.
func readTexts(e *yaml.Entry, key string, allowed []string) map[string]string {
	n := cmp.Or(e.Fields[key], e.Key)
	if n.Kind != goyaml.MappingNode || len(n.Content) == 0 {
		e.Fail(n, "%s must be a mapping with at least one of %s", key, strings.Join(allowed, ", "))
		return nil
	}
	one, err := yaml.NewEntry(e.File, key, allowed, e.Key, n)
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

// InOrder returns lines like "a: text" in the order of keys. Neighbours with the same text share a
// line: "a, b: text".
func InOrder(texts map[string]string, keys []string) []string {
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

// ShowWorkloads writes a table of all workloads, or the details of the workload name, as text or
// JSON.
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
		{"recipes", InOrder(w.Recipes, Releases)},
		{"checks", w.Checks},
		{"metrics", w.Metrics},
		{"proved", InOrder(w.Proved, Proofs)},
	} {
		for i, line := range row.lines {
			fmt.Fprintf(tw, "%s\t%s\n", plaintext.Either(i == 0, row.name, ""), line)
		}
	}
	return tw.Flush()
}
