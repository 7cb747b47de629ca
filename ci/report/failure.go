package report

import (
	"context"
	"errors"
	"fmt"

	"slipway/flash"
	"slipway/images"
	"slipway/layers/yaml"
)

// How a run fails, as far as a script has to know: it may try again later, look at
// the board, or fix a file. An error that is none of these is any other one.
var (
	// ErrUnreachable means: no answer, a refused login, or a board lost during the run.
	ErrUnreachable = errors.New("the board was not reached")
	// ErrFailed means that the report is complete and says that the board failed.
	ErrFailed = errors.New("the board failed its checks")
	// ErrWrong means that a suite or a board.yml file cannot be used as it is.
	ErrWrong = errors.New("a suite or a board.yml is wrong")
	// ErrNotBegun means that a run asked no board. It writes no report: the last one stays.
	ErrNotBegun = errors.New("the run did not begin")
	// errNoStatus means that the container has no exit status.
	errNoStatus = errors.New("the container has no status")
)

// noStatus is deploy run's exit status if the container has none: that of ssh, rare in programs.
const noStatus = 255

type outcome struct {
	err    error
	word   string
	status int
}

// outcomes are the kinds of failure, each with its word in a report and a command's exit status.
var outcomes = []outcome{
	{ErrUnreachable, "unreachable", 3},
	{ErrFailed, "check", 4},
	{ErrWrong, "suite", 5},
	{images.ErrBoardFile, "suite", 5},
	{yaml.ErrProject, "suite", 5},
	{flash.ErrRefused, "refused", 6},
	{flash.ErrImage, "image", 7},
	{images.ErrNoArtifact, "image", 7},
	{flash.ErrDevice, "device", 8},
}

// ExitStatus returns the exit status of a command that ended with err: 0 for nil, that of its kind
// in outcomes, or 1. For ContainerFailed it is the low byte of the program's status, but at least
// 1. For an error that OfContainer marked it is noStatus.
func ExitStatus(err error) int {
	if c, ok := errors.AsType[ContainerFailed](err); ok {
		return max(1, int(c.Status&0xff)) // a failure's last byte may be 0
	}
	if errors.Is(err, errNoStatus) {
		return noStatus
	}
	return outcomeOf(err).status
}

// OfStatus returns the first kind of failure with a command's exit status, or nil for another one.
func OfStatus(status int) error {
	for _, o := range outcomes {
		if o.status == status {
			return o.err
		}
	}
	return nil
}

// ReasonFor returns the word for err in a report: that of its kind, "other", or "" for nil.
func ReasonFor(err error) string { return outcomeOf(err).word }

// outcomeOf returns the outcome of err's kind, "other" with status 1, or no word and 0 for nil.
func outcomeOf(err error) outcome {
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o
		}
	}
	if err != nil {
		return outcome{err, "other", 1}
	}
	return outcome{}
}

// Because adds a kind to err and keeps its text. It returns err as it is if one of them is nil or ctx ended.
func Because(ctx context.Context, kind, err error) error {
	if err == nil || kind == nil || ctx.Err() != nil || errors.Is(err, kind) {
		return err
	}
	return kindError{kind, err}
}

// NotBegun adds the kind ErrNotBegun to err, which keeps its text and its other kinds.
func NotBegun(err error) error { return Because(context.Background(), ErrNotBegun, err) }

type kindError struct{ kind, err error }

func (b kindError) Error() string   { return b.err.Error() }
func (b kindError) Unwrap() []error { return []error{b.kind, b.err} }

// OfContainer marks an error of deploy run that is not from the container's own program, so that
// ExitStatus returns noStatus for it. It returns nil and ContainerFailed as they are.
func OfContainer(err error) error {
	if c := (ContainerFailed{}); err == nil || errors.As(err, &c) {
		return err
	}
	return kindError{errNoStatus, err}
}

// ContainerFailed is the error for a container's program that failed, with the program's status.
type ContainerFailed struct{ Status uint32 }

func (e ContainerFailed) Error() string {
	return fmt.Sprintf("the container's program ended with status %d", e.Status)
}
