// Package parts reads several results from the output of one program: TAP, ptest, go test.
package parts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"slipway/ci/report"
	"slipway/layers/plaintext"
)

// Part is one of several results that a program on a board printed.
type Part struct {
	Name   string
	Status report.Status
	Saw    string
	TookMS int64
}

// Outcome is the content of an output: its results, and its format errors.
type Outcome struct {
	Parts    []Part
	Problems []string // of the output as a whole, such as a missing plan
}

// The limits of an outcome keep a report readable.
const (
	maxParts     = 2000
	maxPartNotes = 2000 // bytes of one part's Saw
	maxProblems  = 20
	maxPending   = 8 // failures of a subtest
)

// Formats has the reader of each format, by the format's name in a suite.
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

// addProblem adds a problem unless it is already there.
func (o *Outcome) addProblem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(o.Problems, text) && len(o.Problems) < maxProblems {
		o.Problems = append(o.Problems, text)
	}
}
