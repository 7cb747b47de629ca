package bitbake

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"slipway/layers/localfile"
)

// On a full disk some programs, as mmdebstrap 1.3, wait for ever. Then bitbake waits too.

// errFull is why a build on a full disk was ended.
var errFull = errors.New("the disk is full")

const (
	fullEvery = time.Second
	fullLooks = 30       // in a row: a failing task ends by itself in that time
	fullBytes = 16 << 20 // what is too little for any task
)

// endWhenFull returns a context that ends when the disk of dir had less than least bytes free at
// fullLooks checks in a row. The caller calls ended after the build: it checks once more, stops,
// and tells whether a check found the disk full. Many programs do not say why they cannot write.
func endWhenFull(ctx context.Context, dir string, every time.Duration, least int64) (_ context.Context, ended func() bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	var seen atomic.Bool
	isFull := func() bool {
		free, known := spaceOf(dir)
		full := known && free < least
		if full {
			seen.Store(true)
		}
		return full
	}
	go func() {
		looks := time.NewTicker(every)
		defer looks.Stop()
		for full := 0; full < fullLooks; {
			select {
			case <-ctx.Done():
				return
			case <-looks.C:
			}
			if isFull() {
				full++
			} else {
				full = 0
			}
		}
		cancel(fmt.Errorf("%w: %s has had less than %d MiB for %s\nnext: %s", errFull, dir, least>>20, fullLooks*every, fullNext))
	}()
	return ctx, func() bool {
		isFull()
		cancel(nil)
		return seen.Load()
	}
}

const (
	fullWhy  = "the disk is full, or was while it ran"
	fullNext = "free some space and build again, which resumes"
)

// noteFull records that the disk was full, and sets that cause on each failure without a cause.
func (r *Record) noteFull() {
	r.Disk.Full = true
	for i, f := range r.Failures {
		if f.Why == "" {
			r.Failures[i].Why, r.Failures[i].Next = fullWhy, fullNext
		}
	}
}

// spaceOf returns the free bytes of the build folder's tmp, or else of the folder, if known.
func spaceOf(build string) (free int64, known bool) {
	for _, dir := range []string{filepath.Join(build, "tmp"), build} {
		if free, err := localfile.FreeBytes(dir); err == nil {
			return free, true
		}
	}
	return 0, false
}

// endNow returns a channel that closes when bitbake must not wait for its running tasks: when now
// closes, or at once when the disk is full. asked is the user's context, and ctx, made from asked,
// also ends on a full disk. If now is nil, endNow returns nil.
func endNow(asked, ctx context.Context, now <-chan struct{}) <-chan struct{} {
	if now == nil {
		return nil
	}
	either := make(chan struct{})
	go func() {
		defer close(either)
		select {
		case <-now:
			return
		case <-ctx.Done():
		}
		if asked.Err() != nil { // else the disk is full, or the build over
			<-now
		}
	}()
	return either
}
