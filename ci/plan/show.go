package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"slipway/layers/plaintext"
)

// Write prints one line for each board.
func (p Plan) Write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range p.Boards {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", plaintext.OneLine(b.Board), b.does(), shorten(b.Why))
	}
	for _, name := range p.Gone {
		fmt.Fprintf(tw, "%s\tgone\t\n", plaintext.OneLine(name))
	}
	for _, b := range p.Boards {
		for _, note := range b.Notes {
			fmt.Fprintf(tw, "%s\tnote\t%s\n", plaintext.OneLine(b.Board), note)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	builds, tests := p.count()
	_, err := fmt.Fprintf(w, "%d files changed since %.12s: build %d of %d boards, test %d\n", p.changed, p.From, builds, len(p.Boards), tests)
	return err
}

// does returns what the board needs in one word.
func (b Board) does() string {
	switch {
	case b.Build:
		return "build"
	case b.Test:
		return "test"
	}
	return "-"
}

// shorten returns the first reason, and how many there are besides.
func shorten(why []string) string {
	switch len(why) {
	case 0:
		return ""
	case 1:
		return why[0]
	}
	return fmt.Sprintf("%s, and %d more", why[0], len(why)-1)
}

func (p Plan) count() (builds, tests int) {
	for _, b := range p.Boards {
		if b.Build {
			builds++
		}
		if b.Test {
			tests++
		}
	}
	return builds, tests
}

// WriteJSON prints the whole plan.
func (p Plan) WriteJSON(w io.Writer) error { return plaintext.WriteJSON(w, p) }

// SaveGitHub adds the lines for GitHub to the file that it names, and prints the plan.
func (p Plan) SaveGitHub(w io.Writer, output string) error {
	if output == "" {
		return p.writeGitHub(w)
	}
	f, err := os.OpenFile(output, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("GITHUB_OUTPUT: %w", err)
	}
	if err := errors.Join(p.writeGitHub(f), f.Close()); err != nil {
		return err
	}
	return p.Write(w)
}

// writeGitHub prints lines for the file GITHUB_OUTPUT. GitHub refuses a matrix without a
// job, so a job that takes it asks for any first.
func (p Plan) writeGitHub(w io.Writer) error {
	jobs := p.Matrix
	jobs.Include = append([]Job{}, jobs.Include...)
	matrix, err := json.Marshal(jobs)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "any=%t\nmatrix=%s\n", len(jobs.Include) > 0, matrix)
	return err
}
