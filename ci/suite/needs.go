package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"slipway/layers/strict"

	"go.yaml.in/yaml/v4"
)

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
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
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

func (e *Entry) readNeedMapping(n *yaml.Node) []need {
	if n.Kind != yaml.MappingNode {
		e.Fail(n, "needs must be like {file: /dev/x} (have check, command, file, module, service), not %s", strict.KindOf(n))
		return nil
	}
	var all []need
	for k, v := range strict.Pairs(n) {
		_, known := needKinds[k.Value]
		switch {
		case !known:
			e.Fail(k, "unknown need %q (have check, command, file, module, service)", k.Value)
		case v.Kind != yaml.ScalarNode || v.Value == "" || v.ShortTag() == "!!null":
			e.Fail(v, "needs: %s must be a name, not %s", k.Value, strict.KindOf(v))
		}
		all = append(all, e.readNeed(k.Value, v))
	}
	return all
}

func (e *Entry) readNeed(kind string, v *yaml.Node) need {
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
