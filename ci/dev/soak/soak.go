// Package soak kills commands at random moments and runs them again: the result must always
// be the same. An area is one command, and each is one file. The area hook starts many
// containers instead and fails if something is left.
package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"slipway/layers/run"
)

// Options says how much an area does, and seeds the random moments.
type Options struct {
	HubOptions
	Kills      int
	Containers int // one after another
	Cards      int
	Self       []string // the program with our commands
}

var areas = map[string]func(context.Context, io.Writer, string, Options) error{
	"build": Build, "flash": Flash, "hook": Hook, "hub": Hub, "layers": Layers, "place": Place, "update": Update,
}

// Areas returns the names that Run accepts.
func Areas() []string { return slices.Sorted(maps.Keys(areas)) }

// Run runs one area with this process's program. The temporary folder stays if the area fails.
func Run(ctx context.Context, w io.Writer, area string, opt Options) error {
	work, ok := areas[area]
	if !ok {
		return fmt.Errorf("unknown area %q: say which (%s), as in: soak layers", area, strings.Join(Areas(), ", "))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	opt.Self = []string{self}
	dir, err := os.MkdirTemp("", "slipway-soak-"+area+"-")
	if err != nil {
		return err
	}
	if err := work(ctx, w, dir, opt); err != nil && ctx.Err() == nil {
		return fmt.Errorf("soak %s, seed %d, in %s: %w", area, opt.Seed, dir, err)
	}
	return errors.Join(context.Cause(ctx), os.RemoveAll(dir))
}

// script is an area's shell script, followed by the arguments before its verb.
type script []string

func (s script) call(ctx context.Context, verb ...string) (string, error) {
	out, err := run.Output(ctx, run.Command{Argv: slices.Concat([]string{"sh", "-eu", "-c", s[0], "sh"}, s[1:], verb)})
	return string(out), err
}

func (s script) begin(ctx context.Context, round int) error {
	_, err := s.call(ctx, "begin", fmt.Sprint(round))
	return err
}

// Job is a command that may be killed at any time.
type Job struct {
	Argv  []string
	Dir   string
	Env   []string
	Begin func(ctx context.Context, round int) error // prepares work for the command; not killed
	State func(ctx context.Context) (string, error)  // describes the result

	Interrupt bool                             // end it by Ctrl-C too
	Killed    func(ended bool) (string, error) // if set, describes what a kill left, and fails if that is not allowed
}

// Kill first runs each round of the job without a kill, to measure its time and result. Then it
// repeats the rounds, kills each up to three times, and runs it to its end: the result must be the
// same. It stops after opt.Kills kills. A job that ended before its kill does not count.
func Kill(ctx context.Context, w io.Writer, j Job, rounds int, opt Options) error {
	random := rand.New(rand.NewPCG(opt.Seed, 0))
	fmt.Fprintf(w, "seed %d\n", opt.Seed)
	want, took := make([]string, rounds), make([]time.Duration, rounds)
	for n, killed := 0, 0; n < rounds || killed < opt.Kills; n++ {
		round, tries := n%rounds, 0
		if n >= rounds {
			tries = min(1+random.IntN(3), opt.Kills-killed)
		}
		if err := j.Begin(ctx, round); err != nil {
			return err
		}
		for range tries {
			after, signal, left := time.Duration(random.Int64N(int64(took[round]))), os.Signal(os.Kill), ""
			if j.Interrupt && random.IntN(2) == 0 {
				signal = os.Interrupt
			}
			ended, err := j.run(ctx, after, signal)
			if err == nil && j.Killed != nil {
				left, err = j.Killed(ended)
			}
			if err != nil {
				return fmt.Errorf("kill %d, in round %d, %v after %s: %w", killed+1, round, signal, after, err)
			}
			if ended {
				break
			}
			killed++
			fmt.Fprintf(w, "kill %d of %d: round %d, %v after %s%s\n", killed, opt.Kills, round, signal, after.Round(time.Millisecond), left)
		}
		began := time.Now()
		_, err := j.run(ctx, 0, nil)
		took[round] = max(took[round], time.Since(began))
		state := ""
		if err == nil {
			state, err = j.State(ctx)
		}
		if n < rounds {
			want[round] = state
		}
		if err == nil && state != want[round] {
			err = fmt.Errorf("round %d left another state\n%s", round, diff.Diff("want", []byte(want[round]), "got", []byte(state)))
		}
		if err != nil {
			return fmt.Errorf("after kill %d: %w", killed, err)
		}
	}
	return nil
}

// run runs the job and, if signal is not nil, signals its process after a time. If the job fails by
// that, ended is false and err nil. After os.Interrupt each failure counts as one by the signal.
func (j Job) run(ctx context.Context, after time.Duration, signal os.Signal) (ended bool, err error) {
	out, err := os.Create(filepath.Join(j.Dir, "output")) // children of a killed job may keep it open
	if err != nil {
		return false, err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, j.Argv[0], j.Argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = j.Dir, append(os.Environ(), j.Env...), out, out
	if err := cmd.Start(); err != nil {
		return false, err
	}
	sent := false
	if signal == nil {
		err = cmd.Wait()
	} else {
		timer := time.AfterFunc(after, func() { _ = cmd.Process.Signal(signal) })
		err = cmd.Wait()
		sent = !timer.Stop()
	}
	if exit, failed := errors.AsType[*exec.ExitError](err); failed && ctx.Err() == nil {
		status, _ := exit.Sys().(syscall.WaitStatus)
		if sent && signal == os.Interrupt || signal == os.Kill && status.Signal() == syscall.SIGKILL {
			return false, nil
		}
	}
	if err != nil {
		text, _ := os.ReadFile(out.Name())
		err = fmt.Errorf("%s: %w\n%s", strings.Join(j.Argv, " "), err, text)
	}
	return true, err
}
