package report

import (
	"context"
	"errors"
	"fmt"

	"slipway/flash"
)

// How a run fails, as far as a script has to know: it may try again later, look at
// the board, or fix a file. An error that is none of these is any other one.
var (
	// ErrUnreachable is for a board that did not answer, let nobody in, or was lost in
	// the middle.
	ErrUnreachable = errors.New("the board was not reached")
	// ErrFailed is what a run ends with whose report is whole and says that the board
	// failed.
	ErrFailed = errors.New("the board failed its checks")
	// ErrWrong is for suites and board.yml files that cannot be used as they are.
	ErrWrong = errors.New("a suite or a board.yml is wrong")
	// errNoStatus is for a container that has no status of its own to tell.
	errNoStatus = errors.New("the container has no status")
)

// noStatus is what deploy:run exits with then, whatever the reason was, as ssh does:
// the programs of containers rarely end with it.
const noStatus = 255

// outcomes are the kinds of failure, with the word for them in a report and the
// status that a command exits with. 2 is for command lines that lack something.
var outcomes = []struct {
	err    error
	word   string
	status int
}{
	{ErrUnreachable, "unreachable", 3},
	{ErrFailed, "check", 4},
	{ErrWrong, "suite", 5},
	{flash.ErrRefused, "refused", 6},
	{flash.ErrImage, "image", 7},
	{flash.ErrDevice, "device", 8},
}

// ExitStatus is what a command exits with that ended with err.
func ExitStatus(err error) int {
	var c ContainerFailed
	if errors.As(err, &c) {
		return max(1, int(c.Status&0xff)) // a failure's last byte may be 0
	}
	if errors.Is(err, errNoStatus) {
		return noStatus
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.status
		}
	}
	if err != nil {
		return 1
	}
	return 0
}

// ReasonFor is the word for err in a report.
func ReasonFor(err error) string {
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.word
		}
	}
	if err != nil {
		return "other"
	}
	return ""
}

// Because says of which kind err is, and leaves its text as it is. What was stopped
// is of no kind.
func Because(ctx context.Context, kind, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, kind) {
		return err
	}
	return because{kind, err}
}

type because struct{ kind, err error }

func (b because) Error() string   { return b.err.Error() }
func (b because) Unwrap() []error { return []error{b.kind, b.err} }

// OfContainer is err as the command of a container exits with it: any but that
// of the container's program is none of its status.
func OfContainer(err error) error {
	if c := (ContainerFailed{}); err == nil || errors.As(err, &c) {
		return err
	}
	return because{errNoStatus, err}
}

// ContainerFailed is a container's program that ended with a status of its own, which
// the command then has too.
type ContainerFailed struct{ Status uint32 }

func (e ContainerFailed) Error() string {
	return fmt.Sprintf("the container's program ended with status %d", e.Status)
}
