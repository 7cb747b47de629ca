// Package bitbake turns a project's checkouts into a build by running their bitbake. It
// reports progress while bitbake works, then writes a Record with a page. bitbake's
// event log says what happens. Its console text is read if that log is missing. Its exit
// status alone is the verdict. All three come from outside and are read with limits.
package bitbake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers"
	"slipway/layers/lazy"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Tree is one build folder and the bitbake of its own checkouts.
type Tree struct {
	Dir      string // of the board: logs and records
	Build    string // what bitbake calls TOPDIR
	Programs string // the folder that holds bitbake
	Scripts  string // OpenEmbedded's; "" without it

	Env  map[string]*string // the project's default values; nil: passed on only where set
	Set  []string           // NAME=value: overrules all others, and reaches the recipes
	Post []string           // files with configuration to read after all other (bitbake -R)
}

// Find looks for bitbake in the checkouts: in a folder of its own, as in poky, or
// as a repository.
func Find(p layers.Project, ws layers.Workspace, dir, build string) (Tree, error) {
	t := Tree{Dir: dir, Build: build, Env: p.Env}
	for _, r := range p.Repos {
		at := p.Dir(ws, r)
		for _, programs := range []string{filepath.Join(at, "bitbake/bin"), filepath.Join(at, "bin")} {
			if pathExists(filepath.Join(programs, "bitbake")) && t.Programs == "" {
				t.Programs = programs
			}
		}
		if pathExists(filepath.Join(at, "oe-init-build-env")) {
			t.Scripts = filepath.Join(at, "scripts")
		}
	}
	if t.Programs == "" {
		return t, fmt.Errorf("%s: none of its repositories holds bitbake; add poky or bitbake to repos\nnext: layers dump %s, once it is there", p.File, plaintext.Quote(p.File))
	}
	return t, nil
}

func pathExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// programPath returns the path of one of bitbake's programs.
func (t Tree) programPath(name string) string { return filepath.Join(t.Programs, name) }

func (t Tree) eventLogPath() string { return filepath.Join(t.Dir, "bitbake-events.json") }

// Log returns the file that keeps all that bitbake writes while it builds.
func (t Tree) Log() string { return filepath.Join(t.Dir, "bitbake.log") }

// logPath returns the log of a job. The page of the last build names Log, so a dry run
// has a log of its own.
func (t Tree) logPath(j Job) string {
	if j.DryRun || j.Parse {
		return filepath.Join(t.Dir, dryRunLogName)
	}
	return t.Log()
}

// passedVariables are what bitbake lets through from the environment, besides its own
// short list and the project's env. They say how to reach servers, or how much of the
// machine to use.
var passedVariables = []string{
	"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy", "SSH_AUTH_SOCK", "GIT_SSL_CAINFO",
	"BB_NUMBER_THREADS", "PARALLEL_MAKE", "BB_NO_NETWORK", "DL_DIR", "SSTATE_DIR", hashDirVariable,
}

// hashDirVariable names the folder of bitbake's database of equivalent hashes, since
// 2.18.
const hashDirVariable = "BB_HASHSERVE_DB_DIR"

