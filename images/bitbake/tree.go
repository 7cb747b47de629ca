// Package bitbake turns a project's checkouts into a build by running their bitbake. It reports
// progress while bitbake works, then writes a Record with a page. Progress comes from bitbake's
// event log. Failures that the log lacks are read in the console text. Only bitbake's exit status
// decides whether the build succeeded. All three come from outside and are read with limits.
package bitbake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Tree is one build folder and the bitbake of its own checkouts.
type Tree struct {
	Dir      string // of the board: logs and records
	Build    string // what bitbake calls TOPDIR
	Programs string // the folder with bitbake; "" if only a shell is possible

	Env  map[string]*string // the project's default values; nil: passed on only where set
	Set  []string           // NAME=value: overrules all others, and reaches the recipes
	Post []string           // files with configuration to read after all other (bitbake -R)

	project string            // the project file
	sourced map[string]string // what the checkouts' own script set; nil without a script
}

// Find looks for bitbake in the checkouts, and for the script that sets up its
// environment. It runs the script: conf/ must be written before, or the script writes
// one from its own templates.
func Find(ctx context.Context, p layers.Project, ws layers.Workspace, dir, build string) (Tree, error) {
	t := Tree{Dir: dir, Build: build, Env: p.Env, project: p.File}
	script, err := findInitScript(p, ws)
	if err != nil {
		return t, err
	}
	t.Programs = findPrograms(p, ws, script)
	if script == "" {
		return t, t.CheckPrograms()
	}
	var bitbake string // if the script need not look for it
	if t.Programs != "" {
		bitbake = filepath.Dir(t.Programs)
	}
	if t.sourced, err = sourceScript(ctx, script, build, bitbake); err == nil {
		t.Programs = cmp.Or(addedPrograms(t.sourced["PATH"]), t.Programs)
	}
	return t, err
}

// findPrograms looks for bitbake in the places where OpenEmbedded's script looks, then in the other
// checkouts: in a folder of its own, as in poky, or as a repository. It returns "" if there is
// none.
func findPrograms(p layers.Project, ws layers.Workspace, script string) string {
	var places []string
	if script != "" {
		places = []string{filepath.Join(filepath.Dir(script), "bitbake/bin"), filepath.Join(filepath.Dir(script), "../bitbake/bin")}
	}
	for _, r := range p.Repos {
		at := p.Dir(ws, r)
		places = append(places, filepath.Join(at, "bitbake/bin"), filepath.Join(at, "bin"))
	}
	for _, programs := range places {
		if pathExists(filepath.Join(programs, "bitbake")) {
			return programs
		}
	}
	return ""
}

// CheckPrograms returns an error if there is no bitbake.
func (t Tree) CheckPrograms() error {
	if t.Programs != "" {
		return nil
	}
	return fmt.Errorf("%s: none of its repositories holds bitbake; add poky or bitbake to repos\nnext: layers dump %s  # after adding it", t.project, plaintext.Quote(t.project))
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

var versionLine = plaintext.Regexp(`(?m)^__version__ = "([0-9][0-9A-Za-z.]{0,20})"`)

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

// Command returns the command line of one of bitbake's programs in the build folder. It
// leaves no server behind when its context ends.
func (t Tree) Command(program string, args ...string) run.Command {
	return run.Command{Argv: append([]string{t.programPath(program)}, args...), Dir: t.Build, Env: t.Environment(), Stop: stopQuickly}
}

// Variable returns the value of one of bitbake's variables. bitbake parses the
// configuration for it: a Record has the variables that Slipway itself needs.
func (t Tree) Variable(ctx context.Context, name string) (string, error) {
	if !pathExists(t.programPath("bitbake-getvar")) { // before 1.52
		values, err := t.Variables(ctx, "", name)
		return values[name], err
	}
	argv := []string{"--value"}
	for _, file := range t.Post {
		argv = append(argv, "-R", file)
	}
	out, err := run.Output(ctx, t.Command("bitbake-getvar", append(argv, name)...))
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err // notes come before the value
}

// Variables returns variables as bitbake has them for a target, which may be of another
// configuration (mc:NAME:TARGET), or without a target. What is not set is left out.
func (t Tree) Variables(ctx context.Context, target string, names ...string) (map[string]string, error) {
	argv := []string{"-e"}
	if target != "" {
		argv = append(argv, target)
	}
	for _, file := range t.Post {
		argv = append(argv, "-R", file)
	}
	out, err := run.Output(ctx, t.Command("bitbake", argv...))
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, found := strings.Cut(strings.TrimSpace(line), `="`)
		if name = strings.TrimPrefix(name, "export "); found && slices.Contains(names, name) {
			values[name] = strings.TrimSuffix(value, `"`)
		}
	}
	return values, nil
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
