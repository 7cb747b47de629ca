package bitbake

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
	"sync"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// knownFailure is a failure that bitbake or a compiler describes in fixed words.
type knownFailure struct {
	words     *regexp.Regexp
	why, next string
}

//go:embed knownfailures.txt
var failureText string

// knownFailures are the failures of knownfailures.txt, in its order.
var knownFailures = sync.OnceValue(func() (all []knownFailure) {
	for entry := range strings.SplitSeq(strings.TrimSpace(failureText), "\n\n") {
		if lines := strings.Split(entry, "\n"); !strings.HasPrefix(entry, "#") {
			all = append(all, knownFailure{regexp.MustCompile(lines[0]), lines[1], lines[2]})
		}
	}
	return all
})

// explainKnownFailure returns cause and next step of the first known failure in the text, or "".
func explainKnownFailure(text string) (why, next string) {
	for _, k := range knownFailures() {
		if m := k.words.FindStringSubmatchIndex(text); m != nil {
			why := string(k.words.ExpandString(nil, k.why, text, m))
			next := string(k.words.ExpandString(nil, k.next, text, m))
			return truncateText(why, maxText), truncateText(next, maxText)
		}
	}
	return "", ""
}

const tailLines = 15

// logTail returns the last 15 lines of a log that bitbake names, printable and without sbuild's
// statistics, "" if it is unreadable.
func logTail(path string) string {
	text := string(localfile.Tail(path, maxTail))
	lines := strings.Split(strings.TrimRight(plaintext.Printable(plaintext.WithoutEscapes(strings.ToValidUTF8(text, "\uFFFD"))), "\n"), "\n")
	lines = cutSummary(lines)
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// cutSummary drops sbuild's hundred lines of statistics after dpkg-buildpackage's last error.
func cutSummary(lines []string) []string {
	for i, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "dpkg-buildpackage: error:") {
			return lines[:i+1]
		}
	}
	return lines
}
