package source

import (
	"encoding/xml"
	"time"

	"github.com/google/renameio/v2"
)

// The elements of JUnit XML, as far as CI servers agree on them.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Seconds  float64      `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Seconds  float64     `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string     `xml:"classname,attr"`
		Name    string     `xml:"name,attr"`
		Seconds float64    `xml:"time,attr"`
		Failure *junitNote `xml:"failure"`
		Skipped *junitNote `xml:"skipped"`
	}
	junitNote struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

func writeJUnit(path string, r *testResults) error {
	data, err := xml.MarshalIndent(junit(r), "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append([]byte(xml.Header), append(data, '\n')...), 0o644)
}

func junit(r *testResults) junitSuites {
	all := junitSuites{Seconds: time.Since(r.began).Seconds()}
	suites := map[*packageResult]int{}
	for _, c := range r.cases() {
		i, ok := suites[c.pkg]
		if !ok {
			i = len(all.Suites)
			suites[c.pkg] = i
			all.Suites = append(all.Suites, junitSuite{Name: c.pkg.path, Seconds: c.pkg.elapsed.Seconds()})
		}
		all.Suites[i].add(c)
	}
	for _, s := range all.Suites {
		all.Tests += s.Tests
		all.Failures += s.Failures
		all.Skipped += s.Skipped
	}
	return all
}

func (s *junitSuite) add(c caseResult) {
	element := junitCase{Class: c.pkg.path, Name: c.name, Seconds: c.elapsed.Seconds()}
	if c.name == "" {
		element.Name = "(package)"
	}
	s.Tests++
	switch c.state {
	case failed:
		s.Failures++
		element.Failure = &junitNote{Message: "failed", Text: c.output.String()}
	case skipped:
		s.Skipped++
		element.Skipped = &junitNote{Message: c.reason()}
	}
	s.Cases = append(s.Cases, element)
}
