//go:build mage

// Slipway builds images for Jetson boards and BlueField DPUs, puts them on boards
// and proves on the board that they work.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/images"
	"slipway/layers/host"
	"slipway/magefiles/commands"
)

// Mage finds the target, and package commands reads the line.

// line is what the user typed, without Mage's own options.
var line []string

// init checks the environment, splits the line for Mage and commands, and sets the version, but not
// in tests. It exits with 2 on an error.
func init() {
	if testing.Testing() {
		return
	}
	err := checkEnvironment()
	mages, rest := []string(nil), []string(nil)
	if err == nil {
		mages, rest, err = splitLine(slices.Clone(os.Args[1:]))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(2)
	}
	os.Args, line = append(os.Args[:1], mages...), rest
	describeSource()
}

// targets are the commands that Mage lists. Slipway runs the others.
var targets = []string{"up", "build", "flash", "deploy", "update", "smoke", "slipway", "test", "check", "fmt", "fuzz", "bench", "soak"}

// Up takes a virtual board from nothing to a report.
//
// "up --help" explains its words and flags.
func Up() error { return run() }

// Build makes a board's image, below build/<board>.
//
// "build --help" explains its words and flags.
func Build() error { return run() }

// Flash writes a board's image to a device, after showing what it would erase.
//
// "flash --help" explains its words and flags.
func Flash() error { return run() }

// Deploy gives a running board its container, files and settings.
//
// "deploy --help" explains its words and flags.
func Deploy() error { return run() }

// Update has a running board's own engine install a bundle, and proves the result.
//
// "update --help" explains its words and flags.
func Update() error { return run() }

// Smoke runs suites on a running board, and writes the report.
//
// "smoke --help" explains its words and flags.
func Smoke() error { return run() }

// Slipway runs any command of the program slipway; "slipway help" lists them.
func Slipway() error { return run() }

// Test installs what the tests lack and runs all of them.
//
// "test --help" explains its words and flags.
func Test() error { return run() }

// Check looks at the code and rewrites nothing.
//
// "check --help" explains its words and flags.
func Check() error { return run() }

// Fmt formats the code and tidies the modules.
//
// "fmt --help" explains its words and flags.
func Fmt() error { return run() }

// Fuzz runs every fuzz test for a while.
//
// "fuzz --help" explains its words and flags.
func Fuzz() error { return run() }

// Bench measures Slipway beside the tools that it replaces.
//
// "bench --help" explains its words and flags.
func Bench() error { return run() }

// Soak breaks a command at random moments and runs it again.
//
// "soak --help" explains its words and flags.
func Soak() error { return run() }

// run runs the user's line and tells the CI server of an error.
func run() error {
	err := commands.Run(context.Background(), root(), line)
	commands.TellServer(line, err, os.Stderr)
	return err
}

// splitLine splits args into Mage's words, with the target, and the user's line for package
// commands. The target slipway runs other commands. It refuses -t, and -l with others.
func splitLine(args []string) (mages, rest []string, err error) {
	for len(args) > 0 && (args[0] == "-v" || args[0] == "--v") {
		mages, args = append(mages, "-v"), args[1:]
	}
	switch {
	case len(args) == 0:
		return mages, nil, nil
	case args[0] == "-l" || args[0] == "--l":
		if len(args) > 1 {
			return nil, nil, fmt.Errorf("-l: %q is one word too many: -l takes no words\nnext: go tool mage -l", args[1])
		}
		return append(mages, "-l"), nil, nil
	case args[0] == "-t" || args[0] == "--t":
		return nil, nil, errTimeout
	case strings.EqualFold(args[0], "slipway"):
		args = args[1:]
	}
	if len(args) > 0 {
		if name := strings.ToLower(args[0]); slices.Contains(targets, name) {
			return append(mages, name), args, nil
		}
	}
	return append(mages, "slipway"), args, nil
}

var errTimeout = errors.New("mage's -t (and MAGEFILE_TIMEOUT) is refused: it ends a command half-way and does not wait for it\nnext: go tool mage -l")

// checkEnvironment refuses MAGEFILE_TIMEOUT, and unsets two variables that Mage obeys silently.
func checkEnvironment() error {
	if os.Getenv("MAGEFILE_TIMEOUT") != "" {
		return errTimeout
	}
	return errors.Join(os.Unsetenv("MAGEFILE_LIST"), os.Unsetenv("MAGEFILE_HELP"))
}

// describeSource sets the version of a program under Mage to what git says of the current clone.
func describeSource() {
	if _, err := os.Stat("magefiles/targets.go"); err == nil && host.UnderMage() {
		images.SetDescribed(describeFolder("."))
	}
}

// describeFolder returns git describe's text for a clone's top folder, with "-dirty" for changes,
// or "". It gives no text for a folder inside of another repository, such as the user's project.
func describeFolder(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GIT_DIR=") || strings.HasPrefix(v, "GIT_WORK_TREE=") })
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = dir, append(env[:len(env):len(env)], "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "GIT_OPTIONAL_LOCKS=0")
		text, err := cmd.Output()
		return strings.TrimSpace(string(text)), err
	}
	// --dirty would lock the index, and so change .git: Go takes that for new input of many tests.
	text, err := git(slices.DeleteFunc(slices.Clone(images.Describe[1:]), func(arg string) bool { return arg == "--dirty" })...)
	if err != nil {
		return ""
	}
	changed, err := git("status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return ""
	}
	if changed != "" {
		text += "-dirty"
	}
	return text
}
