package main

import (
	"fmt"
	"strings"
	"unicode"

	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/inject"
)

// maxShown limits the warnings in a container's log line; "slipway-hook check" lists all.
const maxShown = 3

// summaryLine returns the log's line for a container: the counts, and up to maxShown of the notes.
func summaryLine(res inject.Result, notes []string) string {
	s := fmt.Sprintf("gave: files %d, folders %d, links %d, devices %d", res.Files, res.Folders, res.Links, res.Devices)
	if res.Compat != "" {
		s += ", and the image's newer CUDA in " + res.Compat + " is used"
	}
	if len(notes) == 0 {
		return s
	}
	s += fmt.Sprintf("; warnings %d: %s", len(notes), strings.Join(notes[:min(maxShown, len(notes))], "; "))
	if len(notes) > maxShown {
		s += "; \"slipway-hook check\" lists all of the board's"
	}
	return s
}

// unusedProblems returns those problems, as text, that kept an entry or a setting from being used.
func unusedProblems(problems []csv.Problem) []string {
	var out []string
	for _, p := range problems {
		if p.Unused {
			out = append(out, p.String())
		}
	}
	return out
}

// printable replaces control and bidi characters by "?", so that a name from an image or a CSV file
// stays on one line and cannot control a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return '?'
		}
		return r
	}, s)
}
