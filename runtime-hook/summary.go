package main

import (
	"fmt"
	"strings"
	"unicode"

	"slipway/runtime-hook/internal/config"
	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/inject"
)

// maxShown limits the warnings in a container's log line; "slipway-hook check" lists all.
const maxShown = 3

// summaryLine returns the log's line for a container.
func summaryLine(res inject.Result, notes []string) string {
	s := fmt.Sprintf("gave %s, %s, %s, %s",
		countOf(res.Files, "file"), countOf(res.Folders, "folder"), countOf(res.Links, "link"), countOf(res.Devices, "device"))
	if res.Before > 0 {
		s += fmt.Sprintf(", and has %d already", res.Before)
	}
	if res.Compat != "" {
		s += ", and the image's newer CUDA in " + res.Compat + " is used"
	}
	if len(notes) == 0 {
		return s
	}
	s += fmt.Sprintf("; %s: %s", countOf(len(notes), "warning"), strings.Join(notes[:min(maxShown, len(notes))], "; "))
	if len(notes) > maxShown {
		s += "; \"slipway-hook check\" lists all of the board's"
	}
	return s
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// detailLines returns the further log lines for a container that got s, at the log level debug.
func (r request) detailLines(s share, res inject.Result) string {
	if r.Log.Level != config.Debug {
		return ""
	}
	var b strings.Builder
	line := func(format string, args ...any) {
		b.WriteString("  " + printable(fmt.Sprintf(format, args...)) + "\n")
	}
	for _, m := range s.Mounts {
		line("%s %s from %s (%s)", mountKind(m), m.Path, m.Source, m.From)
	}
	for _, l := range s.Links {
		line("link %s -> %s (%s)", l.Path, l.Target, l.From)
	}
	for _, d := range s.Devices {
		line("device %s %d:%d (%s)", d.Path, d.Major, d.Minor, d.From)
	}
	for _, l := range s.left {
		line("left out %s: %s", l.Path, l.Why)
	}
	for _, n := range append(res.Skipped, s.notes...) {
		line("warning %s", n)
	}
	return b.String()
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
