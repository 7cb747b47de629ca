// Package soak kills commands at random moments and runs them again: whatever
// the moment was, what they leave in the end must be the same. An area is one
// command; each is one file. The area hook starts containers instead, many and many
// at a time, and fails if they leave something; rules does so with rules of
// FRR's. The area tests repeats our own tests.
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
	"slices"
	"strings"
	"syscall"
	"time"
)

// Options says how long to go on and where the moments come from.
type Options struct {
	Kills      int
	Seed       uint64
	Containers int           // one after another
	MiB        int           // of an image that is flashed; 0: as many as the area thinks right
	Rounds     int           // of what is not killed; 0: as many as the area thinks right
	Each       time.Duration // what a test may take; 0: as long as its rounds need
	Only       string        // the mutations, or tests, whose names match this pattern
	Self       []string      // the program that knows our commands
}

var areas = map[string]func(context.Context, io.Writer, string, Options) error{
	"build":     Build,
	"flash":     Flash,
	"hook":      Hook,
	"layers":    Layers,
	"mutations": Mutations,
	"rules":     Rules,
	"tests":     Tests,
	"update":    Update,
}

// Areas are the names that Run takes.
func Areas() []string { return slices.Sorted(maps.Keys(areas)) }

// Run soaks one area with the program that this process is, in a folder of its
// own, which stays for a look where the area failed.
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

// Job is a command that may be killed at any time.
type Job struct {
	Argv  []string
	Dir   string
	Env   []string
	Begin func(ctx context.Context, round int) error           // makes something to do; not killed
	State func(ctx context.Context, round int) (string, error) // what it left
}

// Kill runs every round of the job to its end, which shows how long it takes and
// what it leaves. Then it goes through the rounds again and again, kills each up
// to three times before it may end, and each has to leave the same.
func Kill(ctx context.Context, w io.Writer, j Job, rounds int, opt Options) error {
	random := rand.New(rand.NewPCG(opt.Seed, 0))
	fmt.Fprintf(w, "seed %d\n", opt.Seed)
	want, took, err := j.firstPass(ctx, rounds)
	if err != nil {
		return err
	}
	for round, killed := 0, 0; killed < opt.Kills; round = (round + 1) % rounds {
		if err := j.Begin(ctx, round); err != nil {
			return err
		}
		for range min(1+random.IntN(3), opt.Kills-killed) {
			after := time.Duration(random.Int64N(int64(took[round])))
			ended, err := j.runAndKill(ctx, after)
			if err != nil {
				return fmt.Errorf("kill %d, after %s: %w", killed+1, after, err)
			}
			killed++
			fmt.Fprintf(w, "kill %d of %d: round %d after %s%s\n", killed, opt.Kills, round, after.Round(time.Millisecond), map[bool]string{true: ", which had ended"}[ended])
		}
		if err := j.compareState(ctx, round, want[round]); err != nil {
			return fmt.Errorf("after kill %d: %w", killed, err)
		}
	}
	return nil
}

func (j Job) firstPass(ctx context.Context, rounds int) (states []string, took []time.Duration, err error) {
	for round := range rounds {
		if err := j.Begin(ctx, round); err != nil {
			return nil, nil, err
		}
		began := time.Now()
		if err := j.runCommand(ctx); err != nil {
			return nil, nil, err
		}
		took = append(took, time.Since(began))
		state, err := j.State(ctx, round)
		if err != nil {
			return nil, nil, err
		}
		states = append(states, state)
	}
	return states, took, nil
}

func (j Job) compareState(ctx context.Context, round int, want string) error {
	if err := j.runCommand(ctx); err != nil {
		return fmt.Errorf("run again: %w", err)
	}
	got, err := j.State(ctx, round)
	if err == nil && got != want {
		return fmt.Errorf("round %d left\n%swant\n%s", round, got, want)
	}
	return err
}

func (j Job) newCommand(ctx context.Context, out io.Writer) *exec.Cmd {
	cmd := exec.CommandContext(ctx, j.Argv[0], j.Argv[1:]...)
	cmd.Dir, cmd.Env = j.Dir, append(os.Environ(), j.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 10 * time.Second // its children may hold its output
	return cmd
}

func (j Job) runCommand(ctx context.Context) error {
	var out strings.Builder
	if err := j.newCommand(ctx, &out).Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(j.Argv, " "), err, out.String())
	}
	return nil
}

// runAndKill runs the job and ends it with a SIGKILL, its own process alone, as the
// kernel does where memory runs out. Did it end before?
func (j Job) runAndKill(ctx context.Context, after time.Duration) (ended bool, err error) {
	cmd := j.newCommand(ctx, nil)
	if err := cmd.Start(); err != nil {
		return false, err
	}
	defer time.AfterFunc(after, func() { _ = cmd.Process.Kill() }).Stop()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL && ctx.Err() == nil {
			return false, nil
		}
	}
	return true, err
}
