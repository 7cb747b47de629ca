package bitbake

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"slipway/layers/run"
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
			time.Sleep(fullLooks*time.Minute - time.Second)
			if ctx.Err() != nil {
				t.Errorf("%s: ended one look too early: %v", tt.name, context.Cause(ctx))
			}
			time.Sleep(time.Hour)
			if got := errors.Is(context.Cause(ctx), errFull); got != tt.full {
				t.Errorf("%s: ended as %v; want a full disk: %v", tt.name, context.Cause(ctx), tt.full)
			}
			if got := ended(); got != tt.full {
				t.Errorf("%s: was full: %v; want %v", tt.name, got, tt.full)
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

// A build that ends before the second look was on a full disk all the same.
func TestWasFullAtItsEnd(t *testing.T) {
	if _, ended := endWhenFull(t.Context(), t.TempDir(), time.Hour, 1<<62); !ended() {
		t.Error("a disk that is full when the build ends is not seen")
	}
}

// A full disk is said where programs do not say it, and once where they do.
func TestNoteFull(t *testing.T) {
	for _, tt := range []struct {
		tail string
		full bool
		want int
	}{
		{"tar: rootfs.tar: Wrote only 2048 of 10240 bytes", true, 1},
		{"tar: rootfs.tar: Wrote only 2048 of 10240 bytes", false, 0},
		{"cp: error writing 'a': No space left on device", true, 1},
		{"Fetcher failure for URL: 'http://a/b'. URL doesn't work", true, 1},
	} {
		f := Failure{Recipe: "a", Task: "do_install", Tail: tt.tail}
		f.Why, f.Next = explainKnownFailure(f.Tail)
		rec := Record{Failures: []Failure{f}}
		if tt.full {
			rec.noteFull()
		}
		err := rec.explainFailure(&run.Failure{Argv: []string{"bitbake"}, Status: "exit status 1"})
		if got := strings.Count(err.Error(), "why: the disk is full"); got != tt.want {
			t.Errorf("%q, full %v: %v\nwant the full disk %d times", tt.tail, tt.full, err, tt.want)
		}
		if why := rec.Failures[0].Why; tt.full && why == "" {
			t.Errorf("%q: the page says no cause", tt.tail)
		}
	}
}