// Environment returns the environment that oe-init-build-env would set up in a shell.
func (t Tree) Environment() []string {
	path := []string{t.Programs}
	if t.Scripts != "" {
		path = append(path, t.Scripts)
	}
	names := slices.Concat(passedVariables, slices.Sorted(maps.Keys(t.Env)))
	for _, set := range t.Set {
		if name, _, _ := strings.Cut(set, "="); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	env := []string{
		"PATH=" + strings.Join(append(path, os.Getenv("PATH")), ":"),
		"BUILDDIR=" + t.Build,
		"BBPATH=" + t.Build,
		"LC_ALL=en_US.UTF-8",
		t.passVariable() + "=" + strings.Join(names, " "),
	}
	return slices.Concat(env, t.defaultEnv(), t.Set)
}

// defaultEnv returns the variables that the user's environment may overrule. Boards
// share downloads and shared state: both are safe to share and large.
func (t Tree) defaultEnv() []string {
	values := map[string]string{
		"DL_DIR":     filepath.Join(filepath.Dir(t.Dir), "downloads"),
		"SSTATE_DIR": filepath.Join(filepath.Dir(t.Dir), "sstate-cache"),
	}
	for name, value := range t.Env {
		if value != nil {
			values[name] = *value
		}
	}
	// The hashes belong to what was built. bitbake refuses to start if they are on NFS.
	if sstate := cmp.Or(os.Getenv("SSTATE_DIR"), values["SSTATE_DIR"]); values[hashDirVariable] == "" && !onNFS(sstate) {
		values[hashDirVariable] = sstate
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, set := os.LookupEnv(name); !set {
			env = append(env, name+"="+values[name])
		}
	}
	return env
}

// onNFS reports whether dir, or its nearest existing parent, is on NFS.
func onNFS(dir string) bool {
	var fs unix.Statfs_t
	err := unix.Statfs(dir, &fs)
	for errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		err = unix.Statfs(dir, &fs)
	}
	return err == nil && fs.Type == unix.NFS_SUPER_MAGIC
}

var versionLine = lazy.Regexp(`(?m)^__version__ = "([0-9][0-9A-Za-z.]{0,20})"`)

// Version returns bitbake's version, "" if its source does not tell it.
func (t Tree) Version() string {
	source, err := os.ReadFile(filepath.Join(t.Programs, "../lib/bb/__init__.py"))
	if err != nil {
		return ""
	}
	if m := versionLine().FindSubmatch(source); m != nil {
		return string(m[1])
	}
	return ""
}

// passVariable returns the name of bitbake's list of variables to let through. Each
// generation of bitbake refuses the other's name.
func (t Tree) passVariable() string {
	if strings.HasPrefix(t.Version(), "1.") {
		return "BB_ENV_EXTRAWHITE"
	}
	return "BB_ENV_PASSTHROUGH_ADDITIONS"
}

// Command returns the command line of one of bitbake's programs in the build folder. It
// leaves no server behind when its context ends.
func (t Tree) Command(program string, args ...string) run.Command {
	return run.Command{Argv: append([]string{t.programPath(program)}, args...), Dir: t.Build, Env: t.Environment(), Stop: stopQuickly}
}

// Variable returns the value of one of bitbake's variables. bitbake parses the
// configuration for it: a Record has the variables that Slipway itself needs.
func (t Tree) Variable(ctx context.Context, name string) (string, error) {
	if !pathExists(t.programPath("bitbake-getvar")) { // before 1.52
		return t.variableFromDump(ctx, name)
	}
	argv := []string{"--value"}
	for _, file := range t.Post {
		argv = append(argv, "-R", file)
	}
	out, err := run.Output(ctx, t.Command("bitbake-getvar", append(argv, name)...))
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err // notes come before the value
}

// variableFromDump finds the value in bitbake's printed configuration (bitbake -e).
func (t Tree) variableFromDump(ctx context.Context, name string) (string, error) {
	argv := []string{"-e"}
	for _, file := range t.Post {
		argv = append(argv, "-R", file)
	}
	out, err := run.Output(ctx, t.Command("bitbake", argv...))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(out)) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+`="`); found {
			return strings.TrimSuffix(value, `"`), nil
		}
	}
	return "", errors.New("bitbake -e does not print " + name)
}

// stopQuickly interrupts bitbake twice: the first lets its tasks finish, the second
// ends it now.
func stopQuickly(p *os.Process) error {
	err := p.Signal(os.Interrupt)
	// It may have ended by then; a process that was waited for gets no signal.
	time.AfterFunc(time.Second, func() { _ = p.Signal(os.Interrupt) })
	time.AfterFunc(termTimeout, func() { _ = p.Kill() })
	return err
}
