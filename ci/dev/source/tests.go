// Package source tests and checks Slipway's own source, in a clone of it: what
// "go tool mage test", check, fmt and fuzz call. Boards are tested by package ci.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/layers/host"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// testPackages lists what the tests need of Debian.
const testPackages = "ci/test-packages.txt"

// testDir is where a test run leaves its results, below the clone.
const testDir = "build/test"

// A package's tests build and boot boards one after another, and on a busy machine take
// several times as long as on an idle one. This is for one that hangs.
const testTimeout = "40m"

// TestOptions narrows a test run.
type TestOptions struct {
	Run     string // only tests that match, as in go test -run
	Short   bool   // skip what takes minutes
	Changed string // only packages that a change since this commit can reach; "" is all
	Race    bool   // all packages under the race detector, also those of unraced
	Shuffle bool   // in another order each time, with nothing taken from Go's test cache
}

// unraced lists the packages that are tested without the race detector unless TestOptions
// says otherwise. Their tests compile, unpack, or start programs by the hundred, which takes
// two to ten times as long under it, or they run nothing concurrently.
var unraced = []string{
	"slipway/ci/dev/", "slipway/ci/plan/", "slipway/ci/report/", "slipway/ci/trends/", "slipway/flash/probe/", "slipway/flash/sealed/",
	"slipway/flash/source/", "slipway/flash/target/undo/", "slipway/images/sbom/", "slipway/magefiles/", "slipway/runtime-hook/",
}

func isRaced(importPath string, opts TestOptions) bool {
	return opts.Race || !slices.ContainsFunc(unraced, func(prefix string) bool { return strings.HasPrefix(importPath+"/", prefix) })
}

// Tests runs every test of the clone, in all of its modules, and prints one
// summary on w. It installs the Debian packages that the tests need, and leaves
// junit.xml and events.jsonl in build/test.
func Tests(ctx context.Context, w io.Writer, opts TestOptions) error {
	root, err := cloneRoot()
	if err != nil {
		return err
	}
	list, err := os.ReadFile(filepath.Join(root, testPackages))
	if err != nil {
		return err
	}
	out := filepath.Join(root, testDir)
	report := filepath.Join(out, "junit.xml")
	// An earlier run's is no news of one that ends before it has any.
	if err := os.Remove(report); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := host.Ensure(ctx, w, filepath.Join(out, "packages.log"), packageNames(string(list))...); err != nil {
		return err
	}
	results, err := runModules(ctx, root, out, opts)
	if results == nil {
		return err
	}
	if err == nil && opts.Changed != "" && len(results.packages) == 0 {
		fmt.Fprintf(w, "no package is reached by what changed since %s\n", opts.Changed)
		return nil
	}
	if werr := writeJUnit(report, results); werr != nil {
		return errors.Join(err, werr)
	}
	printSummary(w, results)
	fmt.Fprintf(w, "%s/junit.xml  %s/events.jsonl\n", testDir, testDir)
	return errors.Join(err, results.verdict())
}

// packageNames reads the format of test-packages.txt: one name a line, the
// reason after a #.
func packageNames(list string) []string {
	var names []string
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(line, "#")
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// cloneRoot finds the clone of Slipway that holds the current folder.
func cloneRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for start := dir; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module slipway\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s: not inside a clone of Slipway; change into one, this command works on its source", start)
		}
	}
}

