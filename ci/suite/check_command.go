package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"slipway/ci/report"
	"slipway/ci/suite/match"
	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// command is a program that Slipway runs on the board.
type command struct {
	argv []string
	line string // as a user types it
	outputs
}

// outputs is what a check expects of a program's exit status and output.
type outputs struct {
	exitStatus, stdout, stderr match.Matcher

	read    func(string) outcome // parses the test results in stdout; nil: it has none
	figures figures              // in stdout
	table   *table               // in stdout
}

// readOutputs parses the attributes for the exit status and the output of a program.
func (e *Entry) readOutputs() outputs {
	return outputs{
		exitStatus: e.readExitStatus(), stdout: e.Matcher("stdout", match.Text), stderr: e.Matcher("stderr", match.Text),
		figures: e.readFigures(), table: e.readTable(),
	}
}

func readTAPCommand(e *Entry) Probe   { return readResults(e, readTAP) }
func readPtestCommand(e *Entry) Probe { return readResults(e, readPtest) }

// readResults parses a check of a command. read parses the test results in the command's output.
func readResults(e *Entry, read func(string) outcome) Probe {
	c, _ := readCommand(e).(command)
	c.read = read
	return c
}

// readCommand parses a check of the section command: argv, or a line for the board's shell. The
// line is exec, or by default the check's name.
func readCommand(e *Entry) Probe {
	c := command{argv: e.List("argv"), outputs: e.readOutputs()}
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

// readExitStatus returns the matcher for the exit status, which is 0 by default.
func (e *Entry) readExitStatus() match.Matcher {
	if e.Fields["exit-status"] == nil {
		return match.Equals(0)
	}
	return e.Matcher("exit-status", match.Number)
}

// Inspect runs the command on the board and checks its result.
func (c command) Inspect(ctx context.Context, s *Session) (Finding, error) {
	r, err := s.runGuarded(ctx, "", c.argv...)
	if err != nil {
		return Finding{}, err
	}
	return c.check(r), nil
}

// check compares a program's exit status, outputs, test results, metrics and table with the check.
func (o outputs) check(r boardssh.Result) Finding {
	var f Finding
	f.ExpectMatch("exit status", o.exitStatus, r.Status, "exit status "+fmt.Sprint(r.Status))
	outIsCut, errIsCut := truncatedOutputs(r)
	if o.read != nil {
		if outIsCut {
			f.Expect(false, "all of the output", "stdout: "+moreThan(len(r.Stdout)))
		}
		found := o.read(string(r.Stdout))
		f.addOutcome(found)
		if len(found.Parts) == 0 || len(found.Problems) > 0 {
			f.saw = append(f.saw, DescribeResult(r))
		}
	}
	f.expectWhole("stdout", o.stdout, outIsCut)
	f.expectWhole("stderr", o.stderr, errIsCut)
	f.ExpectMatch("stdout", o.stdout, string(r.Stdout), "stdout: "+quoteOutput(r.Stdout))
	f.ExpectMatch("stderr", o.stderr, string(r.Stderr), "stderr: "+quoteOutput(r.Stderr))
	if o.read == nil && !f.OK() {
		f.saw = []string{DescribeResult(r)}
	}
	o.figures.check(&f, string(r.Stdout), outIsCut)
	o.table.addTo(&f, string(r.Stdout))
	return f
}

func (c command) Next() string { return "run it by hand on the board: " + c.line }

// ShellLine joins argv to one line, quoted for a shell.
func ShellLine(argv []string) string {
	words := slices.Clone(argv)
	for i, word := range words {
		words[i] = plaintext.Quote(word)
	}
	return strings.Join(words, " ")
}

// truncatedOutputs reports which outputs were truncated, of a result that says only that one was. A
// truncated output has the maximum length, so the shorter one is complete.
func truncatedOutputs(r boardssh.Result) (stdout, stderr bool) {
	longer := len(r.Stdout) - len(r.Stderr)
	return r.Truncated && longer >= 0, r.Truncated && longer <= 0
}

// moreThan returns words like "more than the 1 MiB that is kept", for an output cut to kept bytes.
func moreThan(kept int) string {
	size := fmt.Sprintf("%d bytes that are", kept)
	if kept > 0 && kept%(1<<20) == 0 {
		size = fmt.Sprintf("%d MiB that is", kept>>20)
	}
	return "more than the " + size + " kept"
}

// DescribeResult returns a program's exit status and outputs (see quoteOutput), and which were cut.
func DescribeResult(r boardssh.Result) string {
	text, shown := fmt.Sprintf("exit status %d", r.Status), ""
	outIsCut, errIsCut := truncatedOutputs(r)
	for _, out := range []struct {
		name string
		data []byte
		cut  bool
	}{{"stdout", r.Stdout, outIsCut}, {"stderr", r.Stderr, errIsCut}} {
		if out.cut { // comes first, since the outputs may be long
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

// quoteOutput returns an output cleaned and cut, indented if it has several lines, or "(nothing)".
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

// errTruncated means that a probe could not read the whole output.
var errTruncated = errors.New("its output was cut")

// Output returns a program's stdout, with an error if it was cut or the exit status is not 0.
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
