// Package pagetest checks what holds for each page that Slipway writes: it needs no network, it has
// no script but one for its table, and nothing in it is wider than the screen of a phone.
package pagetest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"slipway/layers/htmlstyle"
	"slipway/layers/plaintext"
)

// phonePx is the width of the narrowest screen, less the edges of a page and of a card.
const phonePx = 320 - 2*28

// heads are in each page.
var heads = []string{
	`<meta name="viewport" content="width=device-width, initial-scale=1">`,
	`<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">`,
	"prefers-color-scheme: dark",
	"overflow-wrap: break-word", // a board's words may have no blank
}

var (
	element = plaintext.Regexp(`<(/?)([a-z][a-z0-9]*)([^>]*)>`)
	commit  = plaintext.Regexp(`<a href="https?://[a-z0-9.:-]+/[A-Za-z0-9._~/-]+" rel="noreferrer">`) // followed, not loaded
	outside = plaintext.Regexp(`(?i)<(?:script|link|iframe|img|object|embed|base)\b|@import|url\(|\ssrc=|\son[a-z]+=|href="(?:[a-z][a-z0-9+.-]*:|/)`)
	width   = plaintext.Regexp(`(?:^|[\s{;("])(min-width|width|minmax)(?::\s*|\()(\d*\.?\d+)(px|rem|em)`)
)

// withoutTableScript returns the page without TableScript, its policy replaced by the usual one.
func withoutTableScript(page string) string {
	script, policy := "<script>"+string(htmlstyle.TableScript)+"</script>", string(htmlstyle.TablePolicy())
	if strings.Count(page, script) == 1 && strings.Count(page, policy) == 1 {
		page = strings.Replace(strings.Replace(page, script, "", 1), policy, heads[1], 1)
	}
	return page
}

// Check fails the test for missing heads, content from outside, and parts wider than a phone.
func Check(t *testing.T, page string) {
	t.Helper()
	for _, problem := range findProblems(page) {
		t.Error(problem)
	}
}

// findProblems returns a line for each problem that Check reports.
func findProblems(page string) (all []string) {
	page = commit().ReplaceAllString(withoutTableScript(page), "<a>")
	for _, want := range heads {
		if !strings.Contains(page, want) {
			all = append(all, "the page lacks "+want)
		}
	}
	style, _, _ := strings.Cut(page, "<body>")
	if found := outside().FindString(style + strings.Join(element().FindAllString(page, -1), "")); found != "" {
		all = append(all, fmt.Sprintf("the page has %q; want nothing from outside, and no script", found))
	}
	all = append(all, wideRules(style)...)
	if hasBareTable(page) {
		all = append(all, "a table of more than 4 columns is in no element of class wide, which scrolls")
	}
	return all
}

// wideRules returns a text about each CSS rule whose fixed width is more than a phone's.
func wideRules(style string) (all []string) {
	for _, m := range width().FindAllStringSubmatch(style, -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		if px := n * map[string]float64{"px": 1, "rem": 16, "em": 16}[m[3]]; err != nil || px > phonePx {
			all = append(all, fmt.Sprintf("%s %s%s needs %.0f px; want at most %d", m[1], m[2], m[3], px, phonePx))
		}
	}
	return all
}

// hasBareTable reports whether a table with more than four columns is not in a div of class wide.
func hasBareTable(page string) bool {
	var open []bool // of each open div: whether it scrolls, or one around it
	cells := 0
	for _, m := range element().FindAllStringSubmatch(page, -1) {
		scrolls := len(open) > 0 && open[len(open)-1]
		switch tag := m[1] + m[2]; {
		case tag == "div":
			open = append(open, scrolls || strings.Contains(m[3], `class="wide"`))
		case tag == "/div" && len(open) > 0:
			open = open[:len(open)-1]
		case tag == "tr":
			cells = 0
		case tag == "td", tag == "th":
			if cells++; cells > 4 && !scrolls {
				return true
			}
		}
	}
	return false
}

// Text returns the text of a page's body without markup, with one space between words.
func Text(page string) string {
	_, body, _ := strings.Cut(page, "<body>")
	return strings.Join(strings.Fields(element().ReplaceAllString(body, " ")), " ")
}
