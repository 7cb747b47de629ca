// Package htmlstyle has the style of the pages that Slipway writes. A page adds its own
// rules below it. The style names no other file.
package htmlstyle

import (
	_ "embed"
	"html/template"
)

// CSS is for light and dark, for phones and for paper.
//
//go:embed page.css
var CSS template.CSS
