package suite

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/ci/suite/match"
	"slipway/layers/yaml"
)

// parseYAML parses a suite's file and returns its mapping. It refuses goss's templates.
func parseYAML(file string, data []byte) (*goyaml.Node, error) {
	if line, column := findTemplate(data); line > 0 {
		return nil, fmt.Errorf("%s:%d:%d: goss's templates ({{ }}) are not filled in here; write the values out", file, line, column)
	}
	return yaml.ParseMapping(file, data, "a suite is a mapping of sections ("+strings.Join(kindNames(), ", ")+")")
}

// findTemplate returns the line and column of the first goss template outside of comments, or 0, 0.
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

// commonKeys are the keys that every check may have. Only the first four are goss's.
var commonKeys = []string{"title", "meta", "timeout", "skip", "retries", "pause", "needs", "teardown", "alone"}

// Entry is one check as the suite's file has it, before a Kind turns it into a Probe.
type Entry struct {
	*yaml.Entry
	Limit time.Duration // the kind's default timeout; 0: DefaultTimeout

	programs programs
}

// Bool returns the boolean attribute key. Without such an attribute it returns otherwise.
func (e *Entry) Bool(key string, otherwise bool) bool {
	if set := e.Flag(key); set != nil {
		return *set
	}
	return otherwise
}

// programs is the folder of a suite, in which programs for the board may lie.
type programs struct {
	files fs.FS
	dir   string
}

// read returns the content of a program of a built-in suite. It returns nil for a suite in a file
// of this machine, because its programs are files of this machine too.
func (p programs) read(name string) ([]byte, error) {
	if p.files != fs.FS(embedded) {
		return nil, nil
	}
	return fs.ReadFile(p.files, path.Join(p.dir, name))
}

// newEntry parses one check. It refuses unknown keys, and keys of goss that SSH cannot check.
func newEntry(file, kind string, keys []string, key, value *goyaml.Node) (*Entry, error) {
	if value.Kind == goyaml.MappingNode {
		for k := range yaml.Pairs(value) {
			if why, ok := unsupportedKeys[kind+" "+k.Value]; ok {
				return nil, yaml.ErrorAt(file, k, "goss's %s of a %s cannot be asked over SSH: %s", k.Value, kind, why)
			}
		}
	}
	e, err := yaml.NewEntry(file, kind, keys, key, value)
	return &Entry{Entry: e}, err
}

// readTimeout returns a check's timeout, or its kind's default if it is absent or 0 as in goss.
func (e *Entry) readTimeout() time.Duration {
	usual := cmp.Or(e.Limit, DefaultTimeout)
	return cmp.Or(e.readMillis("timeout", usual, 0), usual)
}

