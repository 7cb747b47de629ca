package suite

// This file reads several results from the output of one program: TAP, ptest, go test.

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// part is one of several test results in the output of a program.
type part struct {
	Name   string
	Status report.Status
	Saw    string
	TookMS int64
}

// outcome is what a reader found in a program's output: test results, and errors of the format.
type outcome struct {
	Parts    []part
	Problems []string // of the output as a whole, such as a missing plan
}

// The limits of an outcome keep a report readable.
const (
	maxParts     = 2000
	maxPartNotes = 2000 // bytes of one part's Saw
	maxProblems  = 20
	maxPending   = 8 // failures of a subtest
)

// outputFormats maps the name of a format, as a suite writes it, to the function that parses it.
var outputFormats = map[string]func(output string) outcome{
	"go":    readGoTest,
	"tap":   readTAP,
	"ptest": readPtest,
}

// addPart adds a result with a cleaned name and text, or after maxParts results a problem.
func (o *outcome) addPart(p part) {
	if len(o.Parts) == maxParts {
		o.addProblem("more than %d results; the others were left out", maxParts)
		return
	}
	p.Name, p.Saw = plaintext.Clean(strings.TrimSpace(p.Name), 150), strings.TrimSpace(plaintext.CleanTail(p.Saw, maxPartNotes))
	p.Name = cmp.Or(p.Name, fmt.Sprintf("result %d", len(o.Parts)+1))
	o.Parts = append(o.Parts, p)
}

// addProblem adds a problem with the form of the output, each one once, and maxProblems at most.
func (o *outcome) addProblem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(o.Problems, text) && len(o.Problems) < maxProblems {
		o.Problems = append(o.Problems, text)
	}
}

// tapReader parses the Test Anything Protocol, versions 12 to 14.
type tapReader struct {
	outcome
	planned     int // -1: no plan yet
	resultCount int // also counts results beyond maxParts
	inYAML      bool
	bailed      bool
	pending     []string // failures in a subtest, which come before the subtest's result
}

var (
	tapPlan   = plaintext.Regexp(`^1\.\.(\d{1,7})\s*(?:#\s*(.*))?$`)
	tapResult = plaintext.Regexp(`^(not )?ok\b(?:\s+(\d{1,9}))?(?:\s+-(?:\s|$))?\s*(.*)$`)
	tapWords  = plaintext.Regexp(`(?i)^(skip|todo)\S*\s*(.*)$`)
)

// readTAP parses the output of a program in the Test Anything Protocol, up to a bail-out.
func readTAP(output string) outcome {
	r := &tapReader{planned: -1}
	for _, line := range plaintext.Lines(output) {
		if r.readLine(strings.TrimRight(line, "\r\t ")); r.bailed {
			return r.outcome // nothing after that counts
		}
	}
	r.checkPlan()
	return r.outcome
}

// readLine reads a line of TAP. Comments, subtests and YAML blocks only add to a result's text.
func (r *tapReader) readLine(line string) {
	inner := strings.TrimLeft(line, " \t")
	switch {
	case r.inYAML:
		r.inYAML = inner != "..."
		r.addNote(inner)
	case inner == "---" && line != inner:
		r.inYAML = true
	case strings.HasPrefix(line, "Bail out!"):
		r.bailed = true
		r.addProblem("bailed out: %s", cmp.Or(strings.TrimSpace(strings.TrimPrefix(line, "Bail out!")), "no reason given"))
	case line != inner:
		if strings.HasPrefix(inner, "not ok") && len(r.pending) < maxPending {
			r.pending = append(r.pending, inner)
		}
	case strings.HasPrefix(line, "#"):
		r.addNote(strings.TrimSpace(line[1:]))
	default:
		r.readPlanOrResult(line)
	}
}

// readPlanOrResult reads plans 1..N and results, no other lines. 1..0 # SKIP adds a skipped result.
func (r *tapReader) readPlanOrResult(line string) {
	if m := tapPlan().FindStringSubmatch(line); m != nil {
		if r.planned >= 0 {
			r.addProblem("a second plan: %s", line)
		}
		r.planned, _ = strconv.Atoi(m[1])
		if words := tapWords().FindStringSubmatch(m[2]); r.planned == 0 && words != nil {
			r.addPart(part{Name: "all", Status: report.Skipped, Saw: cmp.Or(words[2], "the plan says skip")})
		}
		return
	}
	if m := tapResult().FindStringSubmatch(line); m != nil {
		r.addResult(m[1] == "", m[2], m[3])
	}
}