// goModules returns the folders below root that hold a go.mod, root first.
func goModules(root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && skipFolder(d.Name()) {
			return filepath.SkipDir
		}
		if d.Name() == "go.mod" && !d.IsDir() {
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	slices.Sort(dirs)
	return dirs, err
}

// skipFolder tells the folders that hold no source of ours.
func skipFolder(name string) bool {
	return name == "build" || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

// runModules tests all modules. Its results are worth keeping whatever the error is.
func runModules(ctx context.Context, root, out string, opts TestOptions) (*testResults, error) {
	modules, err := goModules(root)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	events, err := os.Create(filepath.Join(out, "events.jsonl"))
	if err != nil {
		return nil, err
	}
	defer events.Close()
	narrow := func(all []goPackage) []goPackage { return all }
	if opts.Changed != "" {
		changed, err := changedFiles(ctx, root, opts.Changed)
		if err != nil {
			return nil, err
		}
		narrow = func(all []goPackage) []goPackage { return reachedPackages(all, changed) }
	}
	results := newTestResults()
	parts, err := splitTests(ctx, root, modules, narrow, results, opts)
	if err != nil {
		return nil, err
	}
	err = withTempDir(func(tmp string) error {
		return runParts(ctx, parts, goTest{env: []string{"TMPDIR=" + tmp, raceOptions()}, raw: &sharedFile{File: events}}, opts, results)
	})
	if err = errors.Join(err, events.Close()); err != nil {
		results.broken(err)
	}
	return results, err
}

// withTempDir calls do with a folder for temporary files, and removes it: tests
// that are cut off leave theirs behind. What is mounted there is not removed, nor
// forgiven.
func withTempDir(do func(dir string) error) error {
	dir, err := makeTempDir()
	if err != nil {
		return err
	}
	err = do(dir)
	mounts, merr := os.ReadFile("/proc/self/mountinfo")
	if merr != nil {
		return errors.Join(err, merr)
	}
	if strings.Contains(string(mounts), " "+dir+"/") {
		return errors.Join(err, fmt.Errorf("a test left something mounted in %s; see findmnt, and umount it", dir))
	}
	return errors.Join(err, detachLoops(dir), os.RemoveAll(dir))
}

// makeTempDir makes the first folder of sw-0, sw-1 and so on that is not there. Mostly it has
// the same name in each run: Go's test cache compares TMPDIR.
func makeTempDir() (dir string, err error) {
	for i := range 1000 {
		dir = filepath.Join(os.TempDir(), "sw-"+strconv.Itoa(i)) // short, for the sake of sockets in it
		if err = os.Mkdir(dir, 0o711); err == nil {
			return dir, os.Chmod(dir, 0o711) // containers' roots and other users have to get through, as through /tmp
		}
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return "", err
}

// detachLoops detaches the loop devices over files below dir: a test that is cut off
// leaves its own attached.
func detachLoops(dir string) (err error) {
	found, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is well-formed
	for _, name := range found {
		file, unread := os.ReadFile(name)
		if unread != nil || !strings.HasPrefix(string(file), dir+"/") {
			continue
		}
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(name)))
		err = errors.Join(err, run.Run(context.Background(), run.Command{Argv: []string{"losetup", "--detach", device}}))
	}
	return err
}

// testPart is what one go test runs: packages of a module.
type testPart struct {
	dir, module string // absolute, and below the clone
	race        bool
	cpu         string   // the only processor that the tests may use; "" is all
	paths       []string // of the packages
}

// firstHalf lists the packages that run on the first processor under the race detector. Their
// tests take as long as those of the other packages, which run on the last processor.
//
// A program under the race detector gets one processor: on two, it interrupts the other one
// for each new page of its shadow memory. In a virtual machine, the tests of package flash
// then take 2.5 times as much CPU time.
var firstHalf = []string{"slipway/ci", "slipway/ci/fleet", "slipway/ci/suite"}

// splitTests returns the packages that narrow leaves of all modules. A package that does
// not compile is still one that must have a result.
func splitTests(ctx context.Context, root string, modules []string, narrow func([]goPackage) []goPackage, results *testResults, opts TestOptions) ([]*testPart, error) {
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
		module, err := filepath.Rel(root, dir)
		if err != nil {
			return nil, err
		}
		plain := &testPart{dir: dir, module: module}
		first, last := &testPart{dir: dir, module: module, race: true, cpu: cpus[0]}, &testPart{dir: dir, module: module, race: true, cpu: cpus[len(cpus)-1]}
		for _, p := range narrow(packages) {
			part := plain
			switch {
			case !isRaced(p.ImportPath, opts):
			case slices.Contains(firstHalf, p.ImportPath):
				part = first
			default:
				part = last
			}
			part.paths = append(part.paths, p.ImportPath)
			results.expect(module, p.ImportPath, part.race)
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

// runParts compiles all tests. Then it runs those of each processor, and those that may use
// all, side by side: while packages with boards wait, the others work.
func runParts(ctx context.Context, parts []*testPart, test goTest, opts TestOptions, results *testResults) error {
	if err := inTurn(ctx, parts, func(p *testPart) string { return strconv.FormatBool(p.race) }, (*testPart).compile); err != nil {
		return err
	}
	err := inTurn(ctx, parts, func(p *testPart) string { return p.cpu }, func(p *testPart, ctx context.Context) error {
		return p.runTests(ctx, test, opts, results)
	})
	if err == nil {
		results.missing()
	}
	return err
}

// inTurn calls do with each part. Parts of one lane are done one after another, the lanes
// side by side.
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

// runTests runs the tests of one part. Failing tests are results; the error is for what
// kept the tests from running at all.
func (p *testPart) runTests(ctx context.Context, test goTest, opts TestOptions, results *testResults) error {
	step := progress.Start(ctx, p.label(), int64(len(p.paths)), progress.Tasks)
	test.dir, test.cpu, test.args = p.dir, p.cpu, append(testArgs(opts, p.race), p.paths...)
	test.noise = results.noise
	var running running
	test.each = func(e testEvent) error {
		if results.add(p.module, e) {
			step.Add(1)
		}
		if running.note(e); e.Action != "output" {
			running.show(step)
		}
		return results.limit()
	}
	err := test.runTests(ctx)
	if failed := results.failuresOf(p.module, p.paths); err == nil && failed > 0 {
		step.End("", fmt.Errorf("%d failed", failed))
		return nil
	}
	step.End(fmt.Sprintf("%d packages", len(p.paths)), err)
	return err
}

func (p *testPart) label() string {
	label := "test " + moduleLabel(p.module)
	if p.race {
		label += fmt.Sprintf(" (race detector, processor %s)", p.cpu)
	}
	return label
}

// compile compiles the packages and their tests, on all processors. It links nothing: what is
// linked is not kept. The run itself reports what does not compile.
func (p *testPart) compile(ctx context.Context) error {
	step := progress.Start(ctx, "compile "+moduleLabel(p.module), int64(len(p.paths)), progress.Tasks)
	args := append(buildArgs(p.race), "-e", "-test", "-export")
	_, _ = run.Output(ctx, command(p.dir, append(append([]string{"go", "list"}, args...), p.paths...)...))
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

func moduleLabel(rel string) string {
	if rel == "." {
		return "slipway"
	}
	return filepath.ToSlash(rel)
}

// raceOptions sets what a program under the race detector waits before it exits: a second,
// by default. Many tests start such programs by the hundred. What GORACE says already counts.
func raceOptions() string {
	return "GORACE=" + strings.TrimSpace("atexit_sleep_ms=10 "+os.Getenv("GORACE"))
}

// testArgs returns the flags of go test. Vet is a rule of check's.
func testArgs(opts TestOptions, race bool) []string {
	args := append(buildArgs(race), "-p=1", "-vet=off", "-timeout="+testTimeout)
	if opts.Shuffle {
		args = append(args, "-shuffle=on")
	}
	if opts.Run != "" {
		args = append(args, "-run="+opts.Run)
	}
	if opts.Short {
		args = append(args, "-short")
	}
	return args
}
