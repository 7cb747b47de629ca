package ci

import (
	"context"
	"strings"

	"go.yaml.in/yaml/v4"
)

// matching holds a value of the suite itself against a matcher; it asks the board
// nothing. goss files use it, mostly with values of their own making.
type matching struct {
	content string
	matches matcher
}

func readMatching(e *entry) probe {
	m, t := matching{}, stringValue
	switch n := e.fields["content"]; {
	case n == nil:
		e.fail(e.key, "a matching needs content and matches")
	case n.Kind == yaml.SequenceNode:
		m.content, t = strings.Join(e.list("content"), "\n"), listValue
	default:
		m.content = e.text("content", "")
	}
	if m.matches = e.matcher("matches", t); m.matches.empty() {
		e.fail(e.key, "a matching needs content and matches")
	}
	return m
}

func (m matching) run(context.Context, *session) (finding, error) {
	var f finding
	f.match("content", m.matches, m.content, quoteOutput([]byte(m.content)))
	return f, nil
}

func (m matching) next() string { return "mend the suite: it holds a value of its own against this" }
