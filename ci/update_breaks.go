package ci

import (
	"context"
	"fmt"

	"slipway/ci/report"
	boardupdate "slipway/flash/target/update"
)

// connectionBreaks are the connections to a board that broke during one piece of work. A reader
// wants to know of the first: what came after it may be its consequence.
type connectionBreaks struct {
	n           int
	first, last error
}

// noteBreak says whether an error is of a board that is out of reach, and keeps it then.
func (b *connectionBreaks) noteBreak(ctx context.Context, u *updateRun, err error) bool {
	if err == nil || ctx.Err() != nil || !u.isUnreachable(ctx, err) {
		return false
	}
	if b.n++; b.first == nil {
		b.first = err
	}
	b.last = err
	return true
}

// explainError is an error of another sort, with what broke before it.
func (b *connectionBreaks) explainError(err error) error {
	if err == nil || b.n == 0 {
		return err
	}
	return fmt.Errorf("%w; before that, %s", err, b)
}

// exhaustedError is the error where no try is left. What the last one seemed to fail for is no
// word of the board's.
func (b *connectionBreaks) exhaustedError(ctx context.Context) error {
	return report.Because(ctx, report.ErrUnreachable, fmt.Errorf("%w: %s", boardupdate.ErrLost, b))
}

func (b *connectionBreaks) String() string {
	text := fmt.Sprintf("the connection broke %d times: %v", b.n, b.first)
	if b.n > 1 && b.last.Error() != b.first.Error() {
		text += fmt.Sprintf("; at last: %v", b.last)
	}
	return text
}
