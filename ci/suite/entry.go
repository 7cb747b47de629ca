package suite

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"slipway/ci/suite/match"
	"slipway/layers/strict"
)

// parseYAML returns the mapping in a suite's file.
func parseYAML(file string, data []byte) (*yaml.Node, error) {
	if line, column := findTemplate(data); line > 0 {
		return nil, fmt.Errorf("%s:%d:%d: goss's templates ({{ }}) are not filled in here; write the values out", file, line, column)
	}
	return strict.ParseMapping(file, data, "a suite is a mapping of sections ("+strings.Join(kindNames(), ", ")+")")
}

// findTemplate returns the place of the first goss template outside of comments, or 0, 0.
func findTemplate(data []byte) (line, column int) {
	for text := range strings.SplitSeq(string(data), "\n") {
		line++
		code, _, _ := strings.Cut(" "+text, " #")
		if column = strings.Index(code, "{{"); column >= 0 {
			return line, column
		}
	}
	return 0, 0
}

// commonKeys are allowed in every check. The first four are goss's, the others Slipway's.
var commonKeys = []string{"title", "meta", "timeout", "skip", "retries", "pause", "needs", "teardown", "alone"}

// Entry is one check as it is written.
type Entry struct {
	*strict.Entry
	Limit time.Duration // the kind's default timeout; 0: DefaultTimeout

	programs programs
}

// programs is the folder of a suite, which may hold programs for the board.
type programs struct {
	files fs.FS
	dir   string
}

// read returns a program of a built-in suite, and nil if the suite is a file of this
// machine, which has the program as a file too.
func (p programs) read(name string) ([]byte, error) {
	if p.files != fs.FS(embedded) {
		return nil, nil
	}
	return fs.ReadFile(p.files, path.Join(p.dir, name))
}

func newEntry(file, kind string, keys []string, key, value *yaml.Node) (*Entry, error) {
	if value.Kind == yaml.MappingNode {
		for k := range strict.Pairs(value) {
			if why, ok := unsupportedKeys[kind+" "+k.Value]; ok {
				return nil, strict.At(file, k, "goss's %s of a %s cannot be asked over SSH: %s", k.Value, kind, why)
			}
		}
	}
	e, err := strict.NewEntry(file, kind, keys, key, value)
	return &Entry{Entry: e}, err
}

// readTimeout reads the timeout. As in goss, 0 is the default.
func (e *Entry) readTimeout() time.Duration {
	usual := cmp.Or(e.Limit, DefaultTimeout)
	return cmp.Or(e.readMillis("timeout", usual, 0), usual)
}

// readMillis reads a duration, in milliseconds as in goss.
func (e *Entry) readMillis(key string, fallback time.Duration, least int64) time.Duration {
	ms := e.Number(key, fallback.Milliseconds(), least, maxTimeout.Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

// readTeardown reads a list of commands. Each is a text for the board's shell or an argv.
func (e *Entry) readTeardown() [][]string {
	n := e.Fields["teardown"]
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxTeardown {
		e.Fail(n, "teardown must be a list of at most %d commands, not %s", maxTeardown, strict.KindOf(n))
		return nil
	}
	var all [][]string
	for _, c := range n.Content {
		all = append(all, e.readTeardownCommand(c))
	}
	return all
}

func (e *Entry) readTeardownCommand(n *yaml.Node) []string {
	one := &strict.Entry{File: e.File, Fields: map[string]*yaml.Node{"teardown": n}}
	var argv []string
	if n.Kind == yaml.SequenceNode {
		argv = one.List("teardown")
	} else {
		argv = []string{"sh", "-c", one.Text("teardown", "")}
	}
	if e.Err == nil {
		e.Err = one.Err
	}
	if len(argv) == 0 || strings.ContainsRune(strings.Join(argv, ""), 0) || argv[len(argv)-1] == "" && argv[0] == "sh" {
		e.Fail(n, "teardown: not a command")
	}
	return argv
}

// readMeta reads title and next from meta. As in goss, other keys are allowed there.
func (e *Entry) readMeta() (title, next string) {
	title = e.Text("title", e.Name)
	n := e.Fields["meta"]
	if n == nil {
		return title, ""
	}
	if n.Kind != yaml.MappingNode {
		e.Fail(n, "meta must be a mapping (title, next), not %s", strict.KindOf(n))
		return title, ""
	}
	m := &strict.Entry{File: e.File, Fields: map[string]*yaml.Node{}}
	for k, v := range strict.Pairs(n) {
		m.Fields[k.Value] = v
	}
	title, next = m.Text("title", title), m.Text("next", "")
	if e.Err == nil {
		e.Err = m.Err
	}
	return title, next
}

// Matcher reads an attribute as a matcher.
func (e *Entry) Matcher(key string, t match.Type) match.Matcher { return match.Read(e.Entry, key, t) }
