// Package bitbake turns a project's checkouts into a build by running their bitbake. It reports
// progress while bitbake works, then writes a Record with a page. Progress comes from bitbake's
// event log. Failures that the log lacks are read in the console text. Only bitbake's exit status
// decides whether the build succeeded. All three come from outside and are read with limits.
package bitbake

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
	"slipway/layers/yaml"
)

// Tree is one build folder with the bitbake from its own checkouts.
type Tree struct {
	Dir      string // of the board: logs and records
	Build    string // what bitbake calls TOPDIR
	Programs string // the folder with bitbake; "" if only a shell is possible

	Env    map[string]*string // the project's default values; nil: passed on only where set
	Set    []string           // NAME=value: overrules all others, and reaches the recipes
	Pre    string             // a file with configuration to read before all other; "" without one
	Shared string             // the folder of downloads and shared state by default; "" is that around Dir

	project string            // the project file
	sourced map[string]string // what the checkouts' own script set; nil without a script
}

// Find returns the Tree of a project: the bitbake in its checkouts, and the environment that their
// init script sets. Find runs that script, so conf/ must exist: otherwise the script writes conf/
// from its own templates. Without script and bitbake it returns an error.
func Find(ctx context.Context, p layers.Project, ws layers.Workspace, boardDir, buildDir string) (Tree, error) {
	t := Tree{Dir: boardDir, Build: buildDir, Env: p.Env, project: p.File}
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
	if t.sourced, err = sourceScript(ctx, script, buildDir, bitbake); err == nil {
		t.Programs = cmp.Or(addedProgramDir(t.sourced["PATH"]), t.Programs)
	}
	return t, err
}

// findPrograms returns the folder with bitbake's programs, "" if there is none. It looks where
// OpenEmbedded's script looks, then in each checkout and its folder bitbake, as poky has.
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
		if localfile.Exists(filepath.Join(programs, "bitbake")) {
			return programs
		}
	}
	return ""
}

// CheckPrograms returns an error with the next step if the checkouts hold no bitbake.
func (t Tree) CheckPrograms() error {
	if t.Programs != "" {
		return nil
	}
	return fmt.Errorf("%s: %wnone of its repositories holds bitbake; add poky or bitbake to repos\nnext: layers dump %s  # after adding it", t.project, yaml.ErrProject, plaintext.Quote(t.project))
}

// programPath returns the path of one of bitbake's programs.
func (t Tree) programPath(name string) string { return filepath.Join(t.Programs, name) }

func (t Tree) eventLogPath() string { return filepath.Join(t.Dir, "bitbake-events.json") }

// Log returns the path of the log of bitbake's console text.
func (t Tree) Log() string { return filepath.Join(t.Dir, "bitbake.log") }

// logPath returns a job's log: Log, to which a build's page links, or that of a dry run or parse.
func (t Tree) logPath(j Job) string {
	if j.DryRun || j.Parse {
		return filepath.Join(t.Dir, dryRunLogName)
	}
	return t.Log()
}

// onNFS reports whether dir, or its nearest existing parent, is on NFS.
func onNFS(dir string) bool {
	var fs unix.Statfs_t
	err := unix.Statfs(localfile.NearestFolder(filepath.Join(dir, "x")), &fs)
	return err == nil && fs.Type == unix.NFS_SUPER_MAGIC
}

var versionLine = plaintext.Regexp(`(?m)^__version__ = "([0-9][0-9A-Za-z.]{0,20})"`)

// Version returns the version in bitbake's source, "" if it has none.
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

// Command returns the command of a bitbake program in the build folder. No server outlives its ctx.
func (t Tree) Command(program string, args ...string) run.Command {
	return run.Command{Argv: append([]string{t.programPath(program)}, args...), Dir: t.Build, Env: t.Environment(), Stop: stopQuickly}
}

// Variables runs bitbake -e and returns the named variables as the target sees them, or as the
// configuration sets them if target is "". A target may belong to a multiconfig (mc:NAME:TARGET).
// Variables that are not set are left out.
func (t Tree) Variables(ctx context.Context, target string, names ...string) (map[string]string, error) {
	argv := []string{"-e"}
	if target != "" {
		argv = append(argv, target)
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

// stopQuickly interrupts bitbake twice and returns after the first: that one lets bitbake's tasks
// finish, the one a second later breaks them off. Then it kills a bitbake that still runs.
func stopQuickly(p *os.Process) error {
	err := p.Signal(os.Interrupt)
	// It may have ended by then; a process that was waited for gets no signal.
	time.AfterFunc(time.Second, func() { _ = p.Signal(os.Interrupt) })
	time.AfterFunc(termTimeout, func() { _ = p.Kill() })
	return err
}
