package ci

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"slipway/ci/suite"
	"slipway/ci/suite/suitetest"
)

// Each example of the page about suites loads as a suite, and the page has a heading and an
// example for each section.
func TestSuitesPage(t *testing.T) {
	page, err := os.ReadFile("suites.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		loaded, err := suite.Load(suitetest.WriteSuite(t, map[string]string{"main.yml": block[1]}))
		if err != nil {
			t.Errorf("%v in\n%s", err, block[1])
		}
		for _, c := range loaded.Checks {
			shown[c.Kind] = true
		}
	}
	heads := strings.Join(regexp.MustCompile(`(?m)^### .*`).FindAllString(string(page), -1), "\n")
	for _, k := range suite.Kinds() {
		if !shown[k.Name] || !regexp.MustCompile(`[ ]`+k.Name+`(,|$|\n)`).MatchString(heads) {
			t.Errorf("section %s: example %v, headings:\n%s", k.Name, shown[k.Name], heads)
		}
	}
	for _, key := range []string{"title", "meta", "timeout", "skip", "retries", "pause", "needs", "teardown", "alone"} {
		if !strings.Contains(string(page), key) {
			t.Errorf("the page lacks %s", key)
		}
	}
}

func TestOwnSuitesLoad(t *testing.T) {
	for _, name := range []string{"base", "bluefield", "dpu", "jetson", "rig", "slots", "containers", "dpu-flow"} {
		if !slices.Contains(suite.Names(), name) {
			t.Errorf("Names() = %v; want also %s", suite.Names(), name)
		}
	}
	for _, name := range suite.Names() {
		loaded, err := suite.Load(name)
		if err != nil {
			t.Errorf("Load(%q): %v", name, err)
		}
		for _, c := range loaded.Checks {
			if c.Next == "" {
				t.Errorf("suite %s, check %q: no next step", name, c.Name)
			}
		}
	}
}
