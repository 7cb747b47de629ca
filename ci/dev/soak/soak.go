// Package soak kills commands at random moments and runs them again: the result must always
// be the same. An area is one command, and each is one file. The area hook starts many
// containers instead, and rules adds and removes rules of FRR. Both fail if something is
// left. The area mutations checks that the suites find faults. The area tests repeats our
// own tests.
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

// Options limits the work of an area and sets the random moments.
type Options struct {
	Kills      int
	Seed       uint64
	Containers int           // one after another
	MiB        int           // size of the flashed image; 0: the area's default
	Rounds     int           // in areas that kill nothing; 0: the area's default
	Each       time.Duration // time limit of a test; 0: none
	Board      string        // of the area update; "": the default one
	Only       string        // pattern that selects mutations or tests by name
	Self       []string      // the program with our commands
}

var areas = map[string]func(context.Context, io.Writer, string, Options) error{
	"build":     Build,
	"flash":     Flash,
	"hook":      Hook,
	"isar":      Isar,
	"layers":    Layers,
	"mutations": Mutations,
	"pipelines": Pipelines,
	"rules":     Rules,
	"tests":     Tests,
	"update":    Update,
}

// Areas lists the names that Run accepts.
func Areas() []string { return slices.Sorted(maps.Keys(areas)) }

// Run soaks one area with this process's program, in a folder of its own. If the area
// fails, the folder stays for inspection.
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
	Begin func(ctx context.Context, round int) error           // prepares work for the command; not killed
	State func(ctx context.Context, round int) (string, error) // describes the result
}

// Kill first runs every round of the job to its end, to measure its time and its result.
// Then it repeats the rounds. It kills each up to three times before it may end, and the
// result has to be the same.
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
		return fmt.Errorf("round %d left\n%swant\n%s", round, linesNotIn(want, got), linesNotIn(got, want))
	}
	return err
}

// linesNotIn returns the lines of got that other lacks.
func linesNotIn(other, got string) string {
	var b strings.Builder
	known := map[string]bool{}
	for line := range strings.Lines(other) {
		known[line] = true
	}
	for line := range strings.Lines(got) {
		if !known[line] {
			b.WriteString(line)
		}
	}
	return b.String()
}

func (j Job) newCommand(ctx context.Context, out io.Writer) *exec.Cmd {
	cmd := exec.CommandContext(ctx, j.Argv[0], j.Argv[1:]...)
	cmd.Dir, cmd.Env = j.Dir, append(os.Environ(), j.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 10 * time.Second // its children may keep its output open
	return cmd
}

func (j Job) runCommand(ctx context.Context) error {
	var out strings.Builder
	if err := j.newCommand(ctx, &out).Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(j.Argv, " "), err, out.String())
	}
	return nil
}

// runAndKill runs the job and ends it with a SIGKILL. It kills only the job's own process,
// as the kernel does when memory runs out. ended means that the job ended before.
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
