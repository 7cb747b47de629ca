package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"slipway/ci/report"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// options are those of every command that builds or needs a build.
var options = images.Options{Dir: "build"}

// WithSignals runs work with a context that a signal ends.
// A second Ctrl-C ends the process at once. Mage itself waits only 5 s after a Ctrl-C and
// ignores SIGTERM.
func WithSignals(ctx context.Context, work func(context.Context) error) error {
	signal.Reset(syscall.SIGINT)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, func() {
		time.Sleep(passedOn)
		stop()
	})()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if host.UnderMage() {
		go watchParent(ctx, cancel)
	}
	return withStatus(withRepeat(ctx, work(ctx)))
}

// newReporter returns a reporter that also shows that a command works while it says nothing.
func newReporter() *progress.Reporter {
	r := progress.New(progress.ForOutput(os.Stderr))
	stdout.Before, stderr.Before = r.Yield, r.Yield
	r.Watch("working")
	return r
}

// withRepeat adds the next step to the error of work that a signal ended.
func withRepeat(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || strings.Contains(err.Error(), "\nnext: ") {
		return err
	}
	return fmt.Errorf("%w\nnext: repeat the line", err)
}

// passedOn is how long after a Ctrl-C another program, such as mage, may send the same
// signal again.
const passedOn = 300 * time.Millisecond

// runPatiently runs work that may finish its current step after a first Ctrl-C, which
// ends ctx. A second Ctrl-C closes now, which breaks that off.
func runPatiently(ctx context.Context, work func(ctx context.Context, now <-chan struct{}) error) error {
	signal.Reset(syscall.SIGINT) // Mage would end this process 5 s after the first
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	now := make(chan struct{})
	closeNow := sync.OnceFunc(func() { close(now) })
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		first := <-signals
		cancel(fmt.Errorf("%v", first))
		for began := time.Now(); first == syscall.SIGINT && time.Since(began) < passedOn; {
			first = <-signals
		}
		closeNow()
	}()
	if host.UnderMage() {
		go watchParent(ctx, func(gone error) { cancel(gone); closeNow() })
	}
	return withStatus(withRepeat(ctx, work(ctx, now)))
}

// withStatus lets Mage exit with the status of the error's kind. Mage asks only the
// outermost error.
func withStatus(err error) error {
	if err == nil || errors.As(err, new(usageError)) {
		return err
	}
	return exitError{err}
}

// withStep adds a next step to a command's error that has none of its own.
func withStep(cmd *cobra.Command, err error) error {
	var ended report.ContainerFailed
	switch {
	case err == nil || errors.As(err, new(usageError)) || errors.As(err, &ended) || strings.Contains(err.Error(), "\nnext: "):
		return err
	case errors.Is(err, report.ErrFailed):
		return fmt.Errorf("%w\nnext: repeat the line  # after doing what each failed check says", err)
	case errors.Is(err, report.ErrWrong) || errors.Is(err, images.ErrBoardFile) || errors.Is(err, fs.ErrPermission):
		return err // exitError has their step
	}
	return fmt.Errorf("%w\nnext: %s", err, lookStep(cmd, err))
}

type exitError struct{ error }

func (s exitError) ExitStatus() int { return report.ExitStatus(s.error) }
func (s exitError) Unwrap() error   { return s.error }

func init() { host.IsCommand = func(word string) bool { return commandBelow(Root(), word) != nil } }

// Error ends with a line that can be typed.
func (s exitError) Error() string { return plaintext.Printable(s.withProgram()) }

func (s exitError) withProgram() string {
	text := withPermissionStep(s.error)
	before, step, found := cutLast(text, "\nnext: ")
	if !found && (errors.Is(s.error, report.ErrWrong) || errors.Is(s.error, images.ErrBoardFile)) {
		before, step, found = text, "boards  # after correcting the file", true
		if own, err := images.OwnFolder(); err == nil && own != "" {
			step = "board check  # after correcting the file"
		}
		if missing := (*fs.PathError)(nil); errors.Is(s.error, fs.ErrNotExist) && errors.As(s.error, &missing) {
			step = "ls " + plaintext.Quote(filepath.Dir(missing.Path))
		}
		step = cmp.Or(placeStep(text), step)
	}
	if !found {
		return text
	}
	return before + "\nnext: " + host.TypedStep(step)
}

// withPermissionStep returns the text of an error. One about rights ends in how to look at
// them, if it has no next step of its own.
func withPermissionStep(err error) string {
	var path *fs.PathError
	text := err.Error()
	if strings.Contains(text, "\nnext: ") || !errors.Is(err, fs.ErrPermission) || !errors.As(err, &path) {
		return text
	}
	return text + "\nnext: ls -ld " + plaintext.Quote(filepath.Dir(path.Path)) + "  # or go on in a folder of yours"
}

func cutLast(text, sep string) (before, after string, found bool) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(sep):], true
}

