package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// fuzzTarget is one Fuzz function.
type fuzzTarget struct {
	module string // folder of its module
	pkg    string
	name   string
}

// Fuzz runs every fuzz target of the clone for perTarget and writes a line about each on w. It
// stops at the first crash. go test runs its input, in the package's testdata/fuzz, from now on.
func Fuzz(ctx context.Context, w io.Writer, perTarget time.Duration) error {
	root, err := cloneRoot()
	if err != nil {
		return err
	}
	targets, err := fuzzTargets(ctx, root)
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return fmt.Errorf("%s: no fuzz target found", root)
	}
	for _, t := range targets {
		line, err := t.runTarget(ctx, perTarget)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%-28s %-24s %s\n", t.pkg, t.name, line)
	}
	return nil
}

// fuzzTargets lists the fuzz functions of all modules below root.
func fuzzTargets(ctx context.Context, root string) ([]fuzzTarget, error) {
	modules, err := goModules(root)
	if err != nil {
		return nil, err
	}
	var targets []fuzzTarget
	for _, dir := range modules {
		out, err := run.Output(ctx, command(dir, "go", "test", "-list=^Fuzz", "./..."))
		if err != nil {
			return nil, fmt.Errorf("list the fuzz targets: %w", err)
		}
		listed := len(targets) // of earlier packages
		for line := range strings.Lines(string(out)) {
			switch words := strings.Fields(line); {
			case strings.HasPrefix(line, "Fuzz"):
				targets = append(targets, fuzzTarget{module: dir, name: words[0]})
			case len(words) > 1 && words[0] == "ok": // the package of the names above
				for ; listed < len(targets); listed++ {
					targets[listed].pkg = words[1]
				}
			}
		}
	}
	return targets, nil
}

// fuzzLine matches the progress lines of the fuzzer.
var fuzzLine = plaintext.Regexp(`^fuzz: elapsed: (\S+), execs: (\d+).*\(total: (\d+)\)`)

// runTarget runs one target for d and returns its last progress. A found crash is an error.
func (t fuzzTarget) runTarget(ctx context.Context, d time.Duration) (last string, err error) {
	err = progress.Run(ctx, "fuzz "+t.name, func(s *progress.Step) (string, error) {
		// Without a limit, the fuzzer may spend all its time on making one input shorter.
		c := command(t.module, "go", "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+d.String(), "-fuzzminimizetime=20x", t.pkg)
		c.Line = func(line string) {
			if m := fuzzLine().FindStringSubmatch(line); m != nil {
				last = fmt.Sprintf("%6s  %s execs, %s inputs of interest", m[1], m[2], m[3])
				s.Detail(last)
			}
		}
		err := run.Run(ctx, c)
		var failure *run.Failure
		switch {
		case errors.As(err, &failure) && !outOfTime(failure.Tail):
			return "", fmt.Errorf("%s %s failed; the input is below its testdata/fuzz, commit it with the fix: %w", t.pkg, t.name, err)
		case failure == nil && err != nil:
			return "", err
		case last == "":
			return "", fmt.Errorf("%s %s: the fuzzer did not start", t.pkg, t.name)
		}
		return last, nil
	})
	return last, err
}

// outOfTime reports whether a failed fuzzer only reached its end of time, with an input still
// running. A real failure names the file of the input, or the seed that failed.
func outOfTime(output string) bool {
	for line := range strings.Lines(output) {
		if strings.TrimSpace(line) == "context deadline exceeded" {
			return !strings.Contains(output, "Failing input") && !strings.Contains(output, "failure while testing seed")
		}
	}
	return false
}
