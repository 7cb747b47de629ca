// Package suite proves a board with checks that are written in YAML, in goss's format. It
// inspects the board over SSH. Other packages add their checks by Register: each check has a
// Kind, whose Probe inspects the board in a Session and returns a Finding.
package suite

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/ci/report"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

//go:embed suites/*.yml workloads/*/*
var embedded embed.FS

// builtIn maps the built-in suites' names to embedded files. A workload is named by its folder.
var builtIn = sync.OnceValue(func() map[string]string {
	files := map[string]string{}
	plain, _ := fs.Glob(embedded, "suites/*.yml")
	for _, f := range plain {
		files[strings.TrimSuffix(path.Base(f), ".yml")] = f
	}
	workloads, _ := fs.Glob(embedded, "workloads/*/suite.yml")
	for _, f := range workloads {
		files[path.Base(path.Dir(f))] = f
	}
	return files
})

// Suite is a list of checks, in the order in which they are written.
type Suite struct {
	Name   string
	Checks []Check
}

// Check is one statement about a target, with the probe that proves it.
type Check struct {
	Name    string
	Kind    string        // the section of the suite: command, file, ...
	Next    string        // what the user does when it fails
	Timeout time.Duration // of one try
	Retries int           // further tries after the first one
	Pause   time.Duration // before each retry
	Skip    bool
	Alone   bool // no other check runs at the same time

	asks     bool // no answer in time is a silent board
	suite    string
	key      string // its name in the suite's file
	needs    []need
	teardown [][]string
	then     *goyaml.Node // sections of checks that run after it
	probe    Probe
}

// Limits of a suite. They are far above what a person writes.
const (
	maxSuiteBytes  = 1 << 20
	maxGossfiles   = 8 // depth of suites that include suites
	maxTimeout     = time.Hour
	DefaultTimeout = 30 * time.Second
	maxRetries     = 1000
	defaultPause   = time.Second
	maxNeeds       = 20
	maxTeardown    = 20
)

// Names returns the names of the built-in suites.
func Names() []string { return slices.Sorted(maps.Keys(builtIn())) }

// AllNames returns the sorted names of the built-in suites and of the user's own.
func AllNames() ([]string, error) {
	own, err := images.OwnSuites()
	names := slices.AppendSeq(Names(), maps.Keys(own))
	slices.Sort(names)
	return names, err
}

// findOwn returns the file of the user's own suite, or "". It refuses one with a built-in's name.
func findOwn(name string) (string, error) {
	own, err := images.OwnSuites()
	if file := own[name]; file != "" && slices.Contains(Names(), name) {
		return "", fmt.Errorf("%s: Slipway has a suite of this name\nnext: mv %s %s  # then list both suites, to add checks to %s", file, plaintext.Quote(file), plaintext.Quote(filepath.Join(filepath.Dir(file), "own-"+filepath.Base(file))), name)
	}
	return own[name], err
}

// Load loads a built-in or own suite by its name, or any goss file by its path in .yml or .yaml.
func Load(name string) (Suite, error) { return loadFile(name, io.Discard) }

