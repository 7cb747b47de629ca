package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"slipway/images/cache"
	"slipway/layers"
	"slipway/layers/engine"
)

// buildWithBitbake builds a board's kas.yml. bitbake itself decides what of an
// earlier build still holds, so it runs every time.
func buildWithBitbake(ctx context.Context, spec Spec, opt Options) (Artifact, error) {
	if err := CheckHost(ctx, spec); err != nil {
		return Artifact{}, err
	}
	project, err := loadProject(ctx, spec, opt)
	if err != nil {
		return Artifact{}, err
	}
	return buildProject(ctx, spec, project, opt)
}

func buildProject(ctx context.Context, spec Spec, project layers.Project, opt Options) (Artifact, error) {
	b, err := newBitbake(opt.Ask.of(project), spec, opt)
	if err != nil {
		return Artifact{}, err
	}
	if err := layers.Checkout(ctx, project, b.workspace); err != nil {
		return Artifact{}, err
	}
	if err := layers.Configure(project, b.workspace, b.build); err != nil {
		return Artifact{}, err
	}
	if err := b.warn(ctx); err != nil {
		return Artifact{}, err
	}
	if err := b.find(); err != nil {
		return Artifact{}, err
	}
	if b.given, err = cacheFor(ctx, spec, b.project, b.programs, b.dir, b.build); err != nil {
		return Artifact{}, err
	}
	if err := b.run(ctx, opt.Ask); err != nil || opt.Ask.DryRun || opt.Ask.Parse {
		return Artifact{}, err
	}
	return b.collect(ctx, spec, len(opt.Ask.Targets)+len(opt.Ask.Task) > 0)
}

// of is the project with the targets and the task that are asked for.
func (a Ask) of(p layers.Project) layers.Project {
	if len(a.Targets) > 0 {
		p.Targets = a.Targets
	}
	if a.Task != "" {
		p.Task = a.Task
	}
	return p
}

// arguments are bitbake's. A target that looks like an option is not one.
func (a Ask) arguments(p layers.Project) []string {
	argv := []string{"-c", p.Task}
	for _, flag := range []struct {
		set  bool
		name string
	}{{a.Continue, "-k"}, {a.DryRun, "-n"}, {a.Parse, "-p"}} {
		if flag.set {
			argv = append(argv, flag.name)
		}
	}
	return slices.Concat(argv, []string{"--"}, p.Targets)
}

// bitbake is one build folder and the bitbake of its own checkouts.
type bitbake struct {
	project   layers.Project
	dir       string // of the board
	workspace layers.Workspace
	build     string // what bitbake calls TOPDIR
	programs  string // the folder that holds bitbake
	scripts   string // OpenEmbedded's; "" without it
	given     cache.Given
}

func newBitbake(project layers.Project, spec Spec, opt Options) (*bitbake, error) {
	var err error
	if opt.Dir, err = filepath.Abs(opt.Dir); err != nil {
		return nil, err
	}
	dir := opt.dir(spec)
	return &bitbake{project: project, dir: dir, workspace: opt.workspace(spec), build: filepath.Join(dir, "bitbake")}, nil
}

// workspace is where a board's layers are checked out. Boards share the mirrors.
func (o Options) workspace(s Spec) layers.Workspace {
	return layers.Workspace{Dir: filepath.Join(o.dir(s), "layers"), Mirrors: filepath.Join(o.cache(), "git")}
}

// find looks for bitbake in the checkouts: in a folder of its own, as in poky, or
// as a repository.
func (b *bitbake) find() error {
	for _, r := range b.project.Repos {
		at := b.project.Dir(b.workspace, r)
		for _, programs := range []string{filepath.Join(at, "bitbake/bin"), filepath.Join(at, "bin")} {
			if onDisk(filepath.Join(programs, "bitbake")) && b.programs == "" {
				b.programs = programs
			}
		}
		if onDisk(filepath.Join(at, "oe-init-build-env")) {
			b.scripts = filepath.Join(at, "scripts")
		}
	}
	if b.programs == "" {
		return fmt.Errorf("%s: none of its repositories holds bitbake; add poky or bitbake to repos", b.project.File)
	}
	return nil
}

