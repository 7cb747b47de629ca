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
	"time"

	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// testPackages lists what the tests need of Debian.
const testPackages = "ci/test-packages.txt"

// testDir is where a test run leaves its results, below the clone.
const testDir = "build/test"

// TestOptions narrows a test run.
type TestOptions struct {
	Run     string // only tests that match, as in go test -run
	Short   bool   // skip what takes minutes
	Race    Race   // which packages are tested under the race detector
	Shuffle int64  // the seed of a random order; 0 is the usual order, with results from Go's test cache
}

// Race names the packages under Go's race detector, which doubles the CPU time of a whole run.
type Race int

const (
	RaceNone Race = iota
	RaceMost      // all but those of unraced, as CI does
	RaceAll
)

// Tests runs every test of the clone, in all of its modules, and prints one summary on w. It
// installs the tests' Debian packages, and writes junit.xml and events.jsonl to build/test.
func Tests(ctx context.Context, w io.Writer, opts TestOptions) error {
	root, err := cloneRoot()
	if err != nil {
		return err
	}
	tools, err := buildTools(ctx, root, "gotestsum")
	if err != nil {
		return err
	}
	return testClone(ctx, w, root, tools["gotestsum"], opts)
}

// testClone installs what the tests need, tests the clone at root and prints a summary. A failed
// test is an error, and so is a run without tests.
func testClone(ctx context.Context, w io.Writer, root, gotestsum string, opts TestOptions) error {
	list, err := os.ReadFile(filepath.Join(root, testPackages))
	if err != nil {
		return err
	}
	out := filepath.Join(root, testDir)
	// A run that ends early must not leave the report of an earlier run.
	if err := localfile.Remove(filepath.Join(out, "junit.xml")); err != nil {
		return err
	}
	if err := host.Ensure(ctx, w, filepath.Join(out, "packages.log"), packageNames(string(list))...); err != nil {
		return err
	}
	results, err := runModules(ctx, root, out, opts)
	if results == nil {
		return err
	}
	if opts.Shuffle != 0 {
		fmt.Fprintf(w, "random order: go test -shuffle=%d\n", opts.Shuffle)
	}
	results.writeSkips(w)
	err = errors.Join(err, printSummary(context.WithoutCancel(ctx), w, gotestsum, out))
	fmt.Fprintf(w, "%s\n%s/junit.xml  %[2]s/events.jsonl\n", results, testDir)
	return errors.Join(err, results.verdict())
}

// slowest is how many tests the summary names.
const slowest = "5"

// doneLine matches gotestsum's closing line, instead of which we print our own.
var doneLine = plaintext.Regexp(`^DONE \d+ tests`)

// printSummary has gotestsum print the slowest tests, then those that failed, of events.jsonl in
// the folder out, and write junit.xml. Failures come last, where a terminal still shows them.
func printSummary(ctx context.Context, w io.Writer, gotestsum, out string) error {
	events, line := filepath.Join(out, "events.jsonl"), func(line string) {
		if !doneLine().MatchString(line) {
			fmt.Fprintln(w, line)
		}
	}
	fmt.Fprintln(w, "slowest:")
	slow := run.Command{Argv: []string{gotestsum, "tool", "slowest", "--num=" + slowest, "--jsonfile=" + events}, Line: line}
	rest := run.Command{Argv: []string{
		gotestsum, "--raw-command", "--format=none", "--hide-summary=skipped", "--junitfile=" + filepath.Join(out, "junit.xml"), "--junitfile-project-name=slipway", "--", "cat", events,
	}, Line: line}
	return errors.Join(run.Run(ctx, slow), run.Run(ctx, rest))
}

// packageNames returns each name in test-packages.txt's text once: one a line, the reason after #.
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

// cloneRoot returns the root of the clone of Slipway around the current folder, or an error.
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

// goModules returns the folders with a go.mod, root first, without toolsFolder and skipped folders.
func goModules(root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (skipFolder(d.Name()) || path == filepath.Join(root, toolsFolder)) {
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

// skipFolder reports whether a folder has no source: build, testdata, or a name with . or _ first.
func skipFolder(name string) bool {
	return name == "build" || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

// runModules tests all modules. It returns results if the run began, also if it was cut.
func runModules(ctx context.Context, root, out string, opts TestOptions) (*testResults, error) {
	modules, err := goModules(root)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	results := &testResults{began: time.Now(), packages: map[string]*packageResult{}, skips: map[string]int{}}
	parts, err := splitTests(ctx, root, modules, results, opts)
	if err != nil {
		return nil, err
	}
	if results.events, err = os.Create(filepath.Join(out, "events.jsonl")); err != nil {
		return nil, err
	}
	err = withTempDir(func(tmp string) error { return runParts(ctx, parts, tmp, opts, results) })
	return results, errors.Join(err, results.finish(err), results.events.Close())
}

// withTempDir calls do with a folder for temporary files, and removes it with what cut tests left
// in it, also loop devices. A folder with a mount in it stays, and that is an error.
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

// makeTempDir creates the first folder of sw-0 to sw-999, in the temporary folder, that does not
// exist. Mostly it has the same name in each run: Go's test cache compares TMPDIR.
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

// detachLoops detaches loop devices over files in folders below dir, which tests that were cut left
// attached.
func detachLoops(dir string) (err error) {
	found, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is well-formed
	for _, name := range found {
		file, unread := os.ReadFile(name)
		if unread != nil || !strings.HasPrefix(string(file), dir+"/") {
			continue
		}
		if _, elsewhere := os.Stat(filepath.Dir(string(file))); elsewhere != nil {
			continue // the file is in a container that has a /tmp of its own
		}
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(name)))
		err = errors.Join(err, run.Run(context.Background(), run.Command{Argv: []string{"losetup", "--detach", device}}))
	}
	return err
}
