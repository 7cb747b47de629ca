package report

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"slipway/ci/report/junit"
	"slipway/layers/plaintext"
)

// The elements of the JUnit schema that CI systems share.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name       string          `xml:"name,attr"`
		Tests      int             `xml:"tests,attr"`
		Failures   int             `xml:"failures,attr"`
		Errors     int             `xml:"errors,attr"`
		Skipped    int             `xml:"skipped,attr"`
		Time       string          `xml:"time,attr"`
		Timestamp  string          `xml:"timestamp,attr"`
		Hostname   string          `xml:"hostname,attr"`
		Properties []junitProperty `xml:"properties>property"`
		Cases      []junitCase     `xml:"testcase"`
		SystemOut  string          `xml:"system-out,omitempty"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		Name      string        `xml:"name,attr"`
		ClassName string        `xml:"classname,attr"`
		Time      string        `xml:"time,attr"`
		Skipped   *junitMessage `xml:"skipped"`
		Failure   *junitMessage `xml:"failure"`
		SystemOut string        `xml:"system-out,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// renderJUnit renders the stages of each report as one test suite, and each suite as
// its own.
func renderJUnit(all []Report) ([]byte, error) {
	doc := junitSuites{Name: "slipway"}
	var elapsedMS int64
	for _, r := range all {
		elapsedMS += r.ElapsedMS
		for _, s := range r.junitSuites() {
			if len(all) > 1 {
				s.prefixLabel(r.boardLabel())
			}
			doc.addSuite(s)
		}
	}
	if len(all) == 1 {
		doc.Name += " " + all[0].Board
	}
	doc.Time = junit.Seconds(elapsedMS)
	return doc.Encode()
}

// JUnit renders one suite of cases that belongs to no report, such as the boards of a
// fleet.
func JUnit(board, suite string, started time.Time, elapsedMS int64, cases []CheckResult) ([]byte, error) {
	s := Report{Board: board, Started: started, Host: thisHost()}.newJUnitSuite(suite, elapsedMS)
	for _, c := range cases {
		s.addCase(junitCase{Name: c.Name, ClassName: board + "." + suite, Time: junitSeconds(c.ElapsedMS)}, c)
	}
	doc := junitSuites{Name: "slipway " + board, Time: s.Time}
	doc.addSuite(s)
	return doc.encode()
}

func (r Report) junitSuites() []junit.Suite {
	var all []junit.Suite
	if len(r.Stages) > 0 {
		all = append(all, r.junitStages())
	}
	for _, s := range r.Suites {
		all = append(all, r.junitSuite(s))
	}
	// The logs belong to the run, not to one of its suites; the schema has a place
	// for them in a suite only.
	if n := len(all); n > 0 {
		all[n-1].SystemOut = r.logText()
	}
	return all
}

// prefixLabel tells a board's suite from the same one of other boards. CI servers make
// folders of the dots in a class's name, which addresses have too.
func (s *junitSuite) prefixLabel(label string) {
	s.Name = label + " " + s.Name
	for i := range s.Cases {
		s.Cases[i].ClassName = strings.ReplaceAll(label, ".", "-") + "." + s.Cases[i].ClassName
	}
}

func (r Report) newJUnitSuite(name string, elapsedMS int64) junit.Suite {
	return junit.Suite{
		Name: name, Time: junit.Seconds(elapsedMS),
		Timestamp: r.Started.UTC().Format("2006-01-02T15:04:05"), Hostname: cmp.Or(r.Host.Name, "unknown"),
		Properties: r.junitProperties(),
	}
}

func (r Report) junitProperties() []junit.Property {
	properties := []junit.Property{{Name: "board", Value: r.Board}}
	if r.Target != "" {
		properties = append(properties, junit.Property{Name: "reached-as", Value: r.Target})
	}
	for _, fact := range r.Identity.Facts() {
		properties = append(properties, junit.Property{Name: strings.ReplaceAll(strings.ToLower(fact.Name), " ", "-"), Value: fact.Value})
	}
	return properties
}

func (r Report) junitStages() junit.Suite {
	var total int64
	for _, s := range r.Stages {
		total += s.ElapsedMS
	}
	suite := r.newJUnitSuite("stages", total)
	for _, s := range r.Stages {
		suite.addCase(junitCase{Name: s.Name, ClassName: r.Board + ".stages", Time: junitSeconds(s.ElapsedMS)},
			CheckResult{Status: s.Status, Kind: "stage", Saw: s.Saw, Next: s.Next})
	}
	return suite
}

func (r Report) junitSuite(s SuiteResult) junit.Suite {
	suite := r.newJUnitSuite(s.Name, s.ElapsedMS)
	if proved := s.proofList(); proved != "" { // the schema has no properties of a case
		suite.Properties = append(suite.Properties, junitProperty{"proves", proved})
	}
	for _, c := range s.Checks {
		suite.addCase(junitCase{Name: c.Name, ClassName: r.Board + "." + s.Name, Time: junitSeconds(c.ElapsedMS)}, c)
	}
	return suite
}

func (s *junitSuite) addCase(c junitCase, result CheckResult) {
	s.Tests++
	switch result.Status {
	case Failed:
		s.Failures++
		c.Failure = &junitMessage{Message: plaintext.FirstLine(result.Saw), Type: result.Kind, Text: explainResult(result)}
	case Skipped:
		c.Skipped = &junit.Message{Message: result.Saw}
	default:
		c.SystemOut = strings.TrimSpace(result.Saw + "\n" + proofs[result.Proves])
	}
	return c
}

func explainResult(c CheckResult) string {
	text := "saw:  " + c.Saw
	if c.Want != "" {
		text += "\nwant: " + c.Want
	}
	if c.Next != "" {
		text += "\nnext: " + c.Next
	}
	return text
}

func (s *junitSuites) addSuite(suite junitSuite) {
	s.Tests += suite.Tests
	s.Failures += suite.Failures
	s.Skipped += suite.Skipped
	s.Suites = append(s.Suites, suite)
}

func (r Report) logText() string {
	var b strings.Builder
	for _, l := range r.Logs {
		fmt.Fprintf(&b, "== %s\n%s\n", l.Name, l.Text)
	}
	return b.String()
}
