package ci

import (
	"context"
	"errors"
	"fmt"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	boardupdate "slipway/flash/boardssh/update"
)

// connectionBreaks counts how often the connection to a board broke during one operation.
// It keeps the first error, because later errors may follow from it.
type connectionBreaks struct {
	n           int
	first, last error
}

// noteBreak reports whether err means that the connection broke and that another try makes sense,
// and counts it. It allows no try after two silences in a row, or after the first of a dry run.
func (b *connectionBreaks) noteBreak(ctx context.Context, u *updateRun, err error) bool {
	silent := errors.Is(err, boardssh.ErrSilent)
	if err == nil || ctx.Err() != nil || silent && (u.how.DryRun || errors.Is(b.last, boardssh.ErrSilent)) || !u.isUnreachable(ctx, err) {
		return false
	}
	if b.n++; b.first == nil {
		b.first = err
	}
	b.last = err
	return true
}

// explainError adds the earlier breaks of the connection to an error, if there were any.
func (b *connectionBreaks) explainError(err error) error {
	if err == nil || b.n == 0 {
		return err
	}
	return fmt.Errorf("%w; before that, %s", err, b)
}

// lostAfterTries returns ErrLost with the breaks as text, for after the last try. It does not wrap
// their errors, because the cause may be on this machine.
func (b *connectionBreaks) lostAfterTries(ctx context.Context) error {
	return report.Because(ctx, report.ErrUnreachable, fmt.Errorf("%w: %s", boardupdate.ErrLost, b))
}

// String returns the number of breaks, the first error, and the last if it is another one.
func (b *connectionBreaks) String() string {
	text := fmt.Sprintf("the connection broke %d times: %v", b.n, b.first)
	if b.n > 1 && b.last.Error() != b.first.Error() {
		text += fmt.Sprintf("; at last: %v", b.last)
	}
	return text
}
