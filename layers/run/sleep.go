package run

import (
	"context"
	"time"
)

// Sleep waits for d. If ctx ends before, it returns the cause.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
