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

// options are what every command that builds or looks for builds shares.
var options = images.Options{Dir: "build"}

// withSignals gives work a context that ends with a signal, and a place to report to. A second
// Ctrl-C ends the process at once. Mage itself waits 5 s for work that a Ctrl-C ended, and
// knows no SIGTERM.
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

// passedOn is how long after a Ctrl-C other programs, such as mage, may pass the same one on.
const passedOn = 300 * time.Millisecond

// runPatiently is run for work that a first Ctrl-C asks to finish what it is at, and
// a second to break that off: now is closed then. Nothing else waits.
func runPatiently(ctx context.Context, work func(ctx context.Context, now <-chan struct{}) error) error {
	signal.Reset(syscall.SIGINT) // Mage would end this process 5 s after the first
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	now := make(chan struct{})
	hurry := sync.OnceFunc(func() { close(now) })
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		first := <-signals
		cancel(fmt.Errorf("%v", first))
		for began := time.Now(); first == syscall.SIGINT && time.Since(began) < passedOn; {
			first = <-signals
		}
		hurry()
	}()
	if underMage() {
		go watchParent(ctx, func(gone error) { cancel(gone); hurry() })
	}
	reporter := progress.New(progress.ForOutput(os.Stderr))
	defer reporter.Close()
	return withStatus(work(progress.With(ctx, reporter), now))
}

// withStatus lets Mage leave with the status that the error's kind has. Mage asks the error
// itself for it, not what that wraps.
func withStatus(err error) error {
	if err == nil {
		return nil
	}
	return exitError{err}
}

type exitError struct{ error }

func (s exitError) ExitStatus() int { return report.ExitStatus(s.error) }
func (s exitError) Unwrap() error   { return s.error }

// runFor is run for a board.
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

// withRate is for work with a limit of what goes to the board.
func withRate(ctx context.Context, rate *string, work func(context.Context) error) error {
	limit, err := target.ParseRate(given(rate, ""))
	return firstError(err, func() error { return work(target.WithRate(ctx, limit)) })
}

// runWithRate is runFor with a limit of what goes to the board.
func runWithRate(ctx context.Context, board string, rate *string, work func(context.Context, images.Spec) error) error {
	return withRate(ctx, rate, func(ctx context.Context) error { return runFor(ctx, board, work) })
}

// asRoot is for work on boards whose user is not root.
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

// underMage is true where "go tool mage" runs this binary out of its cache.
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

// describeSource asks git what this program was compiled from: mage has just done it, in
// the clone that it was started in.
func describeSource() {
	if !underMage() || !compiledHere() {
		return
	}
	if text, err := exec.Command(images.Describe[0], images.Describe[1:]...).Output(); err == nil {
		images.Described(string(text))
	}
}

// compiledHere compares these files with those of the clone: with -w, or with
// MAGEFILE_HASHFAST, a program compiled from others may run here.
func compiledHere() bool {
	names, err := fs.Glob(sources, "*.go")
	return err == nil && !slices.ContainsFunc(names, func(name string) bool {
		compiled, _ := sources.ReadFile(name)
		now, err := os.ReadFile(filepath.Join("magefiles", name))
		return err != nil || !bytes.Equal(compiled, now)
	})
}

// watchParent ends the work when mage is gone: a SIGTERM ends mage at once and
// would leave this process behind with whatever it runs.
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

// given is the value of an optional argument, or what stands for it.
func given[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}
