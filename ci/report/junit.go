package report

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"strings"
	"time"

	"slipway/layers/plaintext"
)

// renderJUnit returns a JUnit file. The stages of a report are one of its test suites.
func renderJUnit(all []Report) ([]byte, error) {
	doc := junitFile{Name: "slipway"}
	var elapsedMS int64
	labels := boardLabels(all)
	for i, r := range all {
		elapsedMS += r.ElapsedMS
		for _, s := range r.junitSuites() {
			if len(all) > 1 {
				prefixLabel(&s, labels[i])
			}
			doc.add(s)
		}
	}
	if len(all) == 1 {
		doc.Name += " " + all[0].Board
	}
	doc.Time = junitSeconds(elapsedMS)
	return doc.encode()
}

// JUnit returns a JUnit file with one test suite of the given cases, such as the boards of a fleet.
func JUnit(title, suite string, started time.Time, elapsedMS int64, cases []CheckResult) ([]byte, error) {
	s := Report{Board: title, Started: started, Host: thisHost()}.newJUnitSuite(suite, elapsedMS)
	for _, c := range cases {
		s.add(newJUnitCase(title+"."+suite, c))
	}
	doc := junitFile{Name: "slipway " + title, Time: s.Time}
	doc.add(s)
	return doc.encode()
}

// junitSuites returns the stages and the suites of a report, the last one with the logs.
func (r Report) junitSuites() []junitSuite {
	var all []junitSuite
	for _, s := range r.sections() {
		all = append(all, r.suiteWithChecks(s))
	}
	// The logs belong to the run, but the schema has a place for them only in a suite.
	if n := len(all); n > 0 {
		all[n-1].SystemOut = r.logText()
	}
	return all
}

// prefixLabel puts a board's label before a suite's name and the class names of its cases. In these
// it replaces the label's dots, because CI servers make folders of them.
func prefixLabel(s *junitSuite, label string) {
	s.Name = label + " " + s.Name
	for i := range s.Cases {
		s.Cases[i].ClassName = strings.ReplaceAll(label, ".", "-") + "." + s.Cases[i].ClassName
	}
}

// newJUnitSuite returns a suite without cases, with what is known of the board as properties.
func (r Report) newJUnitSuite(name string, elapsedMS int64) junitSuite {
	suite := junitSuite{
		Name: name, Time: junitSeconds(elapsedMS),
		Timestamp: r.Started.UTC().Format("2006-01-02T15:04:05"), Hostname: cmp.Or(r.Host.Name, "unknown"),
	}
	for _, f := range r.about() {
		suite.Properties = append(suite.Properties, junitProperty{Name: strings.ReplaceAll(f.Name, " ", "-"), Value: f.Value})
	}
	return suite
}

// suiteWithChecks returns a suite with its checks as cases, and what these prove as a property.
func (r Report) suiteWithChecks(s SuiteResult) junitSuite {
	suite := r.newJUnitSuite(s.Name, s.ElapsedMS)
	if proved := s.proofList(); proved != "" { // the schema has no properties of a case
		suite.Properties = append(suite.Properties, junitProperty{Name: "proves", Value: proved})
	}
	for _, c := range s.Checks {
		suite.add(newJUnitCase(r.Board+"."+s.Name, c))
	}
	return suite
}

// newJUnitCase returns a check as test case. What a passed check saw and proves is its system-out.
func newJUnitCase(class string, result CheckResult) junitCase {
	c := junitCase{Name: result.Name, ClassName: class, Time: junitSeconds(result.ElapsedMS)}
	switch result.Status {
	case Failed:
		c.Failure = &junitMessage{Message: plaintext.FirstLine(result.Saw), Type: result.Kind, Text: strings.TrimSuffix(Failure{Saw: result.Saw, Want: result.Want, Next: result.Next}.lines(""), "\n")}
	case Skipped:
		c.Skipped = &junitMessage{Message: result.Saw}
	default:
		c.SystemOut = strings.TrimSpace(result.Saw + "\n" + proofs[result.Proves])
	}
	return c
}

// logText returns the texts of the logs, each after its name.
func (r Report) logText() string {
	var b strings.Builder
	for _, l := range r.Logs {
		fmt.Fprintf(&b, "== %s\n%s\n", l.Name, l.Text)
	}
	return b.String()
}

// junitFile is the root element of a JUnit file.
type junitFile struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Time     string       `xml:"time,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

// junitSuite is a testsuite element: the cases of one suite.
type junitSuite struct {
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Errors     int             `xml:"errors,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Time       string          `xml:"time,attr"`
	Timestamp  string          `xml:"timestamp,attr,omitempty"`
	Hostname   string          `xml:"hostname,attr,omitempty"`
	Properties []junitProperty `xml:"properties>property"`
	Cases      []junitCase     `xml:"testcase"`
	SystemOut  string          `xml:"system-out,omitempty"`
}

// junitProperty is a fact about a suite.
type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

// junitCase is a check or a test. It passed if it was neither skipped nor failed.
type junitCase struct {
	Name      string        `xml:"name,attr"`
	ClassName string        `xml:"classname,attr"`
	Time      string        `xml:"time,attr"`
	Skipped   *junitMessage `xml:"skipped"`
	Failure   *junitMessage `xml:"failure"`
	SystemOut string        `xml:"system-out,omitempty"`
}

// junitMessage is the text of a failure or a skip.
type junitMessage struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// add adds a case and counts it.
func (s *junitSuite) add(c junitCase) {
	s.Tests++
	if c.Failure != nil {
		s.Failures++
	}
	if c.Skipped != nil {
		s.Skipped++
	}
	s.Cases = append(s.Cases, c)
}

// add adds a suite and counts its cases.
func (s *junitFile) add(suite junitSuite) {
	s.Tests += suite.Tests
	s.Failures += suite.Failures
	s.Skipped += suite.Skipped
	s.Suites = append(s.Suites, suite)
}

// encode returns the file as XML.
func (s junitFile) encode() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(xml.Header)
	enc := xml.NewEncoder(&b)
	enc.Indent("", "  ")
	err := enc.Encode(s)
	b.WriteByte('\n')
	return b.Bytes(), err
}

// junitSeconds formats milliseconds as seconds with three decimals.
func junitSeconds(ms int64) string { return fmt.Sprintf("%.3f", float64(ms)/1000) }
