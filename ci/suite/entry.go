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

// parseYAML returns the mapping in a suite's file.
func parseYAML(file string, data []byte) (*goyaml.Node, error) {
	if line, column := findTemplate(data); line > 0 {
		return nil, fmt.Errorf("%s:%d:%d: goss's templates ({{ }}) are not filled in here; write the values out", file, line, column)
	}
	return yaml.ParseMapping(file, data, "a suite is a mapping of sections ("+strings.Join(kindNames(), ", ")+")")
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
	*yaml.Entry
	Limit time.Duration // the kind's default timeout; 0: DefaultTimeout

	programs programs
}

// Bool returns the attribute, which is true or false, or otherwise if the entry has none.
func (e *Entry) Bool(key string, otherwise bool) bool {
	if set := e.Flag(key); set != nil {
		return *set
	}
	return otherwise
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

func newEntry(file, kind string, keys []string, key, value *goyaml.Node) (*Entry, error) {
	if value.Kind == goyaml.MappingNode {
		for k := range yaml.Pairs(value) {
			if why, ok := unsupportedKeys[kind+" "+k.Value]; ok {
				return nil, yaml.At(file, k, "goss's %s of a %s cannot be asked over SSH: %s", k.Value, kind, why)
			}
		}
	}
	e, err := yaml.NewEntry(file, kind, keys, key, value)
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

func (e *Entry) readTeardownCommand(n *goyaml.Node) []string {
	one := &yaml.Entry{File: e.File, Fields: map[string]*goyaml.Node{"teardown": n}}
	var argv []string
	if n.Kind == goyaml.SequenceNode {
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
	if n.Kind != goyaml.MappingNode {
		e.Fail(n, "meta must be a mapping (title, next), not %s", yaml.KindOf(n))
		return title, ""
	}
	m := &yaml.Entry{File: e.File, Fields: map[string]*goyaml.Node{}}
	for k, v := range yaml.Pairs(n) {
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

// need is a condition of a check: something on the board, or another check that passed.
// Without it the check is skipped.
type need struct {
	kind, name string
	at         string // FILE:LINE:COLUMN in the suite
	check      int    // index of the check, for the kind "check"
}

// needKinds are the kinds of needs. The scripts test a need on the board. $1 is the name.
var needKinds = map[string]string{
	"file":    `test -e "$1"`,
	"command": `command -v "$1"`,
	"module":  `test -d "/sys/module/$1"`,
	"service": `systemctl cat "$1"`,
	"check":   "",
}

// needTexts describe a board without a need.
var needTexts = map[string]string{
	"file":    "it has no %s",
	"command": "it has no program %s",
	"module":  "its kernel has no module %s loaded or built in",
	"service": "it has no unit %s",
}

// readNeeds reads a mapping like {file: /dev/x}, or a list of such mappings.
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

// moduleName returns a module's name as the kernel writes it.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// resolveNeeds finds the checks that a check needs. They must come before it, so that no
// check waits for itself.
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

// explainMissing returns why a need is not met on the board, or "". It tests each need once
// in a session.
func (s *Session) explainMissing(ctx context.Context, n need) (string, error) {
	n.at, n.check = "", 0
	s.mu.Lock()
	has, known := s.knownNeeds[n]
	s.mu.Unlock()
	if !known {
		r, err := s.Board.Run(ctx, "sh", "-c", needKinds[n.kind], "sh", n.name)
		if err != nil {
			return "", fmt.Errorf("ask for what the check needs: %w", err)
		}
		has = r.Status == 0
		s.rememberNeed(n, has)
	}
	if has {
		return "", nil
	}
	return "the board lacks what it needs: " + fmt.Sprintf(needTexts[n.kind], n.name), nil
}

func (s *Session) rememberNeed(n need, has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.knownNeeds == nil {
		s.knownNeeds = map[need]bool{}
	}
	s.knownNeeds[n] = has
}

// RequireProgram returns a Missing error if the board has no such program.
func (s *Session) RequireProgram(ctx context.Context, program string) error {
	why, err := s.explainMissing(ctx, need{kind: "command", name: program})
	if err == nil && why != "" {
		err = Missing(why)
	}
	return err
}
