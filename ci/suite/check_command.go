package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"slipway/ci/report"
	"slipway/ci/suite/match"
	"slipway/flash/target"
	"slipway/layers/plaintext"
)

// command is a program that is run on the board.
type command struct {
	argv                       []string
	line                       string // as a person types it
	exitStatus, stdout, stderr match.Matcher
}

func readCommand(e *Entry) Probe {
	c := command{
		argv:       e.List("argv"),
		exitStatus: e.readExitStatus(),
		stdout:     e.Matcher("stdout", match.Text),
		stderr:     e.Matcher("stderr", match.Text),
	}
	script := e.Text("exec", e.Name)
	switch {
	case e.Fields["argv"] == nil:
		c.argv, c.line = []string{"sh", "-c", script}, script
	case e.Fields["exec"] != nil:
		e.Fail(e.Fields["exec"], "exec and argv are two ways to say the same; keep one")
	case len(c.argv) == 0:
		e.Fail(e.Fields["argv"], "argv needs at least the program's name")
	default:
		c.line = ShellLine(c.argv)
	}
	if strings.ContainsRune(script, 0) {
		e.Fail(e.Key, "exec holds a NUL")
	}
	return c
}

// readExitStatus is 0 unless the suite says otherwise.
func (e *Entry) readExitStatus() match.Matcher {
	if e.Fields["exit-status"] == nil {
		return match.Equals(0)
	}
	return e.Matcher("exit-status", match.Number)
}

func (c command) Inspect(ctx context.Context, s *Session) (Finding, error) {
	r, err := s.Board.Run(ctx, c.argv...)
	if err != nil {
		return Finding{}, err
	}
	var f Finding
	f.ExpectMatch("exit status", c.exitStatus, r.Status, "exit status "+fmt.Sprint(r.Status))
	outIsCut, errIsCut := truncatedOutputs(r)
	f.expectWhole("stdout", c.stdout, outIsCut)
	f.expectWhole("stderr", c.stderr, errIsCut)
	f.ExpectMatch("stdout", c.stdout, string(r.Stdout), "stdout: "+quoteOutput(r.Stdout))
	f.ExpectMatch("stderr", c.stderr, string(r.Stderr), "stderr: "+quoteOutput(r.Stderr))
	if !f.OK() {
		f.saw = []string{DescribeResult(r)}
	}
	return f, nil
}

func (c command) Next() string { return "run it by hand on the board: " + c.line }

// ShellLine writes argv as a shell would read it.
func ShellLine(argv []string) string {
	words := slices.Clone(argv)
	for i, word := range words {
		words[i] = plaintext.Quote(word)
	}
	return strings.Join(words, " ")
}

// truncatedOutputs says which outputs were longer than is kept. The result says only that one
// was; it is then as long as any can be, so the shorter one is whole.
func truncatedOutputs(r target.Result) (stdout, stderr bool) {
	longer := len(r.Stdout) - len(r.Stderr)
	return r.Truncated && longer >= 0, r.Truncated && longer <= 0
}

// moreThan says of output that was cut how much of it there is.
func moreThan(kept int) string {
	size := fmt.Sprintf("%d bytes that are", kept)
	if kept > 0 && kept%(1<<20) == 0 {
		size = fmt.Sprintf("%d MiB that is", kept>>20)
	}
	return "more than the " + size + " kept"
}

// DescribeResult tells all that a program left, for the one who has to find out why.
func DescribeResult(r target.Result) string {
	text, shown := fmt.Sprintf("exit status %d", r.Status), ""
	outIsCut, errIsCut := truncatedOutputs(r)
	for _, out := range []struct {
		name string
		data []byte
		cut  bool
	}{{"stdout", r.Stdout, outIsCut}, {"stderr", r.Stderr, errIsCut}} {
		if out.cut { // said first: what follows may be long
			text += ", " + out.name + ": " + moreThan(len(out.data))
		}
		if len(out.data) > 0 {
			shown += "\n" + out.name + ": " + quoteOutput(out.data)
		}
	}
	if len(r.Stdout)+len(r.Stderr) == 0 {
		text += ", no output"
	}
	return text + shown
}

// quoteOutput is output as it is shown: a line as it is, several below each other.
func quoteOutput(data []byte) string {
	text := plaintext.Clean(strings.TrimSpace(string(data)), report.MaxSawBytes)
	if text == "" {
		return "(nothing)"
	}
	if strings.Contains(text, "\n") {
		return "\n  " + strings.ReplaceAll(text, "\n", "\n  ")
	}
	return text
}

// errCut says that a probe did not get to read all.
var errTruncated = errors.New("its output was cut")

// Output runs a program whose output a probe reads; a status other than 0 is in the
// error, with what the program said. So is output that is not whole.
func (s *Session) Output(ctx context.Context, argv ...string) (string, error) {
	r, err := s.Board.Run(ctx, argv...)
	if err != nil {
		return "", err
	}
	if r.Status != 0 {
		return string(r.Stdout), fmt.Errorf("%s: %s", strings.Join(argv, " "), DescribeResult(r))
	}
	if isCut, _ := truncatedOutputs(r); isCut {
		return string(r.Stdout), fmt.Errorf("%s: %w: there is %s", strings.Join(argv, " "), errTruncated, moreThan(len(r.Stdout)))
	}
	return string(r.Stdout), nil
}
