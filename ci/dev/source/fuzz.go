package source

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"slipway/layers/lazy"
	"slipway/layers/progress"
)

// fuzzTarget is one Fuzz function.
type fuzzTarget struct {
	module string // folder of its module
	pkg    string
	name   string
}

// Fuzz runs every fuzz target of the clone for perTarget and writes a line about each on w.
// It stops at the first crash. The input is then in the package's testdata/fuzz, and go
// test runs it from now on.
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

func fuzzTargets(ctx context.Context, root string) ([]fuzzTarget, error) {
	modules, err := goModules(root)
	if err != nil {
		return nil, err
	}
	var targets []fuzzTarget
	for _, dir := range modules {
		results := newTestResults()
		list := goTest{dir: dir, args: []string{"-list=^Fuzz", "./..."}, noise: results.noise}
		list.each = func(e testEvent) error {
			if name := strings.TrimSpace(e.Output); strings.HasPrefix(name, "Fuzz") {
				targets = append(targets, fuzzTarget{dir, e.Package, name})
			}
			results.add(dir, e)
			return results.limit()
		}
		if err := list.runTests(ctx); err != nil {
			return nil, err
		}
		for _, c := range results.failed() {
			return nil, fmt.Errorf("list the fuzz targets of %s: %s", c.pkg.path, c.output)
		}
	}
	return targets, nil
}

// fuzzLine matches the progress lines of the fuzzer.
var fuzzLine = lazy.Regexp(`^fuzz: elapsed: (\S+), execs: (\d+).*\(total: (\d+)\)`)

// runTarget runs one target and returns its last progress.
func (t fuzzTarget) runTarget(ctx context.Context, d time.Duration) (said string, err error) {
	results := newTestResults()
	err = progress.Run(ctx, "fuzz "+t.name, func(s *progress.Step) (string, error) {
		// Without a limit, the fuzzer may spend all its time on making one input shorter.
		args := []string{"-run=^$", "-fuzz=^" + t.name + "$", "-fuzztime=" + d.String(), "-fuzzminimizetime=100x", t.pkg}
		test := goTest{dir: t.module, args: args, noise: results.noise}
		test.each = func(e testEvent) error {
			if m := fuzzLine().FindStringSubmatch(e.Output); m != nil {
				said = fmt.Sprintf("%6s  %s execs, %s inputs of interest", m[1], m[2], m[3])
				s.Detail(said)
				return nil
			}
			results.add(t.module, e)
			return nil
		}
		if err := test.runTests(ctx); err != nil {
			return "", err
		}
		return said, t.crashError(results, said)
	})
	return said, err
}

// crashError returns the error of a target that failed, or that did not start to fuzz.
func (t fuzzTarget) crashError(results *testResults, said string) error {
	if failures := results.failed(); len(failures) > 0 && !outOfTime(failures[0].output.String()) {
		return fmt.Errorf("%s %s failed; the input is below its testdata/fuzz, commit it with the fix\n  | %s",
			t.pkg, t.name, strings.ReplaceAll(failures[0].output.String(), "\n", "\n  | "))
	}
	if said == "" {
		return fmt.Errorf("%s %s: the fuzzer did not start", t.pkg, t.name)
	}
	return nil
}

// outOfTime distinguishes the end of the fuzz time from a failure. The fuzzer confuses the
// two if an input is running at the end. A real failure names the file of the input, or the
// seed that failed.
func outOfTime(output string) bool {
	return strings.HasSuffix(strings.TrimSpace(output), "context deadline exceeded") &&
		!strings.Contains(output, "Failing input") && !strings.Contains(output, "failure while testing seed")
}
