// Package kastest finds the real kas for tests that compare with it. It finds the kas of this
// machine, and the kas of Debian testing, which it downloads once into the user's cache.
package kastest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/run"
)

// Kas is one release of kas.
type Kas struct {
	Version string
	program []string
	env     []string
}

// ErrMissing means that this machine lacks the kas; the error says how to get it.
var ErrMissing = errors.New("kas is not here")

// Suite says which release of kas a test needs.
type Suite int

const (
	Installed Suite = iota // of this machine's own Debian
	Testing                // of Debian testing, run by this machine's Python
)

// Find returns the kas of a suite, or ErrMissing. It downloads Debian testing's once, into a cache.
func Find(ctx context.Context, from Suite) (Kas, error) {
	if from == Testing {
		return findTesting(ctx)
	}
	return findInstalled(ctx)
}

// findInstalled returns the kas in PATH, or ErrMissing.
func findInstalled(ctx context.Context) (Kas, error) {
	if _, err := exec.LookPath("kas"); err != nil {
		return Kas{}, fmt.Errorf("%w: install the Debian package kas", ErrMissing)
	}
	return Kas{program: []string{"kas"}}.withVersion(ctx)
}

// pythonPackages are the modules that kas 5 imports, with the Debian packages that have them.
var pythonPackages = map[string]string{
	"colorlog": "python3-colorlog", "distro": "python3-distro", "git": "python3-git", "jsonschema": "python3-jsonschema", "yaml": "python3-yaml",
}

// findTesting returns the kas of Debian testing, from the cache or a download.
func findTesting(ctx context.Context) (Kas, error) {
	if err := checkModules(ctx); err != nil {
		return Kas{}, err
	}
	modules, err := testingModules()
	if err != nil {
		return Kas{}, err
	}
	return Kas{
		program: []string{"/usr/bin/python3", "-c", "from kas.kas import main; main()"},
		env:     []string{"PYTHONPATH=" + modules},
	}.withVersion(ctx)
}

// TestingPackages returns the Debian packages that testing's kas needs on this machine.
func TestingPackages() []string { return append(slices.Sorted(maps.Values(pythonPackages)), "python3") }

// checkModules returns ErrMissing with the missing packages if Python lacks modules of kas.
func checkModules(ctx context.Context) error {
	const script = "import sys; from importlib.util import find_spec; print(*[m for m in sys.argv[1:] if not find_spec(m)])"
	out, err := run.Output(ctx, run.Command{Argv: append([]string{"/usr/bin/python3", "-c", script}, slices.Sorted(maps.Keys(pythonPackages))...)})
	if err != nil {
		return fmt.Errorf("%w: install the Debian package python3: %w", ErrMissing, err)
	}
	var packages []string
	for _, module := range strings.Fields(string(out)) {
		packages = append(packages, pythonPackages[module])
	}
	if len(packages) > 0 {
		return fmt.Errorf("%w: install the Debian packages %s", ErrMissing, strings.Join(packages, " "))
	}
	return nil
}

// withVersion returns k with the version that it prints.
func (k Kas) withVersion(ctx context.Context) (Kas, error) {
	out, err := run.Output(ctx, k.Command("", "--version"))
	line, _, _ := strings.Cut(string(out), "\n")
	if words := strings.Fields(line); len(words) > 1 {
		k.Version = words[1]
	}
	return k, err
}

// Variables of a user's own kas that would change what it does.
var unset = []string{"KAS_MACHINE", "KAS_DISTRO", "KAS_TARGET", "KAS_TASK", "KAS_REPO_REF_DIR", "KAS_CLONE_DEPTH", "KAS_PREMIRRORS"}

// Command returns the command that runs kas in its work folder dir, without the variables in unset.
func (k Kas) Command(dir string, args ...string) run.Command {
	argv := []string{"env"}
	for _, name := range unset {
		argv = append(argv, "-u", name)
	}
	return run.Command{
		Argv: slices.Concat(argv, k.program, args), Dir: dir,
		Env: append([]string{"KAS_WORK_DIR=" + dir, "KAS_BUILD_DIR=" + filepath.Join(dir, "build"), "PYTHONDONTWRITEBYTECODE=1"}, k.env...),
	}
}
