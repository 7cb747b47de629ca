package ci

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// part is one of several results that a program on a board told.
type part struct {
	name   string
	status report.Status
	saw    string
	tookMS int64
}

// outcome is what a program told in a format of its own.
type outcome struct {
	parts    []part
	problems []string // what is wrong with it as a whole
}

// Limits of an outcome. They are what keeps a report readable.
const (
	maxParts     = 2000
	maxPartNotes = 2000 // bytes kept for one
	maxProblems  = 20
	maxPending   = 8 // failures of a subtest
)

// formats are how programs tell several results.
var formats = map[string]func(output string) outcome{
	"go":    readGoTest,
	"tap":   readTAP,
	"ptest": readPtest,
}

func (o *outcome) add(p part) {
	if len(o.parts) == maxParts {
		o.problem("more than %d results; the others were left out", maxParts)
		return
	}
	p.name, p.saw = plaintext.Clean(strings.TrimSpace(p.name), 150), strings.TrimSpace(plaintext.CleanTail(p.saw, maxPartNotes))
	p.name = cmp.Or(p.name, fmt.Sprintf("result %d", len(o.parts)+1))
	o.parts = append(o.parts, p)
}

// problem is kept once.
func (o *outcome) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(o.problems, text) && len(o.problems) < maxProblems {
		o.problems = append(o.problems, text)
	}
}
