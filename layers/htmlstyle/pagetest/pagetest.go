// Package pagetest checks what holds for each page that Slipway writes: it needs no
// network and no script, and nothing in it is wider than the screen of a phone.
package pagetest

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"slipway/layers/lazy"
)

// phonePx is the width of the narrowest screen, less the edges of a page and of a card.
const phonePx = 320 - 2*28

var (
	outside = lazy.Regexp(`(?i)<script|<link|<iframe|<img|<object|@import|url\(|src=|\son[a-z]+=|javascript:|href="(?:[a-z][a-z0-9+.-]*:|/)`)
	width   = lazy.Regexp(`(?:^|[\s{;("])(min-width|width|minmax)(?::\s*|\()(\d*\.?\d+)(px|rem|em)`)
	element = lazy.Regexp(`<(/?)([a-z][a-z0-9]*)([^>]*)>`)
)

// Check checks a page.
func Check(t *testing.T, page string) {
	t.Helper()
	for _, want := range []string{
		`<meta name="viewport" content="width=device-width, initial-scale=1">`,
		`<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">`,
		"prefers-color-scheme: dark",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if found := outside().FindString(page); found != "" {
		t.Errorf("the page has %q; want nothing from outside, and no script", found)
	}
	checkWidths(t, page)
	checkTables(t, page)
}

// checkWidths wants no fixed width that a phone lacks. Rules that hold only on a wide
// screen do not count.
func checkWidths(t *testing.T, page string) {
	t.Helper()
	for _, m := range width().FindAllStringSubmatch(page, -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		px := map[string]float64{"px": 1, "rem": 16, "em": 16}[m[3]] * n
		if err != nil || px > phonePx {
			t.Errorf("%s %s%s needs %.0f px; want at most %d", m[1], m[2], m[3], px, phonePx)
		}
	}
}

// checkTables wants each table of more than four columns in an element of class wide,
// which scrolls.
func checkTables(t *testing.T, page string) {
	t.Helper()
	var open []bool // of each open div: whether it scrolls
	scrolls, table, cells := 0, false, 0
	for _, m := range element().FindAllStringSubmatch(page, -1) {
		switch end, name := m[1] != "", m[2]; {
		case name == "div" && !end:
			wide := strings.Contains(m[3], `class="wide"`)
			if open = append(open, wide); wide {
				scrolls++
			}
		case name == "div" && len(open) > 0:
			if open[len(open)-1] {
				scrolls--
			}
			open = open[:len(open)-1]
		case name == "table":
			table = !end
		case name == "tr":
			cells = 0
		case (name == "td" || name == "th") && table && !end:
			if cells++; cells == 5 && scrolls == 0 {
				t.Errorf("a table of more than 4 columns is in no element of class wide")
				return
			}
		}
	}
}

// Text returns the text of a page, as a person reads it: without its style, with one
// blank between words.
func Text(page string) string {
	_, body, _ := strings.Cut(page, "<body>")
	text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body, " ")
	return strings.Join(strings.Fields(text), " ")
}
