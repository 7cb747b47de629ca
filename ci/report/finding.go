package report

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"slipway/layers/plaintext"
)

// Finding is what is wrong with a line of a file.
type Finding struct {
	File string // "" if only the text is known
	Line int
	Text string
	Info bool // a person completes the line; it is no error
}

// place is how an error names a line: FILE:LINE: or FILE:LINE:COLUMN:.
var place = plaintext.Regexp(`^([^\s:"]+\.[a-z]+):([1-9][0-9]{0,6}):(?:[0-9]{1,7}:)? ?(.*)`)

const maxFindings = 100

// FindingsIn returns the lines of an error that name a line of a file. An error without such
// lines is one finding.
func FindingsIn(text string) (all []Finding) {
	for _, line := range plaintext.Lines(text) {
		found := place().FindStringSubmatch(line)
		if found == nil || len(all) == maxFindings {
			continue
		}
		number, _ := strconv.Atoi(found[2]) // only digits
		all = append(all, Finding{File: fromHere(found[1]), Line: number, Text: plaintext.OneLine(found[3])})
	}
	if len(all) == 0 {
		all = []Finding{{Text: plaintext.CleanTail(text, maxTextBytes)}}
	}
	return all
}

// fromHere returns a path from the current folder, where servers look files up.
func fromHere(path string) string {
	here, err := os.Getwd()
	if err != nil || !filepath.IsAbs(path) {
		return path
	}
	if short, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(short) {
		return short
	}
	return path
}

// Escapes in the workflow commands of GitHub.
var (
	ofMessage  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	ofProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// Annotate prints findings for GitHub, which shows them beside their lines. Elsewhere it prints
// nothing.
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

// quality is a finding in GitLab's form of Code Climate's.
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

// WriteQuality writes findings as GitLab's report codequality has them. One without a file gets
// the file of otherwise. GitLab shows one of several with the same fingerprint.
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
