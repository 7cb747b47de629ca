package parts

import (
	"strconv"
	"strings"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// goReader reads the output of a Go test binary with -test.v or -test.v=test2json. With the
// latter, lines of the test framework begin with the byte 0x16.
type goReader struct {
	Outcome
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

func readGoTest(output string) Outcome {
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
	return r.Outcome
}

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

func (r *goReader) readEvent(what, name string) {
	if _, known := r.output[name]; !known && what == "RUN" && len(r.order) < maxParts {
		r.output[name] = ""
		r.order = append(r.order, name)
	}
	if r.current = name; what == "PAUSE" {
		r.current = ""
	}
}

func (r *goReader) addOutput(line string) {
	if output, running := r.output[r.current]; running && line != "" && len(output) < 4*maxPartNotes {
		r.output[r.current] = output + line + "\n"
	}
}

// readResult ends a test. Its output came before.
func (r *goReader) readResult(m []string) {
	name := m[2]
	seconds, _ := strconv.ParseInt(m[3], 10, 64)
	hundredths, _ := strconv.ParseInt(m[4], 10, 64)
	p := Part{Name: name, Status: report.Passed, TookMS: seconds*1000 + hundredths*10}
	switch m[1] {
	case "FAIL":
		p.Status, p.Saw = report.Failed, r.output[name]
	case "SKIP":
		p.Status, p.Saw = report.Skipped, r.output[name]
	}
	delete(r.output, name)
	r.addPart(p)
}

// checkEnd fails tests that did not end. Then the program panicked or was killed.
func (r *goReader) checkEnd() {
	for _, name := range r.order {
		if output, running := r.output[name]; running {
			r.addPart(Part{Name: name, Status: report.Failed, Saw: output + "it began and did not end"})
		}
	}
	if !r.ended {
		r.addProblem("the last line is not PASS or FAIL: the program was ended, or it is no Go test")
	}
}