// Digest returns the SHA-256, in hexadecimal, of a board's suites and the files that they include.
func Digest(spec images.Spec) (string, error) {
	h := sha256.New()
	for _, name := range spec.Suites {
		if _, err := loadFile(name, h); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// loadFile loads a suite like Load. It also writes the length and content of each file to text.
func loadFile(name string, text io.Writer) (Suite, error) {
	own, err := findOwn(name)
	if err != nil {
		return Suite{}, err
	}
	l, file := loader{files: embedded, text: text}, builtIn()[name]
	if images.IsSuiteFile(name) {
		own = name
	}
	switch {
	case own != "":
		l, file = loader{files: os.DirFS(filepath.Dir(own)), dir: filepath.Dir(own), text: text}, filepath.Base(own)
		name = strings.TrimSuffix(file, path.Ext(file))
	case file == "":
		return Suite{}, unknownSuite(name)
	}
	if err := l.includeFile(file, 0); err != nil {
		return Suite{}, err
	}
	if len(l.checks) == 0 {
		return Suite{}, fmt.Errorf("%s:1: no checks; a suite that asks nothing proves nothing", l.displayPath(file))
	}
	s := Suite{Name: name, Checks: l.checks}
	for i := range s.Checks {
		s.Checks[i].suite = s.Name
	}
	return s, nil
}

// listError is a mistake in a list of suites. Other errors of Load name the suite's file.
type listError struct{ error }

// unknownSuite returns the error for a name that no suite has, with the names that exist.
func unknownSuite(name string) error {
	names, err := AllNames()
	if err != nil {
		return err
	}
	return listError{fmt.Errorf("no suite %q%s (have %s, or name a file, like ./my-suite.yml)\nnext: suites  # correct --suite or the list in board.yml", name, plaintext.DidYouMean(name, names), strings.Join(names, ", "))}
}

// loader collects the checks of a suite and of the files that it includes. All files are
// below one folder, which an include cannot leave.
type loader struct {
	files  fs.FS
	dir    string // the path of files, for errors
	text   io.Writer
	checks []Check
}

func (l *loader) displayPath(file string) string { return filepath.Join(l.dir, file) }

// includeFile parses one file of the suite, copies it to l.text, adds its checks to l.checks, and
// includes the files that it names. depth counts the levels of includes, up to maxGossfiles.
func (l *loader) includeFile(file string, depth int) error {
	if depth > maxGossfiles {
		return fmt.Errorf("%s: included more than %d levels deep; does it include itself?", l.displayPath(file), maxGossfiles)
	}
	data, err := l.readSuiteFile(file)
	if err != nil {
		return err
	}
	fmt.Fprintf(l.text, "%d %s\n", len(data), data)
	root, err := parseYAML(l.displayPath(file), data)
	if err != nil {
		return err
	}
	for key, value := range yaml.Pairs(root) {
		if key.Value == "gossfile" {
			err = l.readGossfiles(file, value, depth)
		} else {
			err = l.readSection(file, key, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readSuiteFile reads a regular file of the suite's folder, of at most maxSuiteBytes.
func (l *loader) readSuiteFile(file string) ([]byte, error) {
	info, err := fs.Stat(l.files, file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, fmt.Errorf("%s: no such suite file\nnext: ls %s", l.displayPath(file), filepath.Dir(l.displayPath(file)))
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a file", l.displayPath(file))
	}
	f, err := l.files.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return localfile.ReadAll(f, l.displayPath(file), maxSuiteBytes)
}

var gossfileKeys = []string{"file", "title", "meta", "skip"}

// readGossfiles includes the suites of section gossfile in the file from, except those with skip. A
// pattern without a match is an error.
func (l *loader) readGossfiles(from string, section *goyaml.Node, depth int) error {
	shown := l.displayPath(from)
	if section.Kind != goyaml.MappingNode {
		return yaml.ErrorAt(shown, section, "gossfile must be a mapping of file names")
	}
	for key, value := range yaml.Pairs(section) {
		e, err := newEntry(shown, "gossfile", gossfileKeys, key, value)
		if err != nil {
			return err
		}
		pattern := path.Join(path.Dir(from), e.Text("file", e.Name))
		skip := e.Bool("skip", false)
		if e.Err != nil {
			return e.Err
		}
		if skip {
			continue
		}
		found, err := fs.Glob(l.files, pattern)
		if err != nil {
			return yaml.ErrorAt(shown, key, "%v", err)
		}
		if len(found) == 0 {
			return yaml.ErrorAt(shown, key, "no file matches %q in this folder or below", pattern)
		}
		for _, f := range found {
			if err := l.includeFile(f, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// readSection adds a section of file from to l.checks, each check before those of its key "then".
func (l *loader) readSection(from string, key, section *goyaml.Node) error {
	file := l.displayPath(from)
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == key.Value })
	if i < 0 {
		return yaml.ErrorAt(file, key, "unknown section %q%s (have %s)", key.Value, plaintext.DidYouMean(key.Value, kindNames()), strings.Join(kindNames(), ", "))
	}
	if section.Kind != goyaml.MappingNode {
		return yaml.ErrorAt(file, section, "%s must be a mapping of checks", key.Value)
	}
	for key, value := range yaml.Pairs(section) {
		c, err := kinds[i].readCheck(file, key, value, programs{l.files, path.Dir(from)})
		if err == nil {
			err = l.resolveNeeds(c.needs)
		}
		if err != nil {
			return err
		}
		if l.checks = append(l.checks, c); len(l.checks) > report.MaxChecks {
			return yaml.ErrorAt(file, key, "more than %d checks in one suite; split it", report.MaxChecks)
		}
		if err := l.readFollowers(from, c); err != nil {
			return err
		}
	}
	return nil
}

// readFollowers adds the checks below the key "then" of c, which is the last in l.checks. They run
// after c, and only if c passes. from is c's file.
func (l *loader) readFollowers(from string, c Check) error {
	if c.then == nil {
		return nil
	}
	if c.then.Kind != goyaml.MappingNode {
		return yaml.ErrorAt(l.displayPath(from), c.then, "then must be a mapping of sections, not %s", yaml.KindOf(c.then))
	}
	first := len(l.checks)
	for key, value := range yaml.Pairs(c.then) {
		if err := l.readSection(from, key, value); err != nil {
			return err
		}
	}
	for i := range l.checks[first:] {
		follower := &l.checks[first+i]
		follower.needs = append(follower.needs, need{kind: "check", name: c.key, check: first - 1})
	}
	return nil
}

// kindNames returns the sorted names of the sections, with gossfile.
func kindNames() []string {
	names := []string{"gossfile"}
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	return names
}

// Show writes a table of all suites, and one of the sections that a suite can have.
func Show(w io.Writer) error {
	names, err := AllNames()
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SUITE\tWHAT IT PROVES")
	for _, name := range names {
		about, err := describe(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(tw, "%s\t%s\n", name, about)
	}
	fmt.Fprintln(tw, "\nSECTION\tWHAT IT ASKS A BOARD")
	for _, k := range Kinds() {
		fmt.Fprintf(tw, "%s\t%s\n", k.Name, k.About)
	}
	fmt.Fprintln(tw, "gossfile\tnothing; it includes other suites")
	fmt.Fprintln(tw, "\nEach section with an example: ci/suites.md")
	return tw.Flush()
}

// describe returns what a suite proves: the first sentence of the comment at the top of its file,
// and for one of the user's own suites its path.
func describe(name string) (string, error) {
	own, err := findOwn(name)
	if err != nil {
		return "", err
	}
	if own == "" {
		text, err := embedded.ReadFile(builtIn()[name])
		return firstSentence(string(text)), err
	}
	text, err := localfile.Read(own, maxSuiteBytes)
	return plaintext.OneLine(strings.TrimSpace(firstSentence(string(text)) + " (" + own + ")")), err
}

// firstSentence returns the first sentence (without period) or question of a suite's top comment.
func firstSentence(text string) string {
	var words []string
	for _, line := range plaintext.Lines(text) {
		rest, ok := strings.CutPrefix(line, "#")
		if !ok {
			break
		}
		words = append(words, strings.Fields(rest)...)
		if n := len(words); n > 0 && strings.HasSuffix(words[n-1], "?") {
			break
		}
	}
	sentence, _, _ := strings.Cut(strings.Join(words, " "), ". ")
	question, _, asks := strings.Cut(sentence, "? ")
	return plaintext.Either(asks, question+"?", strings.TrimSuffix(sentence, "."))
}