// readMillis returns an attribute in milliseconds as a duration.
func (e *Entry) readMillis(key string, fallback time.Duration, least int64) time.Duration {
	ms := e.Number(key, fallback.Milliseconds(), least, maxTimeout.Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

// readTeardown returns the commands of teardown. More than maxTeardown commands are an error.
func (e *Entry) readTeardown() [][]string {
	n := e.Fields["teardown"]
	if n == nil {
		return nil
	}
	if n.Kind != goyaml.SequenceNode || len(n.Content) > maxTeardown {
		e.Fail(n, "teardown must be a list of at most %d commands, not %s", maxTeardown, yaml.KindOf(n))
		return nil
	}
	var all [][]string
	for _, c := range n.Content {
		all = append(all, e.readTeardownCommand(c))
	}
	return all
}

// readTeardownCommand parses a list of arguments, or a line for the board's shell.
func (e *Entry) readTeardownCommand(n *goyaml.Node) []string {
	one := &yaml.Entry{File: e.File, Fields: map[string]*goyaml.Node{"teardown": n}}
	var argv []string
	if n.Kind == goyaml.SequenceNode {
		argv = one.List("teardown")
	} else {
		argv = []string{"sh", "-c", one.Text("teardown", "")}
	}
	e.Err = cmp.Or(e.Err, one.Err)
	if len(argv) == 0 || strings.ContainsRune(strings.Join(argv, ""), 0) || argv[len(argv)-1] == "" && argv[0] == "sh" {
		e.Fail(n, "teardown: not a command")
	}
	return argv
}

// readMeta returns a check's title, from meta, the attribute title or its name, and the next step
// in meta, or "". Other keys of meta are ignored, as in goss.
func (e *Entry) readMeta() (title, next string) {
	title = e.Text("title", e.Name)
	n := e.Fields["meta"]
	if n == nil {
		return title, ""
	}
	if n.Kind != goyaml.MappingNode {
		e.Fail(n, "meta must be a mapping (title, next), not %s", yaml.KindOf(n))
		return title, ""
	}
	m := &yaml.Entry{File: e.File, Fields: map[string]*goyaml.Node{}}
	for k, v := range yaml.Pairs(n) {
		m.Fields[k.Value] = v
	}
	title, next = m.Text("title", title), m.Text("next", "")
	e.Err = cmp.Or(e.Err, m.Err)
	return title, next
}

// Matcher parses the attribute key as a matcher for values of type t.
func (e *Entry) Matcher(key string, t match.Type) match.Matcher { return match.Read(e.Entry, key, t) }

// need is something on the board, or another check's success, without which a check is skipped.
type need struct {
	kind, name string
	at         string // FILE:LINE:COLUMN in the suite
	check      int    // index of the check, for the kind "check"
}

// needKinds are the kinds of needs. A script exits with 0 if the board has $1, and lacks says that
// the board does not have it. A need of the kind check is another check.
var needKinds = map[string]struct{ script, lacks string }{
	"file":    {`test -e "$1"`, "it has no %s"},
	"command": {`command -v "$1"`, "it has no program %s"},
	"module":  {`test -d "/sys/module/$1"`, "its kernel has no module %s loaded or built in"},
	"service": {`systemctl cat "$1"`, "it has no unit %s"},
	"check":   {},
}

// readNeeds parses the attribute needs: a mapping like {file: /dev/x}, or a list of such mappings.
func (e *Entry) readNeeds() []need {
	n := e.Fields["needs"]
	if n == nil {
		return nil
	}
	list := []*goyaml.Node{n}
	if n.Kind == goyaml.SequenceNode {
		list = n.Content
	}
	var all []need
	for _, c := range list {
		all = append(all, e.readNeedMapping(c)...)
	}
	if len(all) == 0 || len(all) > maxNeeds {
		e.Fail(n, "needs must name 1 to %d things, like {file: /dev/x} or {check: NAME}", maxNeeds)
	}
	return all
}

// readNeedMapping parses one mapping of kinds to names, such as {file: /dev/x}.
func (e *Entry) readNeedMapping(n *goyaml.Node) []need {
	if n.Kind != goyaml.MappingNode {
		e.Fail(n, "needs must be like {file: /dev/x} (have check, command, file, module, service), not %s", yaml.KindOf(n))
		return nil
	}
	var all []need
	for k, v := range yaml.Pairs(n) {
		_, known := needKinds[k.Value]
		switch {
		case !known:
			e.Fail(k, "unknown need %q (have check, command, file, module, service)", k.Value)
		case v.Kind != goyaml.ScalarNode || v.Value == "" || v.ShortTag() == "!!null":
			e.Fail(v, "needs: %s must be a name, not %s", k.Value, yaml.KindOf(v))
		}
		all = append(all, e.readNeed(k.Value, v))
	}
	return all
}

// readNeed returns a need with its place in the file, and with underscores in a module's name. It
// refuses names that its kind cannot have.
func (e *Entry) readNeed(kind string, v *goyaml.Node) need {
	n := need{kind: kind, name: v.Value, at: fmt.Sprintf("%s:%d:%d", e.File, v.Line, v.Column)}
	switch {
	case strings.ContainsRune(n.name, 0) || kind != "check" && strings.HasPrefix(n.name, "-"):
		e.Fail(v, "needs: %q is no name of a %s", n.name, kind)
	case kind == "file" && !strings.HasPrefix(n.name, "/"):
		e.Fail(v, "needs: file %q must be an absolute path", n.name)
	case kind == "module":
		n.name = moduleName(n.name)
	}
	return n
}

// moduleName returns a kernel module's name with underscores, as /sys/module has it.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// resolveNeeds sets the index of each check that the needs name. It accepts only earlier checks of
// the suite, so that no checks wait for each other. It refuses a name of two checks.
func (l *loader) resolveNeeds(needs []need) error {
	for i, n := range needs {
		if n.kind != "check" {
			continue
		}
		named := func(c Check) bool { return c.key == n.name || c.Name == n.name }
		at := slices.IndexFunc(l.checks, named)
		if at < 0 {
			return fmt.Errorf("%s: no check %q stands before the one that needs it", n.at, n.name)
		}
		if slices.ContainsFunc(l.checks[at+1:], named) {
			return fmt.Errorf("%s: two checks are called %q; give the one that is needed a title of its own", n.at, n.name)
		}
		needs[i].check = at
	}
	return nil
}

// checkNeed returns a Missing error if the board lacks n, which is not of the kind check.
func (s *Session) checkNeed(ctx context.Context, n need) error {
	kind := needKinds[n.kind]
	r, err := s.Board.Run(ctx, "sh", "-c", kind.script, "sh", n.name)
	if err != nil {
		return fmt.Errorf("ask for what the check needs: %w", err)
	}
	if r.Status == 0 {
		return nil
	}
	return Missing("the board lacks what it needs: " + fmt.Sprintf(kind.lacks, n.name))
}

// RequireProgram returns a Missing error if the board has no such program.
func (s *Session) RequireProgram(ctx context.Context, program string) error {
	return s.checkNeed(ctx, need{kind: "command", name: program})
}
