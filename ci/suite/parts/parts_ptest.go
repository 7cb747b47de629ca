package parts

import (
	"path"
	"strings"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// ptestReader reads the output of Yocto package tests, with or without ptest-runner. Each result is
// a line, after the output of its test.
type ptestReader struct {
	Outcome
	running string   // the package whose tests run
	before  []string // the last lines before a result
}

// ptestWords are the words for results, including automake's.
var ptestWords = map[string]report.Status{
	"PASS": report.Passed, "FAIL": report.Failed, "SKIP": report.Skipped, "SKIPPED": report.Skipped,
	"XFAIL": report.Skipped, "XPASS": report.Failed, "ERROR": report.Failed, "TIMEOUT": report.Failed,
}

func ReadPtest(output string) Outcome {
	r := &ptestReader{}
	for _, line := range plaintext.Lines(output) {
		r.readLine(strings.TrimRight(line, "\r\t "))
	}
	if r.running != "" {
		r.addProblem("%s began and did not end", r.running)
	}
	return r.Outcome
}

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

func (r *ptestReader) addResult(word string, status report.Status, name string) {
	p := Part{Name: name, Status: status}
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

// packageName returns zlib for /usr/lib/zlib/ptest.
func packageName(dir string) string {
	if dir = path.Clean(dir); path.Base(dir) == "ptest" {
		dir = path.Dir(dir)
	}
	return path.Base(dir)
}
