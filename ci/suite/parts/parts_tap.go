package parts

import (
	"cmp"
	"strconv"
	"strings"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// tapReader reads the Test Anything Protocol, versions 12 to 14.
type tapReader struct {
	Outcome
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

func ReadTAP(output string) Outcome {
	r := &tapReader{planned: -1}
	for _, line := range plaintext.Lines(output) {
		if r.readLine(strings.TrimRight(line, "\r\t ")); r.bailed {
			return r.Outcome // nothing after that counts
		}
	}
	r.checkPlan()
	return r.Outcome
}

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

func (r *tapReader) readPlanOrResult(line string) {
	if m := tapPlan().FindStringSubmatch(line); m != nil {
		if r.planned >= 0 {
			r.addProblem("a second plan: %s", line)
		}
		r.planned, _ = strconv.Atoi(m[1])
		if words := tapWords().FindStringSubmatch(m[2]); r.planned == 0 && words != nil {
			r.addPart(Part{Name: "all", Status: report.Skipped, Saw: cmp.Or(words[2], "the plan says skip")})
		}
		return
	}
	if m := tapResult().FindStringSubmatch(line); m != nil {
		r.addResult(m[1] == "", m[2], m[3])
	}
}

func (r *tapReader) addResult(ok bool, number, text string) {
	r.resultCount++
	name, directive := cutDirective(text)
	p := Part{Name: cmp.Or(name, "test "+cmp.Or(number, strconv.Itoa(r.resultCount))), Status: report.Passed, Saw: strings.Join(r.pending, "\n")}
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

// cutDirective splits "name # SKIP why". A # in the name has a backslash before it.
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

// addNote adds a line to the last result, if that failed.
func (r *tapReader) addNote(text string) {
	if n := len(r.Parts); n > 0 && r.Parts[n-1].Status == report.Failed && len(r.Parts[n-1].Saw) < maxPartNotes && text != "..." {
		r.Parts[n-1].Saw = strings.TrimSpace(r.Parts[n-1].Saw + "\n" + plaintext.Clean(text, 500))
	}
}

// checkPlan adds a problem if the number of results is not the planned one.
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