// loader finds a board: images.Load where something is built, images.LoadBuilt elsewhere.
type loader func(board string) (images.Spec, error)

// runFor loads a board's spec and runs work with it.
func runFor(ctx context.Context, board string, load loader, work func(context.Context, images.Spec) error) error {
	return WithSignals(ctx, func(ctx context.Context) error {
		spec, err := load(board)
		return firstError(err, func() error { return work(ctx, spec) })
	})
}

// runPatientlyFor is runPatiently for a board.
func runPatientlyFor(ctx context.Context, board string, load loader, work func(ctx context.Context, spec images.Spec, now <-chan struct{}) error) error {
	return runPatiently(ctx, func(ctx context.Context, now <-chan struct{}) error {
		spec, err := load(board)
		return firstError(err, func() error { return work(ctx, spec, now) })
	})
}

// runOn has the command load the board that is its first word, then work with it.
func (c *Command) runOn(load loader, work func(ctx context.Context, spec images.Spec, words []string) error) {
	c.Run = func(ctx context.Context, words []string) error {
		return runFor(ctx, words[0], load, func(ctx context.Context, spec images.Spec) error { return work(ctx, spec, words) })
	}
}

// runPatientlyOn is runOn for work that may finish its current step after a first Ctrl-C.
func (c *Command) runPatientlyOn(load loader, work func(ctx context.Context, spec images.Spec, words []string, now <-chan struct{}) error) {
	c.Run = func(ctx context.Context, words []string) error {
		return runPatientlyFor(ctx, words[0], load, func(ctx context.Context, spec images.Spec, now <-chan struct{}) error {
			return work(ctx, spec, words, now)
		})
	}
}

// watchParent ends the work when mage is gone. A SIGTERM ends mage at once and would
// leave this process running.
func watchParent(ctx context.Context, cancel context.CancelCauseFunc) {
	parent := os.Getppid()
	for ctx.Err() == nil {
		if os.Getppid() != parent {
			cancel(errors.New("mage was ended"))
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func printJSON(v any) error { return plaintext.WriteJSON(stdout, v) }

// splitWords splits a list at commas and blanks.
func splitWords(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// splitList splits a list at commas only, because paths may contain blanks.
func splitList(names string) []string {
	return strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
}

// parseMode reads a file mode in octal, as chmod does.
func parseMode(text string) (os.FileMode, error) {
	bits, err := strconv.ParseUint(text, 8, 9)
	if err != nil {
		return 0, fmt.Errorf("mode %q: want one in octal, from 0 to 0777", text)
	}
	return os.FileMode(bits), nil
}

// typedKey holds in a context the line that the user typed.
type typedKey struct{}

func typedLine(cmd *cobra.Command) []string {
	if cmd.Context() == nil { // a command that was not run
		return nil
	}
	line, _ := cmd.Context().Value(typedKey{}).([]string)
	return line
}

// lookStep looks at what an error is about: the last thing that the line names and the error too.
func lookStep(cmd *cobra.Command, err error) string {
	text := err.Error()
	if errors.Is(err, unix.ENOSPC) {
		return "df -h ."
	}
	if step := placeStep(text); step != "" {
		return step
	}
	for _, arg := range slices.Backward(typedLine(cmd)) {
		if _, value, valued := strings.Cut(arg, "="); valued {
			arg = value
		}
		for name := range strings.SplitSeq(arg, ",") {
			if step := lookAt(name); name != "" && strings.Contains(text, name) && step != "" {
				return step
			}
		}
	}
	return strings.Join(helpLine(pathOf(cmd)), " ")
}

// filePlace is a line of a file in an error.
var filePlace = plaintext.Regexp(`(?:^|\s)([^\s:]+):(\d+):`)

// placeStep prints the line of a file that an error names; "" if it names none.
func placeStep(text string) string {
	if at := filePlace().FindStringSubmatch(text); at != nil && isFile(at[1]) {
		return "sed -n " + at[2] + "p " + plaintext.Quote(at[1])
	}
	return ""
}

// lookAt returns the line that looks at what an error says of something; "" for unknown things.
func lookAt(name string) string {
	quoted := plaintext.Quote(name)
	switch _, err := images.LoadBuilt(name); {
	case strings.HasPrefix(name, "https://"), strings.HasPrefix(name, "http://"):
		return "curl -I " + quoted
	case isFile(name):
		return "ls -ld " + quoted
	case strings.Contains(name, "@") && !strings.Contains(name, "/"):
		return "ssh -v " + plaintext.Quote("ssh://"+name) + " true"
	case err == nil:
		return "doctor " + quoted
	}
	return ""
}

func isFile(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// Commands print only by these: text from outside reaches a terminal, and a log of CI,
// without control characters and secrets. The output of another program or a console goes
// through as it is: deploy run, virt console, completions.
var (
	stdout = &plaintext.Printer{To: os.Stdout}
	stderr = &plaintext.Printer{To: os.Stderr}
)
