// Package htmlstyle has the style of the pages that Slipway writes. A page adds its own
// rules below it. The style names no other file.
package htmlstyle

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
)

// CSS is for light and dark, for phones and for paper.
//
//go:embed page.css
var CSS template.CSS

// TableScript filters and sorts the table of a page.
//
//go:embed table.js
var TableScript template.JS

// TablePolicy returns the meta element for a page's head that allows no script but TableScript.
func TablePolicy() template.HTML {
	sum := sha256.Sum256([]byte(TableScript))
	return template.HTML(`<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-` + base64.StdEncoding.EncodeToString(sum[:]) + `'">`)
}
