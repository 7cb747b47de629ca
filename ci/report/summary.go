package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"slipway/layers/plaintext"
)

const (
	// SummaryVariable is the environment variable with the summary's file. GitHub has its own.
	SummaryVariable = "SLIPWAY_SUMMARY"
	gitHubSummary   = "GITHUB_STEP_SUMMARY"
)

// maxTextBytes limits one text in a summary. GitHub allows 1 MiB for a step.
const maxTextBytes = 64 << 10

// AddSummary appends Markdown to the CI server's summary file. Without one it makes no text.
func AddSummary(markdown func() string) error {
	path := cmp.Or(os.Getenv(SummaryVariable), os.Getenv(gitHubSummary))
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	_, err = io.WriteString(f, markdown()+"\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	return nil
}

// ShowFailed adds a failed command to the CI server's summary, and prints annotations to w on
// GitHub. step is the next step, or "".
func ShowFailed(w io.Writer, command, cause, step string) error {
	text := "### " + markdownCell(command) + " failed\n\n" + markdownBlock(cause)
	if step != "" {
		text += "\nNext:\n\n" + markdownBlock(step)
	}
	Annotate(w, command, FindingsIn(cause)...)
	return AddSummary(func() string { return text })
}

// markdownBlock returns the last maxTextBytes of a text as a code block of Markdown.
func markdownBlock(text string) string {
	text = strings.TrimRight(plaintext.CleanTail(text, maxTextBytes), "\n")
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + "\n" + text + "\n" + fence + "\n"
}

// markup escapes the characters that have a meaning in Markdown, or in HTML in Markdown.
var markup = strings.NewReplacer(
	`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "|", `\|`, "~", `\~`, "#", `\#`, "!", `\!`,
	"<", "&lt;", ">", "&gt;", "&", "&amp;", "@", "&#64;", "://", ":&#47;/",
)

// markdownCell returns a text as one escaped line of Markdown, which is also valid in a table.
func markdownCell(text string) string { return markup.Replace(plaintext.OneLine(text)) }

// MarkdownTable returns rows of plain text as a Markdown table. The first row is the header.
func MarkdownTable(rows ...[]string) string {
	var b strings.Builder
	for i, row := range rows {
		for _, cell := range row {
			b.WriteString("| " + markdownCell(cell) + " ")
		}
		b.WriteString("|\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return b.String()
}
