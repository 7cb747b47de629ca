// Package run starts outside programs, logs their output, and ends them with the context. It takes
// an argv, never a shell string. Each package owns the programs that it drives.
package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"slipway/layers/plaintext"
)

// grace is how long a program and its children may take to end when asked; tests set less.
var grace = 10 * time.Second

// Command describes one run of a program.
type Command struct {
	Argv    []string
	Dir     string
	Env     []string // added to this process's own
	Unset   []string // names of those of this process's own that the program does not get
	Stdin   io.Reader
	Log     string            // file that keeps stdout and stderr; "" keeps only the tail for an error
	Line    func(line string) // called with each line of output, without its end
	Keep    bool              // append to Log instead of replacing it
	Hold    *os.File          // a lock that the program's children hold with it, also if this process is killed
	Silence time.Duration     // how long the program and its children may do nothing; 0 is no limit
	// Gentle is for programs that must not be cut off in the middle, as dpkg: only
	// they are asked to end, as by a Ctrl-C, and they decide when.
	Gentle bool
	// Apart is for programs in a pid namespace that ends with this process anyway, and in
	// which they cannot see it: Go would take it for dead, and end them.
	Apart bool
	// Stop asks a program to end that needs another method than a SIGTERM to it and its children,
	// and decides how long it may take. Children that outlive it are then not ended.
	Stop func(*os.Process) error
}

// Failure is the error of a program that did not exit with status 0.
type Failure struct {
	Argv   []string
	Status string // "exit status 2", "signal: killed"
	Tail   string // its last lines
	Log    string
	cause  error
}

// Error returns the argv without secrets, the status, the last lines and the path of the log.
func (f *Failure) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", plaintext.HideSecrets(strings.Join(f.Argv, " ")), f.Status)
	if f.Tail != "" {
		b.WriteString("\n  | " + strings.ReplaceAll(f.Tail, "\n", "\n  | "))
	}
	if f.Log != "" {
		fmt.Fprintf(&b, "\n  full log: %s", f.Log)
	}
	return b.String()
}

func (f *Failure) Unwrap() error { return f.cause }

// LastLine returns the last line that a failed program printed, or the first line of other errors.
func LastLine(err error) string {
	text := err.Error()
	if failed, ok := errors.AsType[*Failure](err); ok && failed.Tail != "" {
		text = failed.Tail[strings.LastIndexByte(failed.Tail, '\n')+1:]
	}
	line, _, _ := strings.Cut(text, "\n")
	return plaintext.Printable(line)
}

// Run runs c to its end and logs its output. If ctx ends, it ends the program and waits for its
// children. Children of a program that ends by itself may live on. An unwritable log is an error.
func Run(ctx context.Context, c Command) error {
	tail := &tailWriter{line: c.Line}
	out := io.Writer(tail)
	var log logFile
	if c.Log != "" {
		f, err := openLog(c)
		if err != nil {
			return err
		}
		defer f.Close()
		log.file = f
		out = io.MultiWriter(&log, tail)
	}
	err := runToEnd(ctx, c, out, out, tail)
	log.flush()
	if log.failed == nil {
		return err
	}
	if err == nil {
		return fmt.Errorf("%s has ended well, but its log is not whole: %w", filepath.Base(c.Argv[0]), log.failed)
	}
	return fmt.Errorf("%w\n  its log is not whole: %w", err, log.failed)
}

// logFile writes a program's output to a file, without secrets. After a failed write, as on a full
// disk, it drops the rest: to stop would end the program with SIGPIPE and hide the cause.
type logFile struct {
	file   *os.File
	failed error
	open   []byte // the last line, or a private key, that has not ended yet
}

// maxOpenBytes limits the text that logFile holds back. Any private key is shorter.
const maxOpenBytes = 1 << 16

// Write writes complete lines, with line feeds for carriage returns. It holds back an incomplete
// line or private key, up to maxOpenBytes. It never fails: keep stores the error.
func (l *logFile) Write(p []byte) (int, error) {
	l.open = append(l.open, bytes.ReplaceAll(p, []byte("\r"), []byte("\n"))...)
	end := bytes.LastIndexByte(l.open, '\n') + 1
	begin := bytes.LastIndex(l.open, []byte("-----BEGIN "))
	if begin >= 0 && !bytes.Contains(l.open[begin:], []byte("-----END ")) {
		end = min(end, begin)
	}
	if len(l.open) > maxOpenBytes {
		end = len(l.open)
	}
	l.keep(end)
	return len(p), nil
}

func (l *logFile) flush() { l.keep(len(l.open)) }

// keep moves the first bytes of l.open to the file, without secrets. l.failed gets the first error.
func (l *logFile) keep(bytes int) {
	if l.failed == nil && bytes > 0 {
		_, l.failed = l.file.WriteString(plaintext.Printable(string(l.open[:bytes])))
	}
	l.open = append(l.open[:0], l.open[bytes:]...)
}

// Output runs c and returns its standard output. c.Line gets standard error. Output ignores c.Log.
func Output(ctx context.Context, c Command) ([]byte, error) {
	var stdout bytes.Buffer
	tail := &tailWriter{line: c.Line}
	c.Log = ""
	err := runToEnd(ctx, c, &stdout, tail, tail)
	return stdout.Bytes(), err
}

// Prepare returns the exec.Cmd of c for callers that start it themselves. The program gets its own
// process group, so that ctx ends its children too. Only Run and Output kill those that ignore it.
func Prepare(ctx context.Context, c Command) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	if errors.Is(cmd.Err, exec.ErrNotFound) {
		if path, err := LookPath(c.Argv[0]); err == nil {
			cmd.Path, cmd.Err = path, nil
		}
	}
	cmd.Dir, cmd.Stdin = c.Dir, c.Stdin
	cmd.Env = append(slices.DeleteFunc(completePath(os.Environ()), c.unset), c.Env...)
	if c.Hold != nil {
		cmd.ExtraFiles = []*os.File{c.Hold}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return terminateGroup(cmd.Process.Pid) }
	cmd.WaitDelay = grace
	if c.Gentle {
		cmd.SysProcAttr.Pdeathsig = 0
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
		cmd.WaitDelay = 0
	}
	if c.Apart {
		cmd.SysProcAttr.Pdeathsig = 0
	}
	if c.Stop != nil {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGINT
		cmd.Cancel = func() error { return c.Stop(cmd.Process) }
		cmd.WaitDelay = 0
	}
	return cmd
}

func (c Command) unset(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return slices.Contains(c.Unset, name)
}

// terminateGroup sends SIGTERM to a process group. It returns os.ErrProcessDone if none is left.
func terminateGroup(leader int) error {
	err := syscall.Kill(-leader, syscall.SIGTERM)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// openLog opens c.Log, not "", to replace it, or to append with c.Keep, and creates its folder.
func openLog(c Command) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(c.Log), 0o755); err != nil {
		return nil, err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if c.Keep {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	return os.OpenFile(c.Log, flags, 0o644)
}

// exitError returns the error of a run: ctx ended, the program is not installed, or a Failure.
func exitError(ctx context.Context, c Command, err error, tail string) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrSilent) {
		return &Failure{Argv: c.Argv, Status: fmt.Sprintf("ended after %s without output or data", c.Silence), Log: c.Log, cause: cause}
	} else if cause != nil {
		return fmt.Errorf("%s: stopped: %w", filepath.Base(c.Argv[0]), cause)
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%s is not installed: %w", c.Argv[0], err)
	}
	return &Failure{Argv: c.Argv, Status: err.Error(), Tail: tail, Log: c.Log, cause: err}
}
