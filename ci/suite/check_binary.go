package suite

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// binary is a program of this machine that Slipway copies to the board, runs and removes.
type binary struct {
	local     string // path on this machine
	content   []byte // of a built-in suite's program; nil: the file at local
	dir       string // on the board, where its folder is made
	args, env []string
	outputs
}

// readBinary parses a check of the section binary, and reads the program of a built-in suite.
func readBinary(e *Entry) Probe {
	name := e.Text("path", e.Name)
	if !filepath.IsLocal(name) {
		e.Fail(e.Key, "path %q must lie in the suite's folder or below", name)
	}
	b := binary{
		local: filepath.Join(filepath.Dir(e.File), name), dir: e.Text("dir", "/tmp"),
		args: e.List("args"), env: e.List("env"), outputs: e.readOutputs(),
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

// readOutput sets b.read from the attribute output. For go it adds -test.v=test2json, which marks
// the framework's lines, unless args has a -test.v.
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
	return b.check(r), nil
}

// localFile returns the program's path on this machine. For a built-in suite that is a temporary
// copy, which remove removes.
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

// RemoveFolder removes a folder and its content on the board, even if ctx has ended.
func (s *Session) RemoveFolder(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), TeardownLimit)
	defer cancel()
	_, err := s.Output(ctx, "rm", "-rf", dir)
	return err
}

func (b binary) Next() string {
	return "run it by hand: scp " + ShellLine([]string{b.local}) + " to the board. A status of 126 is a program for another machine (GOARCH), or a file system that runs none (dir)"
}
