package commands

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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
	"slipway/flash"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// options are the build options of all commands.
var options = images.Options{Dir: "build", Locks: os.Getenv(images.LocksVariable)}

// withSignals calls work with a context that SIGINT, SIGTERM or the end of mage ends, and adds the
// step of withRepeat and the exit status to its error. A second Ctrl-C ends the process at once.
func withSignals(ctx context.Context, work func(context.Context) error) error {
	signal.Reset(syscall.SIGINT) // Mage would end this process 5 s after the first
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

// newReporter returns a reporter of progress on stderr, with "working" while a command is silent, or
// in the file that SLIPWAY_PROGRESS names. stdout and stderr call its Yield before they print.
func newReporter() (*progress.Reporter, error) {
	sink, err := progress.ForOutput(os.Stderr)
	if err != nil {
		return nil, wrongUse{err}
	}
	r := progress.New(sink)
	stdout.Before, stderr.Before = r.Yield, r.Yield
	r.Watch("working")
	return r, nil
}

// withRepeat adds the step "repeat the line" to an error after a signal, if it has no next step.
func withRepeat(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || strings.Contains(err.Error(), "\nnext: ") {
		return err
	}
	return fmt.Errorf("%w\nnext: repeat the line", err)
}

// passedOn is the time in which a second signal counts as the first: mage may pass SIGINT on, and
// the program timeout sends SIGTERM twice.
const passedOn = 300 * time.Millisecond

// orphanLimit is the time in which a command finishes its step after mage was ended.
const orphanLimit = 3 * time.Minute

// runPatiently calls work with a context that a first Ctrl-C or SIGTERM ends, and a channel that a
// second one closes: until then work may finish its step. The end of mage does both, the second
// after orphanLimit. The error is like that of withSignals.
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
		cancel(fmt.Errorf("%v", <-signals))
		for began := time.Now(); time.Since(began) < passedOn; {
			<-signals
		}
		closeNow()
	}()
	if host.UnderMage() {
		go watchParent(ctx, func(cause error) {
			cancel(cause)
			time.AfterFunc(orphanLimit, closeNow)
		})
	}
	return withStatus(withRepeat(ctx, work(ctx, now)))
}

// endSoon returns a channel that closes with now, and also when anything but Ctrl-C ends ctx: tasks
// of bitbake take long, and a CI server kills soon after SIGTERM.
func endSoon(ctx context.Context, now <-chan struct{}) <-chan struct{} {
	soon := make(chan struct{})
	go func() {
		defer close(soon)
		select {
		case <-now:
			return
		case <-ctx.Done():
		}
		if context.Cause(ctx).Error() == syscall.SIGINT.String() {
			<-now
		}
	}()
	return soon
}

// withStatus wraps an error in exitError: Mage uses the outermost status. A usageError has its own.
func withStatus(err error) error {
	if err == nil || errors.As(err, new(usageError)) {
		return err
	}
	return exitError{err}
}

// withStep adds a next step to an error that has none, by the kind of the error and the typed line.
// It leaves errors to which exitError adds one, and those of a container.
func withStep(cmd *cobra.Command, err error) error {
	var ended report.ContainerFailed
	if exit := (exitError{}); errors.As(err, &exit) && errors.Is(err, report.ErrWrong) { // it would add its own step
		text := exit.error.Error()
		if !strings.Contains(text, "\nnext: ") && placeStep(text) == "" && slices.ContainsFunc(typedFiles(cmd), func(file string) bool { return strings.Contains(text, file+": ") }) {
			return fmt.Errorf("%w\nnext: repeat the line  # after correcting the file", exit.error)
		}
	}
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

// exitError is an error with the exit status of its kind.
type exitError struct{ error }

func (s exitError) ExitStatus() int { return report.ExitStatus(s.error) }
func (s exitError) Unwrap() error   { return s.error }

func init() { host.IsCommand = func(word string) bool { return commandBelow(Root(), word) != nil } }

// Error returns the text of the error. The command after its last "next:" gets the program's name.
func (s exitError) Error() string { return plaintext.Printable(s.withProgram()) }

// withProgram returns the error's text, with a next step that has the program's name. An error
// about a board's file without a next step gets one.
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
	return host.TypedSteps(before + "\nnext: " + step)
}

// withPermissionStep returns the text of an error. It adds "ls -ld FOLDER" as the next step to an
// error about permissions that has none.
func withPermissionStep(err error) string {
	var path *fs.PathError
	text := err.Error()
	if strings.Contains(text, "\nnext: ") || !errors.Is(err, fs.ErrPermission) || !errors.As(err, &path) {
		return text
	}
	what := plaintext.Either(path.Op == "open" && localfile.Exists(path.Path), path.Path, filepath.Dir(path.Path))
	return text + "\nnext: ls -ld " + plaintext.Quote(what) + "  # or go on in a folder of yours"
}

// cutLast is strings.Cut at the last sep.
func cutLast(text, sep string) (before, after string, found bool) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(sep):], true
}

// loader loads the spec of a board: images.Load for a build, images.LoadBuilt for other commands.
type loader func(board string) (images.Spec, error)

// runFor loads a board's spec and runs work with it, with the signals of withSignals.
func runFor(ctx context.Context, board string, load loader, work func(context.Context, images.Spec) error) error {
	return withSignals(ctx, func(ctx context.Context) error {
		spec, err := load(board)
		return runUnlessFailed(err, func() error { return work(ctx, spec) })
	})
}

// RunSignalled sets c.Run to call work with a context that a signal ends, as withSignals does.
func (c *Command) RunSignalled(work func(ctx context.Context, words []string) error) {
	c.Run = func(ctx context.Context, words []string) error {
		return withSignals(ctx, func(ctx context.Context) error { return work(ctx, words) })
	}
}

