package report

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Finding is a fault in a line of a file.
type Finding struct {
	File string // "" if only the text is known
	Line int
	Text string
	Info bool // a person completes the line; it is no error
}

// place matches a line of an error that begins with FILE:LINE: or FILE:LINE:COLUMN:.
var place = plaintext.Regexp(`^([^\s:"]+\.[a-z]+):([1-9][0-9]{0,6}):(?:[0-9]{1,7}:)? ?(.*)`)

const maxFindings = 100

// FindingsIn returns a finding for each line of an error's text that names a line of a file, at
// most maxFindings. If there is none, the whole text is one finding.
func FindingsIn(text string) (all []Finding) {
	for _, line := range plaintext.Lines(text) {
		found := place().FindStringSubmatch(line)
		if found == nil || len(all) == maxFindings {
			continue
		}
		number, _ := strconv.Atoi(found[2]) // only digits
		all = append(all, Finding{File: localfile.Shorten(found[1]), Line: number, Text: plaintext.OneLine(found[3])})
	}
	if len(all) == 0 {
		all = []Finding{{Text: plaintext.CleanTail(text, maxTextBytes)}}
	}
	return all
}

// Escapes in the workflow commands of GitHub.
var (
	ofMessage  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	ofProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// Annotate prints findings as workflow commands, which GitHub shows beside their lines. If GitHub
// does not run this process, it prints nothing.
func Annotate(w io.Writer, title string, all ...Finding) {
	if os.Getenv("GITHUB_ACTIONS") != "true" {
		return
	}
	for _, f := range all {
		at := ""
		if f.File != "" {
			at = fmt.Sprintf("file=%s,line=%d,", ofProperty.Replace(f.File), f.Line)
		}
		fmt.Fprintf(w, "::%s %stitle=%s::%s\n", plaintext.Either(f.Info, "notice", "error"), at, ofProperty.Replace(plaintext.OneLine(title)), ofMessage.Replace(f.Text))
	}
}

// quality is a finding in GitLab's code quality format, which is that of Code Climate.
type quality struct {
	Description string   `json:"description"`
	Check       string   `json:"check_name"`
	Fingerprint string   `json:"fingerprint"`
	Severity    string   `json:"severity"`
	Location    location `json:"location"`
}

type location struct {
	Path  string `json:"path"`
	Lines struct {
		Begin int `json:"begin"`
	} `json:"lines"`
}

// WriteQuality writes findings as a GitLab code quality report, each one once. A finding without a
// file gets the path in otherwise. Each has its own fingerprint, because GitLab hides equal ones.
func WriteQuality(w io.Writer, check, otherwise string, all []Finding) error {
	out, times := []quality{}, map[string]int{}
	for i, f := range all {
		if slices.Contains(all[:i], f) {
			continue
		}
		q := quality{Description: f.Text, Check: check, Severity: plaintext.Either(f.Info, "info", "major")}
		q.Location.Path, q.Location.Lines.Begin = cmp.Or(f.File, otherwise), max(f.Line, 1)
		key := q.Location.Path + "\x00" + q.Description
		q.Fingerprint = fmt.Sprintf("%x", sha256.Sum256([]byte(key+strings.Repeat("\x00", times[key]))))
		times[key]++
		out = append(out, q)
	}
	return plaintext.WriteJSON(w, out)
}
