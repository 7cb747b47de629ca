// Package bitbake runs the bitbake of a project's checkouts and tells what it did:
// progress while it works, a Record and a page afterwards. Its event log says what
// happens, its console text stands in where that is missing, and its exit status
// alone is the verdict. All three come from outside and are read with limits.
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
			if onDisk(filepath.Join(programs, "bitbake")) && t.Programs == "" {
				t.Programs = programs
			}
		}
		if onDisk(filepath.Join(at, "oe-init-build-env")) {
			t.Scripts = filepath.Join(at, "scripts")
		}
	}
	if t.Programs == "" {
		return t, fmt.Errorf("%s: none of its repositories holds bitbake; add poky or bitbake to repos", p.File)
	}
	return t, nil
}

func onDisk(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (t Tree) program(name string) string { return filepath.Join(t.Programs, name) }

func (t Tree) eventLog() string { return filepath.Join(t.Dir, "bitbake-events.json") }

// Log is the file that keeps all that bitbake writes while it builds.
func (t Tree) Log() string { return filepath.Join(t.Dir, "bitbake.log") }

// logOf is the log of a job. The page of the last build names Log, which a dry run
// therefore leaves alone.
func (t Tree) logOf(j Job) string {
	if j.DryRun || j.Parse {
		return filepath.Join(t.Dir, lookLogName)
	}
	return t.Log()
}

// What bitbake lets through from the environment besides its own short list and
// the project's env: how to reach servers, and how much of the machine to use.
var passed = []string{
	"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy", "SSH_AUTH_SOCK", "GIT_SSL_CAINFO",
	"BB_NUMBER_THREADS", "PARALLEL_MAKE", "BB_NO_NETWORK", "DL_DIR", "SSTATE_DIR", hashes,
}

// hashes names the folder of bitbake's database of equivalent hashes, since 2.18.
const hashes = "BB_HASHSERVE_DB_DIR"

// Environment is what oe-init-build-env would set up in a shell.
func (t Tree) Environment() []string {
	path := []string{t.Programs}
	if t.Scripts != "" {
		path = append(path, t.Scripts)
	}
	names := slices.Concat(passed, slices.Sorted(maps.Keys(t.Env)))
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
	return slices.Concat(env, t.defaults(), t.Set)
}

// defaults are variables that the user's environment may overrule. Boards share
// what was downloaded and built: both are safe to share and large.
func (t Tree) defaults() []string {
	values := map[string]string{
		"DL_DIR":     filepath.Join(filepath.Dir(t.Dir), "downloads"),
		"SSTATE_DIR": filepath.Join(filepath.Dir(t.Dir), "sstate-cache"),
	}
	for name, value := range t.Env {
		if value != nil {
			values[name] = *value
		}
	}
	// The hashes belong to what was built. bitbake ends where they would lie on NFS.
	if sstate := cmp.Or(os.Getenv("SSTATE_DIR"), values["SSTATE_DIR"]); values[hashes] == "" && !onNFS(sstate) {
		values[hashes] = sstate
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, set := os.LookupEnv(name); !set {
			env = append(env, name+"="+values[name])
		}
	}
	return env
}

// onNFS looks at the nearest folder that is there already.
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

// Version is bitbake's, "" where its source does not say.
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

// passVariable is the name of bitbake's list of variables to let through. Either
// generation stops at the other's name.
func (t Tree) passVariable() string {
	if strings.HasPrefix(t.Version(), "1.") {
		return "BB_ENV_EXTRAWHITE"
	}
	return "BB_ENV_PASSTHROUGH_ADDITIONS"
}

// Command is one of bitbake's programs in the build folder. It leaves no server where
// its context ends.
func (t Tree) Command(program string, args ...string) run.Command {
	return run.Command{Argv: append([]string{t.program(program)}, args...), Dir: t.Build, Env: t.Environment(), Stop: stopQuickly}
}

// Variable asks bitbake for the value of one of its variables. It parses the
// configuration to answer: a Record has those that Slipway itself needs.
func (t Tree) Variable(ctx context.Context, name string) (string, error) {
	if !onDisk(t.program("bitbake-getvar")) { // before 1.52
		return t.printed(ctx, name)
	}
	argv := []string{"--value"}
	for _, file := range t.Post {
		argv = append(argv, "-R", file)
	}
	out, err := run.Output(ctx, t.Command("bitbake-getvar", append(argv, name)...))
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err // notes come before the value
}

// printed finds the value in all that bitbake prints of its configuration.
func (t Tree) printed(ctx context.Context, name string) (string, error) {
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

// stopQuickly interrupts bitbake twice: the first asks it to end when its tasks
// have, the second to end now.
func stopQuickly(p *os.Process) error {
	err := p.Signal(os.Interrupt)
	// It may have ended by then; a process that was waited for gets no signal.
	time.AfterFunc(time.Second, func() { _ = p.Signal(os.Interrupt) })
	time.AfterFunc(toEnd, func() { _ = p.Kill() })
	return err
}
