//go:build mage

// Slipway builds images for Jetson boards and BlueField DPUs, puts them on boards
// and proves on the board that they work.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"slipway/ci/report"
	"slipway/flash/target"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// options are those of every command that builds or needs a build.
var options = images.Options{Dir: "build"}

// withSignals runs work with a context that a signal ends, and with a progress reporter.
// A second Ctrl-C ends the process at once. Mage itself waits only 5 s after a Ctrl-C and
// ignores SIGTERM.
func withSignals(ctx context.Context, work func(context.Context) error) error {
	signal.Reset(syscall.SIGINT)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, func() {
		time.Sleep(passedOn)
		stop()
	})()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if underMage() {
		go watchParent(ctx, cancel)
	}
	reporter := progress.New(progress.ForOutput(os.Stderr))
	defer reporter.Close()
	return withStatus(work(progress.With(ctx, reporter)))
}

// passedOn is how long after a Ctrl-C another program, such as mage, may send the same
// signal again.
const passedOn = 300 * time.Millisecond

// runPatiently runs work that may finish its current step after a first Ctrl-C, which
// ends ctx. A second Ctrl-C closes now, which breaks that off.
func runPatiently(ctx context.Context, work func(ctx context.Context, now <-chan struct{}) error) error {
	signal.Reset(syscall.SIGINT) // Mage would end this process 5 s after the first
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	now := make(chan struct{})
	closeNow := sync.OnceFunc(func() { close(now) })
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		first := <-signals
		cancel(fmt.Errorf("%v", first))
		for began := time.Now(); first == syscall.SIGINT && time.Since(began) < passedOn; {
			first = <-signals
		}
		closeNow()
	}()
	if underMage() {
		go watchParent(ctx, func(gone error) { cancel(gone); closeNow() })
	}
	reporter := progress.New(progress.ForOutput(os.Stderr))
	defer reporter.Close()
	return withStatus(work(progress.With(ctx, reporter), now))
}

// withStatus lets Mage exit with the status of the error's kind. Mage asks only the
// outermost error.
func withStatus(err error) error {
	if err == nil {
		return nil
	}
	return exitError{err}
}

type exitError struct{ error }

func (s exitError) ExitStatus() int { return report.ExitStatus(s.error) }
func (s exitError) Unwrap() error   { return s.error }

// runFor loads a board's spec and runs work with it.
func runFor(ctx context.Context, board string, work func(context.Context, images.Spec) error) error {
	return withSignals(ctx, func(ctx context.Context) error {
		spec, err := loadSpec(ctx, board)
		if err != nil {
			return err
		}
		return work(ctx, spec)
	})
}

// runPatientlyFor is runPatiently for a board.
func runPatientlyFor(ctx context.Context, board string, work func(ctx context.Context, spec images.Spec, now <-chan struct{}) error) error {
	return runPatiently(ctx, func(ctx context.Context, now <-chan struct{}) error {
		spec, err := loadSpec(ctx, board)
		return firstError(err, func() error { return work(ctx, spec, now) })
	})
}

// withRate runs work with a limit on the bytes per second to the board.
func withRate(ctx context.Context, rate *string, work func(context.Context) error) error {
	limit, err := target.ParseRate(given(rate, ""))
	return firstError(err, func() error { return work(target.WithRate(ctx, limit)) })
}

// runWithRate is runFor with such a limit.
func runWithRate(ctx context.Context, board string, rate *string, work func(context.Context, images.Spec) error) error {
	return withRate(ctx, rate, func(ctx context.Context) error { return runFor(ctx, board, work) })
}

// asRoot sets whether programs on boards run by sudo, if the flag -become was given.
func asRoot(ctx context.Context, become *bool) context.Context {
	if become == nil {
		return ctx
	}
	return target.WithBecome(ctx, *become)
}

func loadSpec(ctx context.Context, board string) (images.Spec, error) {
	spec, err := images.Load(board)
	return spec, report.Because(ctx, report.ErrWrong, err)
}

// underMage reports whether "go tool mage" runs this binary from its cache.
func underMage() bool {
	self, err := os.Executable()
	if err != nil {
		return false
	}
	cache := os.Getenv("MAGEFILE_CACHE")
	if cache == "" {
		home, _ := os.UserHomeDir()
		cache = filepath.Join(home, ".magefile")
	}
	return filepath.Dir(self) == cache
}

// describeSource asks git which source this program was compiled from. Mage has just
// compiled it in the clone where it was started.
func describeSource() {
	if !underMage() || !compiledHere() {
		return
	}
	if text, err := exec.Command(images.Describe[0], images.Describe[1:]...).Output(); err == nil {
		images.Described(string(text))
	}
}

// compiledHere reports whether these files are the same as those of the clone. With -w or
// MAGEFILE_HASHFAST, a program compiled from other files may run here.
func compiledHere() bool {
	names, err := fs.Glob(sources, "*.go")
	return err == nil && !slices.ContainsFunc(names, func(name string) bool {
		compiled, _ := sources.ReadFile(name)
		now, err := os.ReadFile(filepath.Join("magefiles", name))
		return err != nil || !bytes.Equal(compiled, now)
	})
}

// watchParent ends the work when mage is gone. A SIGTERM ends mage at once and would
// leave this process running.
func watchParent(ctx context.Context, cancel context.CancelCauseFunc) {
	parent := os.Getppid()
	for ctx.Err() == nil {
		if os.Getppid() != parent {
			cancel(errors.New("mage was ended"))
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func printJSON(v any) error { return plaintext.WriteJSON(os.Stdout, v) }

// given returns the value of an optional argument, or otherwise.
func given[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}
