// Package parts reads several results from what one program printed: TAP, ptest, go test.
package parts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// Part is one of several results that a program on a board told.
type Part struct {
	Name   string
	Status report.Status
	Saw    string
	TookMS int64
}

// Outcome is what a program told in a format of its own.
type Outcome struct {
	Parts    []Part
	Problems []string // what is wrong with it as a whole
}

// Limits of an outcome. They are what keeps a report readable.
const (
	maxParts     = 2000
	maxPartNotes = 2000 // bytes kept for one
	maxProblems  = 20
	maxPending   = 8 // failures of a subtest
)

// Formats are how programs tell several results.
var Formats = map[string]func(output string) Outcome{
	"go":    readGoTest,
	"tap":   ReadTAP,
	"ptest": ReadPtest,
}

func (o *Outcome) addPart(p Part) {
	if len(o.Parts) == maxParts {
		o.addProblem("more than %d results; the others were left out", maxParts)
		return
	}
	p.Name, p.Saw = plaintext.Clean(strings.TrimSpace(p.Name), 150), strings.TrimSpace(plaintext.CleanTail(p.Saw, maxPartNotes))
	p.Name = cmp.Or(p.Name, fmt.Sprintf("result %d", len(o.Parts)+1))
	o.Parts = append(o.Parts, p)
}

// addProblem is kept once.
func (o *Outcome) addProblem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(o.Problems, text) && len(o.Problems) < maxProblems {
		o.Problems = append(o.Problems, text)
	}
}
