package target

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// A question without an answer ends the others, also where its error is dropped.
func TestAsking(t *testing.T) {
	t.Setenv(SilenceVariable, "1s")
	asked := 0
	err := Asking(t.Context(), func(ctx context.Context) error {
		for _, what := range []string{"first", "second", "third"} {
			_ = Answer(ctx, 0, what, func(ctx context.Context) error {
				if asked++; what == "first" {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			})
		}
		return nil
	})
	if !errors.Is(err, ErrSilent) || !strings.HasPrefix(err.Error(), "second: ") || asked != 2 {
		t.Errorf("Asking() = %v after %d questions; want %v of the second", err, asked, ErrSilent)
	}
}