// runOn sets c.Run to load the board in the first word and call work with its spec, as runFor does.
func (c *Command) runOn(load loader, work func(ctx context.Context, spec images.Spec, words []string) error) {
	c.Run = func(ctx context.Context, words []string) error {
		return runFor(ctx, words[0], load, func(ctx context.Context, spec images.Spec) error { return work(ctx, spec, words) })
	}
}

// runPatientlyOn is runOn with the two steps of Ctrl-C of runPatiently.
func (c *Command) runPatientlyOn(load loader, work func(ctx context.Context, spec images.Spec, words []string, now <-chan struct{}) error) {
	c.Run = func(ctx context.Context, words []string) error {
		return runPatiently(ctx, func(ctx context.Context, now <-chan struct{}) error {
			spec, err := load(words[0])
			return runUnlessFailed(err, func() error { return work(ctx, spec, words, now) })
		})
	}
}

// watchParent calls cancel when mage, the parent, has ended. SIGTERM ends only mage.
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

// printResult prints a result as JSON or by show. If err is not nil, it only returns that.
func printResult(result any, err error, asJSON bool, show func(io.Writer) error) error {
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(result)
	}
	return show(stdout)
}

// splitWords splits a list at commas and blanks.
func splitWords(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// splitList splits a list at commas only, because paths may contain blanks.
func splitList(names string) []string {
	return strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
}

// parseMode parses a file mode in octal, from 0 to 0777.
func parseMode(text string) (os.FileMode, error) {
	bits, err := strconv.ParseUint(text, 8, 9)
	if err != nil {
		return 0, fmt.Errorf("mode %q: want one in octal, from 0 to 0777", text)
	}
	return os.FileMode(bits), nil
}

// typedKey is the context key of the line that the user typed.
type typedKey struct{}

// typedLine returns the user's line after translateLine, nil for a command that was not run.
func typedLine(cmd *cobra.Command) []string {
	if cmd.Context() == nil { // a command that was not run
		return nil
	}
	line, _ := cmd.Context().Value(typedKey{}).([]string)
	return line
}

// typedFlags returns the flags and their values of the user's line: all but the command and words.
func (c *Command) typedFlags(words ...string) []string {
	line := slices.Clone(typedLine(c.Command))
	for _, word := range append(pathOf(c.Command), words...) {
		if i := slices.Index(line, word); i >= 0 {
			line = slices.Delete(line, i, i+1)
		}
	}
	return line
}

// lookStep returns a command that inspects what an error is about: a full disk, a line of a file,
// or the last word of the typed line that the error mentions. For an error of an image it leaves out
// the devices, and falls back to the image. Else it returns the command's help.
func lookStep(cmd *cobra.Command, err error) string {
	text := err.Error()
	if errors.Is(err, flash.ErrImage) {
		_, text, _ = strings.Cut(text, ": ") // it begins with the devices
	}
	if errors.Is(err, unix.ENOSPC) {
		return "df -h ."
	}
	if step := placeStep(text); step != "" {
		return step
	}
	image := ""
	for _, arg := range slices.Backward(typedLine(cmd)) {
		flag, value, valued := strings.Cut(arg, "=")
		switch {
		case flag == "--yes":
			continue
		case flag == "--image" && errors.Is(err, flash.ErrImage):
			image = value
		}
		if valued {
			arg = value
		}
		for name := range strings.SplitSeq(arg, ",") {
			if step := lookAt(name); name != "" && strings.Contains(text, name) && step != "" && !(isFile(name) && boardssh.IsOfBoard(err)) {
				return step
			}
		}
	}
	if image != "" {
		return cmp.Or(lookAt(image), "ls -l "+plaintext.Quote(localfile.NearestFolder(image)))
	}
	return strings.Join(helpLine(pathOf(cmd)), " ")
}

// filePlace matches FILE:LINE: in an error.
var filePlace = plaintext.Regexp(`(?:^|\s)([^\s:]+):(\d+):`)

// placeStep returns a command that prints the line of a file that an error names, or "".
func placeStep(text string) string {
	if at := filePlace().FindStringSubmatch(text); at != nil && isFile(at[1]) {
		text, _ := os.ReadFile(at[1])
		if line, _ := strconv.Atoi(at[2]); line > bytes.Count(text, []byte("\n")) { // such as the end of the file
			return "tail -n 1 " + plaintext.Quote(at[1])
		}
		return "sed -n " + at[2] + "p " + plaintext.Quote(at[1])
	}
	return ""
}

// lookAt returns a command that inspects a URL, file, SSH host or board of this name, or "".
func lookAt(name string) string {
	quoted := plaintext.Quote(name)
	switch _, err := images.LoadBuilt(name); {
	case strings.HasPrefix(name, "https://"), strings.HasPrefix(name, "http://"):
		return "curl -I " + quoted
	case isFile(name):
		return "ls -ld " + quoted
	case strings.Contains(name, "@") && !strings.Contains(strings.SplitN(name, ":/dev/", 2)[0], "/"):
		return "ssh -v " + plaintext.Quote("ssh://"+strings.SplitN(name, ":/dev/", 2)[0]) + " true"
	case err == nil:
		return "doctor " + quoted
	}
	return ""
}

// typedFiles returns the words and values of the typed line that name files.
func typedFiles(cmd *cobra.Command) (names []string) {
	for _, arg := range typedLine(cmd) {
		_, value, valued := strings.Cut(arg, "=")
		names = append(names, strings.Split(plaintext.Either(valued, value, arg), ",")...)
	}
	return slices.DeleteFunc(names, func(name string) bool { return !isFile(name) })
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
