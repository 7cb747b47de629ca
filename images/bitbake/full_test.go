package bitbake

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestEndWhenFull(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "tmp"), 0o755))
	for _, tt := range []struct {
		name  string
		dir   string
		least int64
		full  bool
	}{
		{"space enough", dir, 1, false},
		{"too little", dir, 1 << 62, true},
		{"not known", filepath.Join(dir, "none"), 1 << 62, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, ended := endWhenFull(t.Context(), tt.dir, time.Minute, tt.least)
			defer ended()
			time.Sleep(fullLooks*time.Minute - time.Second)
			if ctx.Err() != nil {
				t.Errorf("%s: ended after two looks: %v", tt.name, context.Cause(ctx))
			}
			time.Sleep(time.Hour)
			if got := errors.Is(context.Cause(ctx), errFull); got != tt.full {
				t.Errorf("%s: ended as %v; want a full disk: %v", tt.name, context.Cause(ctx), tt.full)
			}
		})
	}
}

// Tasks are waited for after an interrupt until now, but not on a full disk.
func TestEndNow(t *testing.T) {
	for _, full := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			asked, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			ctx, end := context.WithCancelCause(asked)
			defer end(nil)
			now := make(chan struct{})
			either := endNow(asked, ctx, now)
			if full {
				end(errFull)
			} else {
				interrupt()
			}
			synctest.Wait()
			select {
			case <-either:
				if !full {
					t.Error("after an interrupt tasks are not waited for")
				}
			default:
				if full {
					t.Error("on a full disk tasks are waited for")
				}
			}
			close(now)
			<-either
		})
	}
	if endNow(t.Context(), t.Context(), nil) != nil {
		t.Error("endNow without a channel makes one")
	}
}
