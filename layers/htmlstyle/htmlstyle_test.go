package htmlstyle_test

import (
	"bytes"
	"html/template"
	"strings"
	"testing"

	"slipway/layers/htmlstyle"
	"slipway/layers/htmlstyle/pagetest"
)

// A template takes the style as it is, and a page of it needs nothing else.
func TestStyle(t *testing.T) {
	page := template.Must(template.New("").Parse(`<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"><style>{{.}}</style><body>`))
	var b bytes.Buffer
	if err := page.Execute(&b, htmlstyle.CSS); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "<style>"+string(htmlstyle.CSS)+"</style>") {
		t.Errorf("the page is %q; want the style as it is", b.String())
	}
	pagetest.Check(t, b.String())
}
