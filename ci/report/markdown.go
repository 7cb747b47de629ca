package report

import (
	"fmt"
	"strings"
)

// maxMarked is how many failures a summary shows.
const maxMarked = 20

// CausesMarkdown returns a summary of several boards for CI, with the first maxMarked causes.
func CausesMarkdown(title string, causes []Cause) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n", markdownCell(title))
	for _, c := range causes[:min(len(causes), maxMarked)] {
		fmt.Fprintf(&b, "**%s** (%s, such as %s)\n\n", markdownCell(strings.TrimPrefix(c.Where+": "+c.Name, ": ")), Boards(len(c.Boards)), markdownCell(c.Boards[0].Board))
		b.WriteString(markdownBlock(c.lines("")) + "\n")
	}
	if more := len(causes) - maxMarked; more > 0 {
		fmt.Fprintf(&b, "%d more causes are in the report.\n\n", more)
	}
	return b.String()
}

// Markdown returns a run's summary for CI: counts, the first maxMarked failures with next steps.
func (r Report) Markdown() string {
	r = r.Tidy()
	var b strings.Builder
	fmt.Fprintf(&b, "### %s: %s\n\n", markdownCell(r.Board), markdownCell(r.headline()))
	failures := r.Failures()
	for _, f := range failures[:min(len(failures), maxMarked)] {
		fmt.Fprintf(&b, "**%s: %s**\n\n", markdownCell(f.Where), markdownCell(f.Name))
		b.WriteString(markdownBlock(f.lines("")) + "\n")
	}
	if more := len(failures) - maxMarked; more > 0 {
		fmt.Fprintf(&b, "%d more failures are in the report.\n\n", more)
	}
	n := r.Counts()
	fmt.Fprintf(&b, "In %s. Stages: %s. Checks: %s.\n", formatMS(r.ElapsedMS), CountWords(n.Stages), CountWords(n.Checks))
	return b.String()
}
