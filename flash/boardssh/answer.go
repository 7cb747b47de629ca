package boardssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"slipway/layers/plaintext"
)

// A question is a program, or a call of a service, that answers at once on a sound board. The
// board may run it and still be silent, because a program hangs. The silence limit
// holds for a question as a whole. A long answer may take longer, while it moves.

type askingKey struct{}

// Asking calls work, which asks a board questions through Answer. After the first question without
// an answer, Asking cancels work's context and returns the error that names that question.
func Asking(ctx context.Context, work func(context.Context) error) error {
	asking, end := context.WithCancelCause(ctx)
	defer end(nil)
	err := work(context.WithValue(asking, askingKey{}, end))
	if cause := context.Cause(asking); ctx.Err() == nil && errors.Is(cause, ErrSilent) && !errors.Is(err, ErrSilent) {
		return cause
	}
	return err
}

// Answer calls question with the silence limit as its timeout. Outside of Asking the timeout is at
// least the given least. After a timeout, the error says what was asked. Within Asking, a timeout
// also cancels the work, and later calls return the same error.
func Answer(ctx context.Context, least time.Duration, what string, question func(context.Context) error) error {
	limit, err := silenceLimit()
	if err != nil {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrSilent) { // an earlier question had no answer
		return cause
	}
	end, asking := ctx.Value(askingKey{}).(context.CancelCauseFunc)
	silent := silentError(limit)
	if !asking && least > limit {
		limit, silent = least, fmt.Errorf("%w: no answer for %s", ErrSilent, least)
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, silent)
	defer cancel()
	err = question(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil && !errors.Is(err, ErrSilent) {
		err = fmt.Errorf("%s: %w", what, context.Cause(limited))
	}
	if asking && errors.Is(err, ErrSilent) {
		end(err)
	}
	return err
}

// Ask runs a program that answers at once. The silence limit applies to the whole program.
func (c *Conn) Ask(ctx context.Context, argv ...string) (Result, error) {
	return c.ask(ctx, 0, nil, MaxOutputBytes, argv)
}

// AskOutput is Output with the limit of Ask.
func (c *Conn) AskOutput(ctx context.Context, argv ...string) (string, error) {
	r, err := c.Ask(ctx, argv...)
	return c.trimmedOutput(argv, r, err)
}

// AskUpTo is FeedUpTo with the limit of Ask, which outside of Asking is at least longestAnswer.
func (c *Conn) AskUpTo(ctx context.Context, stdin io.Reader, most int, argv ...string) (Result, error) {
	return c.ask(ctx, longestAnswer, stdin, most, argv)
}

const longestAnswer = time.Hour

// questionKey marks a question's context: that its program still runs is no sign of life.
type questionKey struct{}

// ask runs argv as FeedUpTo does, within Answer. A timeout's error has an ssh line that shows which
// program hangs.
func (c *Conn) ask(ctx context.Context, least time.Duration, stdin io.Reader, most int, argv []string) (r Result, err error) {
	look := strings.Join(argv, " ")
	if slices.ContainsFunc(argv, func(word string) bool { return plaintext.Quote(word) != word }) {
		look = "ps -ef"
	}
	err = Answer(ctx, least, "run "+argv[0]+" on "+c.addr.String(), func(limited context.Context) error {
		r, err = c.FeedUpTo(context.WithValue(limited, questionKey{}, true), stdin, most, argv...)
		if errors.Is(err, ErrSilent) && ctx.Err() == nil {
			err = NextStep{err, fmt.Sprintf("ssh %s %s  # see which program does not end", c.login.sshArgs(), plaintext.SingleQuote(look))}
		}
		return err
	})
	return r, err
}
