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

// SummaryVariable names the file that gets the summary. GitHub has a variable of its own.
const (
	SummaryVariable = "SLIPWAY_SUMMARY"
	gitHubSummary   = "GITHUB_STEP_SUMMARY"
)

// maxTextBytes is of one text in a summary. GitHub takes 1 MiB of a step.
const maxTextBytes = 64 << 10

func summaryFile() string { return cmp.Or(os.Getenv(SummaryVariable), os.Getenv(gitHubSummary)) }

// AddSummary adds Markdown to the server's summary, if there is one.
func AddSummary(markdown string) error {
	path := summaryFile()
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	_, err = io.WriteString(f, markdown+"\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	return nil
}

// ShowFailed shows why a command failed: in the summary, and as annotations where w is a log of
// GitHub. step is "" where nobody knows the next one.
func ShowFailed(w io.Writer, command, cause, step string) error {
	text := "### " + markdownCell(command) + " failed\n\n" + markdownBlock(cause)
	if step != "" {
		text += "\nNext:\n\n" + markdownBlock(step)
	}
	Annotate(w, command, FindingsIn(cause)...)
	return AddSummary(text)
}

// markdownBlock returns a text that Markdown shows as it is.
func markdownBlock(text string) string {
	text = strings.TrimRight(plaintext.CleanTail(text, maxTextBytes), "\n")
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + "\n" + text + "\n" + fence + "\n"
}

// markup are the characters that Markdown, or HTML in it, gives a meaning.
var markup = strings.NewReplacer(
	`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "|", `\|`, "~", `\~`, "#", `\#`, "!", `\!`,
	"<", "&lt;", ">", "&gt;", "&", "&amp;", "@", "&#64;", "://", ":&#47;/",
)

// markdownCell returns a text as one line of Markdown, also in a table.
func markdownCell(text string) string { return markup.Replace(plaintext.OneLine(text)) }

// MarkdownTable returns a table in Markdown. Its cells are plain text.
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
