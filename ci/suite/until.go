package suite

import (
	"context"
	"time"
)

// WaitUntil asks again and again, until it is so or is unlikely to become so. That it never
// was is no error: whoever asks knows what was seen last.
func WaitUntil(ctx context.Context, patience, pause time.Duration, ask func() (so bool, err error)) error {
	for end := time.Now().Add(patience); ; {
		so, err := ask()
		if so || err != nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