func onDisk(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (b *bitbake) program(name string) string { return filepath.Join(b.programs, name) }

// run builds the project's targets. Exit status is the verdict; the console text
// only tells how far it is.
func (b *bitbake) run(ctx context.Context, ask Ask) error {
	if err := os.Remove(b.eventLog()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // bitbake appends to it
	}
	screen := newConsole(ctx)
	argv := []string{b.program("bitbake")}
	for _, file := range b.given.Post {
		argv = append(argv, "-R", file)
	}
	err := engine.Run(ctx, engine.Command{
		Argv: append(argv, ask.arguments(b.project)...),
		Dir:  b.build, Env: b.environment(), Stop: stopBitbake,
		Log: filepath.Join(b.dir, "bitbake.log"), Line: screen.line,
	})
	screen.end(err)
	return screen.explain(err)
}

func (b *bitbake) eventLog() string { return filepath.Join(b.dir, "bitbake-events.json") }

// bitbake's server and its tasks are in sessions of their own and outlive a
// SIGTERM to the command. The first interrupt asks them to finish what runs, the
// second to stop it.
func stopBitbake(p *os.Process) error {
	err := p.Signal(os.Interrupt)
	time.AfterFunc(time.Second, func() { _ = p.Signal(os.Interrupt) }) // it may have ended by then
	return err
}

// What bitbake lets through from the environment besides its own short list and
// the project's env: how to reach servers, and how much of the machine to use.
var passed = []string{
	"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy", "SSH_AUTH_SOCK", "GIT_SSL_CAINFO",
	"BB_NUMBER_THREADS", "PARALLEL_MAKE", "BB_NO_NETWORK", "DL_DIR", "SSTATE_DIR",
}

// environment is what oe-init-build-env would set up in a shell.
func (b *bitbake) environment() []string {
	path := []string{b.programs}
	if b.scripts != "" {
		path = append(path, b.scripts)
	}
	names := slices.Concat(passed, slices.Sorted(maps.Keys(b.project.Env)))
	env := []string{
		"PATH=" + strings.Join(append(path, os.Getenv("PATH")), ":"),
		"BUILDDIR=" + b.build,
		"BBPATH=" + b.build,
		"LC_ALL=en_US.UTF-8",
		"BBEVENTLOG=" + b.eventLog(),
		b.passVariable() + "=" + strings.Join(names, " "),
	}
	return slices.Concat(env, b.defaults(), b.given.Set)
}

// defaults are variables that the user's environment may overrule. Boards share
// what was downloaded and built: both are safe to share and large.
func (b *bitbake) defaults() []string {
	values := map[string]string{
		"DL_DIR":     filepath.Join(filepath.Dir(b.dir), "downloads"),
		"SSTATE_DIR": filepath.Join(filepath.Dir(b.dir), "sstate-cache"),
	}
	for name, value := range b.project.Env {
		if value != nil {
			values[name] = *value
		}
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, set := os.LookupEnv(name); !set {
			env = append(env, name+"="+values[name])
		}
	}
	return env
}

var beforeTwo = regexp.MustCompile(`(?m)^__version__ = "1\.`)

// passVariable is the name of bitbake's list of variables to let through. Either
// generation stops at the other's name.
func (b *bitbake) passVariable() string {
	source, err := os.ReadFile(filepath.Join(b.programs, "../lib/bb/__init__.py"))
	if err == nil && beforeTwo.Match(source) {
		return "BB_ENV_EXTRAWHITE"
	}
	return "BB_ENV_PASSTHROUGH_ADDITIONS"
}

// variable asks bitbake for the value of one of its variables.
func (b *bitbake) variable(ctx context.Context, name string) (string, error) {
	out, err := engine.Output(ctx, engine.Command{
		Argv: []string{b.program("bitbake-getvar"), "--value", name},
		Dir:  b.build, Env: b.environment(), Stop: stopBitbake,
	})
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err // notes come before the value
}
