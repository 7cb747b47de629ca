package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"slipway/layers/run"
)

// goTest is one run of go test -json.
type goTest struct {
	dir   string // of the module
	cpu   string // the only processor that it may use; "" is all
	args  []string
	env   []string
	raw   *sharedFile           // gets the events as they are; nil is nobody
	each  func(testEvent) error // gets each event; an error ends the run
	noise func(line string)     // gets what is no event
}

// runTests hands on the events of the tests. Tests that fail are no error here: each
// says so by an event.
func (t goTest) runTests(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reader := &eventReader{noise: t.noise, each: func(e testEvent) {
		if err := t.each(e); err != nil {
			cancel(err)
		}
	}}
	said := &excerpt{}
	argv := append([]string{"go", "test", "-json"}, t.args...)
	if t.cpu != "" {
		argv = append([]string{"taskset", "--cpu-list", t.cpu}, argv...)
	}
	c := command(t.dir, argv...)
	c.Env = t.env
	cmd := run.Prepare(ctx, c)
	raw := &lineWriter{file: t.raw}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(raw, reader), said
	began := time.Now()
	err := errors.Join(cmd.Run(), raw.flush())
	reader.flush()
	return t.verdict(ctx, err, reader.events, said, time.Since(began))
}

func (t goTest) verdict(ctx context.Context, err error, events int, said *excerpt, took time.Duration) error {
	if ctx.Err() != nil {
		return fmt.Errorf("go test: stopped after %s: %w", took.Round(time.Second), context.Cause(ctx))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && events > 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("go test in %s: %w\n%s", t.dir, err, said)
	}
	return nil
}