// addResult moves r.pending into a new result. With SKIP, or failed with TODO, that is skipped.
func (r *tapReader) addResult(ok bool, number, text string) {
	r.resultCount++
	name, directive := cutDirective(text)
	p := part{Name: cmp.Or(name, "test "+cmp.Or(number, strconv.Itoa(r.resultCount))), Status: report.Passed, Saw: strings.Join(r.pending, "\n")}
	r.pending = nil
	words := tapWords().FindStringSubmatch(directive)
	switch {
	case words != nil && strings.EqualFold(words[1], "skip"):
		p.Status, p.Saw = report.Skipped, cmp.Or(words[2], "skip")
	case words != nil && !ok: // it is known to fail
		p.Status, p.Saw = report.Skipped, "to do: "+cmp.Or(words[2], "no reason given")
	case !ok:
		p.Status = report.Failed
	}
	r.addPart(p)
}

// cutDirective splits "name # SKIP why" at the first # without a backslash, and unescapes the name.
func cutDirective(text string) (name, directive string) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '#':
			return unescapeTAP(text[:i]), strings.TrimSpace(text[i+1:])
		}
	}
	return unescapeTAP(text), ""
}

var unescaperTAP = strings.NewReplacer(`\\`, `\`, `\#`, `#`)

func unescapeTAP(text string) string { return unescaperTAP.Replace(strings.TrimSpace(text)) }

// addNote appends a line to the text of the last result, if that result failed.
func (r *tapReader) addNote(text string) {
	if n := len(r.Parts); n > 0 && r.Parts[n-1].Status == report.Failed && len(r.Parts[n-1].Saw) < maxPartNotes && text != "..." {
		r.Parts[n-1].Saw = strings.TrimSpace(r.Parts[n-1].Saw + "\n" + plaintext.Clean(text, 500))
	}
}

// checkPlan adds a problem if there is no plan, or if the number of results differs from the plan.
func (r *tapReader) checkPlan() {
	switch {
	case r.planned < 0 && r.resultCount == 0:
		r.addProblem("no TAP: neither a plan like 1..3 nor a result")
	case r.planned < 0:
		r.addProblem("no plan like 1..%d: the output may have ended too early", r.resultCount)
	case r.planned != r.resultCount:
		r.addProblem("%d results are planned, and there are %d", r.planned, r.resultCount)
	}
}

// ptestReader parses the output of Yocto package tests (ptest), with or without ptest-runner. A
// test's result is one line, after the test's own output.
type ptestReader struct {
	outcome
	running string   // the package whose tests run
	before  []string // the last lines before a result
}

// ptestWords are the words for results, including automake's.
var ptestWords = map[string]report.Status{
	"PASS": report.Passed, "FAIL": report.Failed, "SKIP": report.Skipped, "SKIPPED": report.Skipped,
	"XFAIL": report.Skipped, "XPASS": report.Failed, "ERROR": report.Failed, "TIMEOUT": report.Failed,
}

// readPtest parses the output of Yocto package tests. A package without an end is a problem.
func readPtest(output string) outcome {
	r := &ptestReader{}
	for _, line := range plaintext.Lines(output) {
		r.readLine(strings.TrimRight(line, "\r\t "))
	}
	if r.running != "" {
		r.addProblem("%s began and did not end", r.running)
	}
	return r.outcome
}

// readLine reads a package's BEGIN or END, or a result. It keeps the last ten other lines.
func (r *ptestReader) readLine(line string) {
	word, rest, ok := strings.Cut(line, ":")
	rest = strings.TrimSpace(rest)
	status, isResult := ptestWords[word]
	switch {
	case ok && word == "BEGIN":
		r.running, r.before = packageName(rest), nil
	case ok && word == "END":
		r.running, r.before = "", nil
	case ok && isResult:
		r.addResult(word, status, rest)
	case len(r.before) < 10:
		r.before = append(r.before, line)
	default:
		r.before = append(r.before[1:], line)
	}
}

// addResult adds a result of the running package, printed as word. A failed one gets earlier lines.
func (r *ptestReader) addResult(word string, status report.Status, name string) {
	p := part{Name: name, Status: status}
	if r.running != "" {
		p.Name = r.running + "/" + name
	}
	switch {
	case status == report.Failed:
		p.Saw = strings.TrimSpace(strings.Join(r.before, "\n") + "\n" + word + ": " + name)
	case word == "XFAIL":
		p.Saw = "it is known to fail"
	}
	r.before = nil
	r.addPart(p)
}

// packageName returns the package of a ptest folder: zlib for /usr/lib/zlib/ptest.
func packageName(dir string) string {
	if dir = path.Clean(dir); path.Base(dir) == "ptest" {
		dir = path.Dir(dir)
	}
	return path.Base(dir)
}

// goReader parses the output of a Go test binary with -test.v or -test.v=test2json. With test2json,
// the test framework's own lines begin with goMark.
type goReader struct {
	outcome
	marked  bool              // lines of the framework begin with goMark
	current string            // the test whose output follows
	output  map[string]string // of tests that have not ended
	order   []string          // tests in the order in which they began
	ended   bool              // the final PASS or FAIL was read
}

const goMark = "\x16"

var (
	goEvent  = plaintext.Regexp(`^=== (RUN|NAME|CONT|PAUSE) +(\S+)$`)
	goResult = plaintext.Regexp(`^ *--- (PASS|FAIL|SKIP): (\S+) \((\d{1,9})\.(\d\d)s\)$`)
)

// readGoTest parses the output of a Go test binary with -test.v or -test.v=test2json.
func readGoTest(output string) outcome {
	r := &goReader{marked: strings.Contains(output, goMark), output: map[string]string{}}
	for _, line := range plaintext.Lines(output) {
		before, own, marked := strings.Cut(line, goMark)
		if r.marked && !marked {
			r.addOutput(line)
			continue
		}
		if r.marked {
			r.addOutput(strings.TrimSpace(before))
			line = own
		}
		r.readLine(strings.TrimRight(line, "\r"))
	}
	r.checkEnd()
	return r.outcome
}

// readLine reads an event, a result, the final PASS or FAIL, or else the output of a test.
func (r *goReader) readLine(line string) {
	if m := goEvent().FindStringSubmatch(line); m != nil {
		r.readEvent(m[1], m[2])
		return
	}
	if m := goResult().FindStringSubmatch(line); m != nil {
		r.readResult(m)
		return
	}
	if line == "PASS" || line == "FAIL" {
		r.ended = true
		return
	}
	r.addOutput(line)
}

// readEvent reads RUN, NAME, CONT or PAUSE of a test: which test begins, and has the next output.
func (r *goReader) readEvent(what, name string) {
	if _, known := r.output[name]; !known && what == "RUN" && len(r.order) < maxParts {
		r.output[name] = ""
		r.order = append(r.order, name)
	}
	if r.current = name; what == "PAUSE" {
		r.current = ""
	}
}

// addOutput adds a line, if not empty, to the output of the current test, if any, up to a limit.
func (r *goReader) addOutput(line string) {
	if output, running := r.output[r.current]; running && line != "" && len(output) < 4*maxPartNotes {
		r.output[r.current] = output + line + "\n"
	}
}

// readResult adds the result in m, a match of goResult. One not passed gets the test's output.
func (r *goReader) readResult(m []string) {
	name := m[2]
	seconds, _ := strconv.ParseInt(m[3], 10, 64)
	hundredths, _ := strconv.ParseInt(m[4], 10, 64)
	p := part{Name: name, Status: report.Passed, TookMS: seconds*1000 + hundredths*10}
	switch m[1] {
	case "FAIL":
		p.Status, p.Saw = report.Failed, r.output[name]
	case "SKIP":
		p.Status, p.Saw = report.Skipped, r.output[name]
	}
	delete(r.output, name)
	r.addPart(p)
}

// checkEnd adds a failed result for each test that did not end, because the program panicked or was
// killed. Without a final PASS or FAIL it adds a problem.
func (r *goReader) checkEnd() {
	for _, name := range r.order {
		if output, running := r.output[name]; running {
			r.addPart(part{Name: name, Status: report.Failed, Saw: output + "it began and did not end"})
		}
	}
	if !r.ended {
		r.addProblem("the last line is not PASS or FAIL: the program was ended, or it is no Go test")
	}
}
