package suite

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"slipway/layers/plaintext"
)

// Show writes the suites that Slipway brings along, and what a suite can ask.
func Show(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SUITE\tWHAT IT PROVES")
	for _, name := range Names() {
		text, err := embedded.ReadFile("suites/" + name + ".yml")
		if err != nil {
			return err
		}
		fmt.Fprintf(tw, "%s\t%s\n", name, firstSentence(string(text)))
	}
	fmt.Fprintln(tw, "\nSECTION\tWHAT IT ASKS A BOARD")
	for _, k := range kinds {
		fmt.Fprintf(tw, "%s\t%s\n", k.Name, k.About)
	}
	fmt.Fprintln(tw, "gossfile\tnothing; it includes other suites")
	fmt.Fprintln(tw, "\nEach section with an example: ci/suites.md")
	return tw.Flush()
}

// firstSentence is that of the comment at the top of a suite.
func firstSentence(text string) string {
	var words []string
	for _, line := range plaintext.Lines(text) {
		rest, ok := strings.CutPrefix(line, "#")
		if !ok {
			break
		}
		words = append(words, strings.Fields(rest)...)
		if end := words[len(words)-1]; strings.HasSuffix(end, "?") {
			break
		}
	}
	sentence, _, _ := strings.Cut(strings.Join(words, " "), ". ")
	question, _, asks := strings.Cut(sentence, "? ")
	return plaintext.Either(asks, question+"?", strings.TrimSuffix(sentence, "."))
}
