package suite

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"slipway/ci/suite/suitetest"
)

// Each example of the page that describes suites is a suite, and each section has
// its place and an example there.
func TestSuitesPage(t *testing.T) {
	page, err := os.ReadFile("suites.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		suite, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": block[1]}))
		if err != nil {
			t.Errorf("%v in\n%s", err, block[1])
		}
		for _, c := range suite.Checks {
			shown[c.Kind] = true
		}
	}
	heads := strings.Join(regexp.MustCompile(`(?m)^### .*`).FindAllString(string(page), -1), "\n")
	for _, k := range kinds {
		if !shown[k.Name] || !regexp.MustCompile(`[ ]`+k.Name+`(,|$|\n)`).MatchString(heads) {
			t.Errorf("section %s: example %v, headings:\n%s", k.Name, shown[k.Name], heads)
		}
	}
	for _, key := range commonKeys {
		if !strings.Contains(string(page), key) {
			t.Errorf("the page lacks %s", key)
		}
	}
}

func TestShowSuites(t *testing.T) {
	var out strings.Builder
	if err := Show(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"base ", "slots ", "kernel-param  a value below /proc/sys", "ci/suites.md"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("ShowSuites lacks %q:\n%s", want, out.String())
		}
	}
}
