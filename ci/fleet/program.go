package fleet

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// Answer is the output and exit status of a program on one board.
type Answer struct {
	Status    int    `json:"status"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr,omitempty"`
	Truncated bool   `json:"truncated,omitempty"` // it said more
}

// maxAnswerBytes limits each output in an Answer, because the journal has those of all boards.
const maxAnswerBytes = 16 << 10

// runProgram runs the request's program on the board, if it has one, without a shell, and sets
// t.answer. An exit status other than 0 is an error of the kind Program.
func (t *attempt) runProgram(ctx context.Context) error {
	if len(t.request.Program) == 0 {
		return nil
	}
	t.step.Detail("running")
	r, err := t.conn.Run(ctx, t.request.Program...)
	if err != nil {
		return err
	}
	t.answer = newAnswer(r)
	if r.Status == 0 {
		return nil
	}
	said := cmp.Or(strings.TrimSpace(t.answer.Stderr), strings.TrimSpace(t.answer.Stdout))
	hint := ""
	if line := t.request.Program[0]; r.Status == 127 && len(t.request.Program) == 1 && strings.ContainsAny(line, " ;|&<>$*") {
		hint = "; for a line of a shell: -- sh -c " + plaintext.Quote(line)
	}
	return kindError{Program, fmt.Errorf("exit status %d: %s%s", r.Status, said[strings.LastIndexByte(said, '\n')+1:], hint)}
}

// newAnswer keeps the first maxAnswerBytes of each output, without secrets and control characters.
func newAnswer(r boardssh.Result) *Answer {
	out, err := r.Stdout[:min(len(r.Stdout), maxAnswerBytes)], r.Stderr[:min(len(r.Stderr), maxAnswerBytes)]
	return &Answer{
		Status: r.Status, Stdout: plaintext.Printable(string(out)), Stderr: plaintext.Printable(string(err)),
		Truncated: r.Truncated || len(out) < len(r.Stdout) || len(err) < len(r.Stderr),
	}
}

// writeAnswers writes the program's output on each board, with the host's name before each line.
func (o Outcome) writeAnswers(w io.Writer) {
	for _, r := range o.Results {
		if r.Answer == nil {
			continue
		}
		for _, line := range slices.Concat(plaintext.Lines(r.Answer.Stdout), plaintext.Lines(r.Answer.Stderr)) {
			fmt.Fprintf(w, "%s  %s\n", oneLine(r.Host), line)
		}
		if r.Answer.Truncated {
			fmt.Fprintf(w, "%s  … it said more\n", oneLine(r.Host))
		}
	}
}
