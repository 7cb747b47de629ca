package source

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/layers/progress"
	"slipway/layers/run"
)

// A package's tests build and boot boards one after another, and on a busy machine take
// several times as long as on an idle one. This is for one that hangs.
const testTimeout = "40m"

// unraced lists the packages that RaceMost leaves out. Their tests run nothing concurrently, or
// compile, unpack or start programs by the hundred, which takes two to ten times as long under it.
var unraced = []string{
	"slipway/ci/dev/", "slipway/ci/plan/", "slipway/ci/report/", "slipway/ci/trends/", "slipway/flash/probe/", "slipway/flash/sealed/",
	"slipway/flash/source/", "slipway/flash/boardssh/undo/", "slipway/images/sbom/", "slipway/magefiles/", "slipway/runtime-hook/",
}

func isUnraced(importPath string) bool {
	return slices.ContainsFunc(unraced, func(prefix string) bool { return strings.HasPrefix(importPath+"/", prefix) })
}

// testPart is what one go test runs: packages of a module.
type testPart struct {
	dir, module string // its folder, and its name
	lane        string // parts of different lanes run side by side
	race        bool
	cpu         string   // the only processor that the tests may use; "" is all
	paths       []string // of the packages
}

// firstHalf lists the packages whose tests run in the first lane. They take as long as those
// of the other packages, which run in the last one.
//
// A program under the race detector gets one processor: on two, it interrupts the other one
// for each new page of its shadow memory. In a virtual machine, the tests of package flash
// then take 2.5 times as much CPU time.
var firstHalf = []string{"slipway/ci", "slipway/ci/fleet", "slipway/ci/suite"}

// splitTests splits each module's packages into up to three parts: unraced (none with RaceAll),
// firstHalf, and the others. Except with RaceNone, the last two have the race detector, each on one
// processor. It adds all to results, also those that do not compile.
func splitTests(ctx context.Context, root string, modules []string, results *testResults, opts TestOptions) ([]*testPart, error) {
	cpus, err := processors()
	if err != nil {
		return nil, err
	}
	var parts []*testPart
	for _, dir := range modules {
		packages, err := goList(ctx, dir, nil, "-e", "./...")
		if err != nil {
			return nil, err
		}
		module := cmp.Or(strings.TrimPrefix(strings.TrimPrefix(dir, root), "/"), "slipway")
		plain := &testPart{dir: dir, module: module}
		first, last := &testPart{dir: dir, module: module, lane: "first"}, &testPart{dir: dir, module: module, lane: "last"}
		if opts.Race != RaceNone {
			first.race, first.cpu, first.lane = true, cpus[0], cpus[0]
			last.race, last.cpu, last.lane = true, cpus[len(cpus)-1], cpus[len(cpus)-1]
		}
		for _, p := range packages {
			part := plain
			switch {
			case opts.Race != RaceAll && isUnraced(p.ImportPath):
			case slices.Contains(firstHalf, p.ImportPath):
				part = first
			default:
				part = last
			}
			part.paths = append(part.paths, p.ImportPath)
			results.packages[p.ImportPath] = &packageResult{running: map[string]string{}}
		}
		parts = append(parts, plain, first, last)
	}
	return slices.DeleteFunc(parts, func(p *testPart) bool { return len(p.paths) == 0 }), nil
}

// processors returns the numbers of the processors that this program may use.
func processors() (cpus []string, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, strconv.Itoa(cpu))
		}
	}
	return cpus, nil
}

// runParts compiles all tests and runs the lanes side by side, as tests of boards mostly wait.
func runParts(ctx context.Context, parts []*testPart, tmp string, opts TestOptions, results *testResults) error {
	if err := inTurn(ctx, parts, func(p *testPart) string { return strconv.FormatBool(p.race) }, (*testPart).compile); err != nil {
		return err
	}
	return inTurn(ctx, parts, func(p *testPart) string { return p.lane }, func(p *testPart, ctx context.Context) error {
		return p.runTests(ctx, tmp, opts, results)
	})
}

