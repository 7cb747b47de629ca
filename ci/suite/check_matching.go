package suite

import (
	"context"
	"fmt"

	"slipway/ci/suite/match"
)

// matching compares a value in the suite with a matcher. It does not use the board. goss
// files have it, mostly with values from templates.
type matching struct {
	content any
	matches match.Matcher
}

func readMatching(e *Entry) Probe {
	m, t := matching{}, match.Any
	n := e.Fields["content"]
	if n == nil {
		e.Fail(e.Key, "a matching needs content and matches")
		return m
	}
	if err := n.Decode(&m.content); err != nil {
		e.Fail(n, "content: %v", err)
	}
	if IsTrue(e.Flag("as-reader")) { // as if a command had printed it
		m.content, t = fmt.Sprint(m.content), match.Text
	}
	if m.matches = e.Matcher("matches", t); m.matches.Empty() {
		e.Fail(e.Key, "a matching needs content and matches")
	}
	return m
}

func (m matching) Inspect(context.Context, *Session) (Finding, error) {
	var f Finding
	f.ExpectMatch("content", m.matches, m.content, quoteOutput([]byte(match.TextOf(m.content))))
	return f, nil
}

func (m matching) Next() string {
	return "change the suite: it compares a value of its own with this matcher"
}
