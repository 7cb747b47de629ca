package report

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"slipway/ci/report/junit"
	"slipway/layers/plaintext"
)

// junitOf renders the stages of each report as one test suite, and each suite as one of
// its own.
func renderJUnit(all []Report) ([]byte, error) {
	doc := junit.Suites{Name: "slipway"}
	var elapsedMS int64
	labels := boardLabels(all)
	for i, r := range all {
		elapsedMS += r.ElapsedMS
		for _, s := range r.junitSuites() {
			if len(all) > 1 {
				prefixLabel(&s, labels[i])
			}
			doc.Add(s)
		}
	}
	if len(all) == 1 {
		doc.Name += " " + all[0].Board
	}
	doc.Time = junit.Seconds(elapsedMS)
	return doc.Encode()
}

// JUnit renders one suite of cases that no report has, such as the boards of a fleet.
func JUnit(board, suite string, started time.Time, elapsedMS int64, cases []CheckResult) ([]byte, error) {
	s := Report{Board: board, Started: started, Host: thisHost()}.newJUnitSuite(suite, elapsedMS)
	for _, c := range cases {
		s.Add(junitCase(board+"."+suite, c))
	}
	doc := junit.Suites{Name: "slipway " + board, Time: s.Time}
	doc.Add(s)
	return doc.Encode()
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
func prefixLabel(s *junit.Suite, label string) {
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
		suite.Add(junitCase(r.Board+".stages",
			CheckResult{Name: s.Name, ElapsedMS: s.ElapsedMS, Status: s.Status, Kind: "stage", Saw: s.Saw, Next: s.Next}))
	}
	return suite
}

func (r Report) junitSuite(s SuiteResult) junit.Suite {
	suite := r.newJUnitSuite(s.Name, s.ElapsedMS)
	if proved := s.proofList(); proved != "" { // the schema has no properties of a case
		suite.Properties = append(suite.Properties, junit.Property{Name: "proves", Value: proved})
	}
	for _, c := range s.Checks {
		suite.Add(junitCase(r.Board+"."+s.Name, c))
	}
	return suite
}

// junitCase is a check as a test case; what it proves stands in system-out.
func junitCase(class string, result CheckResult) junit.Case {
	c := junit.Case{Name: result.Name, ClassName: class, Time: junit.Seconds(result.ElapsedMS)}
	switch result.Status {
	case Failed:
		c.Failure = &junit.Message{Message: plaintext.FirstLine(result.Saw), Type: result.Kind, Text: explainResult(result)}
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

func (r Report) logText() string {
	var b strings.Builder
	for _, l := range r.Logs {
		fmt.Fprintf(&b, "== %s\n%s\n", l.Name, l.Text)
	}
	return b.String()
}
