package ci

import (
	"context"
	"fmt"
)

// matching holds a value of the suite itself against a matcher; it asks the board
// nothing. goss files use it, mostly with values of their own making.
type matching struct {
	content any
	matches matcher
}

func readMatching(e *entry) probe {
	m, t := matching{}, anyValue
	n := e.Fields["content"]
	if n == nil {
		e.Fail(e.Key, "a matching needs content and matches")
		return m
	}
	if err := n.Decode(&m.content); err != nil {
		e.Fail(n, "content: %v", err)
	}
	if isTrue(e.Flag("as-reader")) { // as if a command had printed it
		m.content, t = fmt.Sprint(m.content), textValue
	}
	if m.matches = e.matcher("matches", t); m.matches.empty() {
		e.Fail(e.Key, "a matching needs content and matches")
	}
	return m
}

func (m matching) Inspect(context.Context, *session) (finding, error) {
	var f finding
	f.match("content", m.matches, m.content, quoteOutput([]byte(textOf(m.content))))
	return f, nil
}

func (m matching) Next() string {
	return "change the suite: it compares a value of its own with this matcher"
}
