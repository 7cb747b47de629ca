package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"slipway/layers/plaintext"
)

var sectionPattern = plaintext.Regexp(`^\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?$`)

// iniReader parses an INI inventory with sections [group], [group:vars] and [group:children].
type iniReader struct {
	*Inventory
	group   *group
	kind    string         // of the section: hosts, vars or children
	defined map[string]int // groups with a section [group] or [group:children]
	named   map[string]int // groups that other sections name, with the line
}

// readINI adds an INI inventory's groups and hosts. A group needs [group] or [group:children].
func (inv *Inventory) readINI(data []byte) error {
	r := &iniReader{
		Inventory: inv, group: inv.groups[ungrouped], kind: "hosts",
		defined: map[string]int{allGroup: 0, ungrouped: 0}, named: map[string]int{},
	}
	line := 0
	for text := range strings.Lines(string(data)) {
		line++
		text = strings.TrimSpace(text)
		if text == "" || text[0] == '#' || text[0] == ';' {
			continue
		}
		if err := r.readLine(text, line); err != nil {
			return err
		}
	}
	for _, name := range inv.order {
		if _, ok := r.defined[name]; !ok {
			return inv.errorAt(r.named[name], "there is no group %q: write a section [%s]", name, name)
		}
	}
	return nil
}

// readLine reads the header of a section, or a line of the current section.
func (r *iniReader) readLine(text string, line int) error {
	switch {
	case text[0] == '[' && sectionPattern().MatchString(text):
		return r.readSection(text, line)
	case r.kind == "hosts":
		return r.readHosts(text, line)
	case r.kind == "vars":
		return r.readVariable(text, line)
	}
	return r.readChild(text, line)
}

// readSection begins a section [group], [group:vars] or [group:children], and creates its group.
func (r *iniReader) readSection(text string, line int) (err error) {
	m := sectionPattern().FindStringSubmatch(text)
	r.kind = cmp.Or(m[2], "hosts")
	if r.group, err = r.Inventory.ensureGroup(m[1], line); err != nil {
		return err
	}
	switch r.kind {
	case "hosts", "children":
		r.defined[m[1]] = line
	case "vars":
		r.named[m[1]] = line
	default:
		return r.errorAt(line, "section [%s:%s]: unknown kind (have %[2]s:vars, %[2]s:children)", m[1], m[2], m[1])
	}
	return nil
}

// readHosts adds the hosts of a line to the current group: a name, which may have ranges, and
// variables. It skips variables that Slipway does not know.
func (r *iniReader) readHosts(text string, line int) error {
	tokens, err := shellWords(text)
	if err != nil {
		return r.errorAt(line, "%w", err)
	}
	if len(tokens) == 0 {
		return nil
	}
	names, port, err := expandHosts(tokens[0])
	if err != nil {
		return r.errorAt(line, "host %w", err)
	}
	vars := map[string]variable{}
	for _, token := range tokens[1:] {
		key, value, ok := strings.Cut(token, "=")
		if !ok {
			return r.errorAt(line, "%q is no variable; want name=value, in quotes if it has blanks", oneLine(token))
		}
		if isKnownVariable(key) {
			vars[key] = iniVariable(value, line)
		}
	}
	return r.addHosts(r.group, names, port, vars, line)
}

// readVariable reads NAME=VALUE into the current group, if Slipway knows the variable.
func (r *iniReader) readVariable(text string, line int) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return r.errorAt(line, "%q is no variable; want name=value", oneLine(text))
	}
	if key = strings.TrimSpace(key); isKnownVariable(key) {
		r.group.vars[key] = iniVariable(strings.TrimSpace(value), line)
	}
	return nil
}

// readChild makes the group that a line names a child of the current group.
func (r *iniReader) readChild(text string, line int) error {
	name := strings.TrimSpace(strings.SplitN(text, " #", 2)[0])
	child, err := r.Inventory.ensureGroup(name, line)
	if err != nil {
		return err
	}
	if _, ok := r.named[name]; !ok {
		r.named[name] = line
	}
	return r.addChild(r.group, child, line)
}

// iniVariable parses a value as Ansible does, and removes quotes around it. None becomes null. It
// sets problem for a template, True, False, a comment, or quotes within the value.
func iniVariable(value string, line int) variable {
	v := variable{value: value, line: line, problem: templateProblem(value)}
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') {
		v.value = value[1 : n-1]
		if value[n-1] != value[0] || strings.ContainsAny(v.value, `\'"`) {
			v.problem = "its quotes are not simply around it"
		}
		return v
	}
	switch {
	case value == "None":
		v.null = true
	case value == "True" || value == "False":
		v.problem = "is true or false to Ansible; put it in quotes"
	case strings.Contains(value, " #"):
		v.problem = "a comment after a value is a part of it to Ansible; give it a line of its own"
	}
	return v
}

// shellWords splits a line into words as a shell does, with quotes, backslashes and a comment at
// the end. It expands no variables or wildcards. It refuses an open quote and over 1000 words.
func shellWords(line string) (words []string, err error) {
	var word strings.Builder
	var quote rune
	started, escaped := false, false
	end := func() {
		if started {
			words = append(words, word.String())
		}
		word.Reset()
		started = false
	}
	for _, r := range line {
		switch {
		case escaped:
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteRune('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, started = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, started = r, true
		case r == '#' && !started:
			end()
			return words, nil
		case r == ' ' || r == '\t':
			end()
		default:
			word.WriteRune(r)
			started = true
		}
	}
	end()
	if quote != 0 || escaped {
		return nil, errors.New("a quote is not closed")
	}
	if len(words) > 1000 {
		return nil, fmt.Errorf("%d words in one line", len(words))
	}
	return words, nil
}