// inTurn calls do with each part, until an error: parts of a lane in turn, the lanes side by side.
func inTurn(ctx context.Context, parts []*testPart, lane func(*testPart) string, do func(*testPart, context.Context) error) error {
	lanes := map[string][]*testPart{}
	for _, p := range parts {
		lanes[lane(p)] = append(lanes[lane(p)], p)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, lane := range lanes {
		group.Go(func() error {
			for _, part := range lane {
				if err := do(part, ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// runTests runs the tests of one part. An error means that tests did not run.
func (p *testPart) runTests(ctx context.Context, tmp string, opts TestOptions, results *testResults) error {
	step := progress.Start(ctx, p.label(), int64(len(p.paths)), progress.Tasks)
	failed := 0
	err := p.runGoTest(ctx, tmp, opts, func(line []byte) {
		e := results.add(line)
		switch {
		case e.Test != "" && (e.Action == "run" || e.Action == "cont"):
			step.Detail(e.Package + " " + e.Test)
		case e.endsPackage():
			step.Add(1)
			if e.Action == "fail" {
				failed++
			}
		}
	})
	if err == nil && failed > 0 {
		step.End("", fmt.Errorf("%d packages failed", failed))
		return nil
	}
	step.End(fmt.Sprintf("%d packages", len(p.paths)), err)
	return err
}

// runGoTest calls each with every line of go test -json. Failing tests are no error.
func (p *testPart) runGoTest(ctx context.Context, tmp string, opts TestOptions, each func(line []byte)) error {
	argv := append([]string{"go", "test", "-json"}, append(testArgs(opts, p.race), p.paths...)...)
	if p.cpu != "" {
		argv = append([]string{"taskset", "--cpu-list", p.cpu}, argv...)
	}
	c := command(p.dir, argv...)
	// Git's optional locks would change the clone's .git, which Go takes for new input of many tests.
	c.Env = []string{"TMPDIR=" + tmp, raceVariable(), gcVariable(), "GIT_OPTIONAL_LOCKS=0"}
	cmd := run.Prepare(ctx, c)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	events, lines := 0, bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			each(line)
			events++
		}
		if err != nil {
			break // the end: a failure to read follows from one of the program
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("go test: stopped after %s: %w", time.Since(began).Round(time.Second), context.Cause(ctx))
	case errors.As(err, &exit) && exit.ExitCode() == 1 && events > 0:
		return nil
	case err != nil:
		return fmt.Errorf("go test in %s: %w\n%s", p.dir, err, stderr.String())
	}
	return nil
}

// label returns the part's name for the progress, such as "test slipway (first lane)".
func (p *testPart) label() string {
	label := "test " + p.module
	switch {
	case p.race:
		label += fmt.Sprintf(" (race detector, processor %s)", p.cpu)
	case p.lane != "":
		label += " (" + p.lane + " lane)"
	}
	return label
}

// compile compiles the packages and their tests, on all processors. Only a cancel is an error: the
// run itself reports others. It links nothing, because Go does not keep what it links.
func (p *testPart) compile(ctx context.Context) error {
	step := progress.Start(ctx, "compile "+p.module, int64(len(p.paths)), progress.Tasks)
	args := append(buildArgs(p.race), "-e", "-test", "-export")
	c := command(p.dir, append(append([]string{"go", "list"}, args...), p.paths...)...)
	c.Env = []string{gcVariable()}
	_, _ = run.Output(ctx, c)
	step.End("", ctx.Err())
	return ctx.Err()
}

// buildArgs returns the flags that decide how a package is compiled.
func buildArgs(race bool) []string {
	if race {
		return []string{"-tags=" + tags, "-race"}
	}
	return []string{"-tags=" + tags}
}

// raceVariable returns the variable GORACE, with a wait of 10 ms before a program exits: the usual
// second is long for hundreds of programs. Values that GORACE has already win.
func raceVariable() string {
	return "GORACE=" + strings.TrimSpace("atexit_sleep_ms=10 "+os.Getenv("GORACE"))
}

// gcVariable returns the set GOGC or 400, by which the compiler takes a fifth less CPU time.
func gcVariable() string { return "GOGC=" + cmp.Or(os.Getenv("GOGC"), "400") }

// testArgs returns go test's flags: no vet (Check runs it), no DWARF (twice the CPU time to link).
func testArgs(opts TestOptions, race bool) []string {
	args := append(buildArgs(race), "-p=1", "-vet=off", "-ldflags=-w", "-timeout="+testTimeout)
	if opts.Shuffle != 0 {
		args = append(args, "-shuffle="+strconv.FormatInt(opts.Shuffle, 10))
	}
	if opts.Run != "" {
		args = append(args, "-run="+opts.Run)
	}
	if opts.Short {
		args = append(args, "-short")
	}
	return args
}
