package suite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/ci/suite/match"
	"slipway/flash/boardssh"
)

// resultsCommand is a command on the board whose output has several test results.
type resultsCommand struct {
	command    command
	exitStatus match.Matcher
	read       func(string) outcome
}

func readTAPCommand(e *Entry) Probe   { return readResults(e, readTAP) }
func readPtestCommand(e *Entry) Probe { return readResults(e, readPtest) }

// readResults parses a check of a command whose output read parses.
func readResults(e *Entry, read func(string) outcome) Probe {
	r := resultsCommand{exitStatus: e.readExitStatus(), read: read}
	r.command, _ = readCommand(e).(command)
	return r
}

// Inspect runs the command, and checks its exit status and the test results that it prints.
func (r resultsCommand) Inspect(ctx context.Context, s *Session) (Finding, error) {
	result, err := s.runGuarded(ctx, "", r.command.argv...)
	if err != nil {
		return Finding{}, err
	}
	return checkResults(result, r.exitStatus, r.read), nil
}

// checkResults checks a program's exit status and, with a read, the test results in its output.
func checkResults(r boardssh.Result, status match.Matcher, read func(string) outcome) Finding {
	var f Finding
	f.ExpectMatch("exit status", status, r.Status, "exit status "+fmt.Sprint(r.Status))
	if read == nil {
		return f
	}
	if isCut, _ := truncatedOutputs(r); isCut {
		f.Expect(false, "all of the output", "stdout: "+moreThan(len(r.Stdout)))
	}
	o := read(string(r.Stdout))
	f.addOutcome(o)
	if len(o.Parts) == 0 || len(o.Problems) > 0 {
		f.saw = append(f.saw, DescribeResult(r))
	}
	return f
}

func (r resultsCommand) Next() string { return r.command.Next() }

// binary is a program of this machine that Slipway copies to the board, runs and removes.
type binary struct {
	local      string // path on this machine
	content    []byte // of a built-in suite's program; nil: the file at local
	dir        string // on the board, where its folder is made
	args, env  []string
	exitStatus match.Matcher
	stdout     match.Matcher
	figures    figures              // in stdout
	table      *table               // in stdout
	read       func(string) outcome // nil: the results are not in stdout
}

// readBinary parses a check of the section binary, and reads the program of a built-in suite.
func readBinary(e *Entry) Probe {
	name := e.Text("path", e.Name)
	if !filepath.IsLocal(name) {
		e.Fail(e.Key, "path %q must lie in the suite's folder or below", name)
	}
	b := binary{
		local: filepath.Join(filepath.Dir(e.File), name), dir: e.Text("dir", "/tmp"),
		args: e.List("args"), env: e.List("env"), exitStatus: e.readExitStatus(),
		stdout: e.Matcher("stdout", match.Text), figures: e.readFigures(), table: e.readTable(),
	}
	if !strings.HasPrefix(b.dir, "/") || strings.ContainsRune(b.dir, 0) {
		e.Fail(e.Fields["dir"], "dir must be an absolute path on the board, not %q", b.dir)
	}
	for _, v := range b.env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" || strings.HasPrefix(name, "-") {
			e.Fail(e.Fields["env"], "env must be NAME=value, not %q", v)
		}
	}
	content, err := e.programs.read(name)
	if err != nil {
		e.Fail(e.Key, "path: %v", err)
	}
	b.content = content
	b.readOutput(e)
	return b
}

// readOutput reads the format of a program's output. For a Go test it adds -test.v=test2json, which
// marks the framework's lines, unless args has a -test.v.
func (b *binary) readOutput(e *Entry) {
	format := e.Text("output", "text")
	read, ok := outputFormats[format]
	if !ok && format != "text" {
		e.Fail(e.Fields["output"], "unknown output %q (have text, %s)", format, strings.Join(slices.Sorted(maps.Keys(outputFormats)), ", "))
	}
	b.read = read
	verbose := slices.ContainsFunc(b.args, func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "test.v") })
	if format == "go" && !verbose {
		b.args = append([]string{"-test.v=test2json"}, b.args...)
	}
}

const runInFolderScript = `cd "$1" && shift && exec "$@"`

// Inspect copies the program into a new folder on the board, runs it, removes the folder, and
// checks the output. A program that is not built yet fails the check.
func (b binary) Inspect(ctx context.Context, s *Session) (f Finding, err error) {
	local, remove, err := b.localFile()
	if err != nil {
		return f, err
	}
	defer remove()
	if _, err := os.Stat(local); errors.Is(err, fs.ErrNotExist) {
		f.Next = "build it first, for the board: GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go test -c -o " + ShellLine([]string{b.local})
		f.Expect(false, "a program to send", b.local+" does not exist on this machine")
		return f, nil
	}
	dir := strings.TrimSuffix(b.dir, "/") + "/slipway-" + rand.Text() // a random name, so that no other user can prepare the folder
	defer func() { err = errors.Join(err, s.RemoveFolder(ctx, dir)) }()
	if _, err := s.Output(ctx, "mkdir", "-m", "700", dir); err != nil {
		return f, err
	}
	name := filepath.Base(b.local)
	if err := s.put(ctx, local, dir+"/"+name, 0o700); err != nil {
		return f, err
	}
	r, err := s.runGuarded(ctx, dir, slices.Concat([]string{"env"}, b.env, []string{"sh", "-c", runInFolderScript, "sh", dir, "./" + name}, b.args)...)
	if err != nil {
		return f, err
	}
	return b.checkOutput(r), nil
}

// localFile returns the path of the program on this machine. remove removes what localFile wrote.
func (b binary) localFile() (file string, remove func(), err error) {
	if b.content == nil {
		return b.local, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "slipway-program-")
	if err != nil {
		return "", nil, err
	}
	file = filepath.Join(dir, filepath.Base(b.local))
	if err := os.WriteFile(file, b.content, 0o700); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return file, func() { _ = os.RemoveAll(dir) }, nil
}

// checkOutput compares a program's exit status, output and metrics with the check.
func (b binary) checkOutput(r boardssh.Result) Finding {
	f := checkResults(r, b.exitStatus, b.read)
	isCut, _ := truncatedOutputs(r)
	f.expectWhole("stdout", b.stdout, isCut)
	f.ExpectMatch("stdout", b.stdout, string(r.Stdout), "stdout: "+quoteOutput(r.Stdout))
	if b.read == nil && !f.OK() {
		f.saw = []string{DescribeResult(r)}
	}
	b.figures.check(&f, string(r.Stdout), isCut)
	b.table.addTo(&f, string(r.Stdout))
	return f
}

// RemoveFolder removes a folder on the board, also after ctx was canceled or timed out.
func (s *Session) RemoveFolder(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), TeardownLimit)
	defer cancel()
	_, err := s.Output(ctx, "rm", "-rf", dir)
	return err
}

func (b binary) Next() string {
	return "run it by hand: scp " + ShellLine([]string{b.local}) + " to the board. A status of 126 is a program for another machine (GOARCH), or a file system that runs none (dir)"
}
