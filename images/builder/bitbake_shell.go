package builder

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/layers"
)

// Shell is a command to run in a board's build folder, with bitbake's environment.
type Shell struct {
	Argv []string
	Dir  string
	Env  []string
}

// NewShell checks out a board's layers, writes the configuration as a build does, and returns the
// command for the build folder: sh with the line, or the user's own shell for an empty line.
func NewShell(ctx context.Context, spec images.Spec, opt images.Options, line string) (Shell, error) {
	argv := []string{"/bin/sh", "-c", line}
	if line == "" {
		argv = []string{cmp.Or(os.Getenv("SHELL"), "/bin/sh")}
	}
	project, _, err := images.Project(ctx, spec, opt)
	if err != nil {
		return Shell{}, err
	}
	b, err := newProjectBuild(project, spec, opt)
	if err != nil {
		return Shell{}, err
	}
	if err := layers.Checkout(ctx, project, b.workspace); err != nil {
		return Shell{}, err
	}
	tree, err := bitbake.Find(ctx, project, b.workspace, b.dir, b.build)
	if err != nil {
		return Shell{}, err
	}
	if tree.Programs != "" { // without the cache bitbake would repeat what build made
		if err := useCache(ctx, spec, &tree); err != nil {
			return Shell{}, err
		}
	}
	return Shell{Argv: argv, Dir: b.build, Env: tree.Environment()}, nil
}

// Become replaces this process with the command, which gets the terminal. It returns only an error,
// and may then have changed this process's folder and PATH.
func (s Shell) Become() error {
	env := s.mergedEnvironment()
	if err := os.Chdir(s.Dir); err != nil {
		return err
	}
	for _, v := range env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil { // where the program is looked for
				return err
			}
		}
	}
	program, err := exec.LookPath(s.Argv[0])
	if err != nil {
		return err
	}
	return syscall.Exec(program, s.Argv, env)
}

// mergedEnvironment returns this process's environment, overwritten by the shell's.
func (s Shell) mergedEnvironment() []string {
	over := append([]string{"PWD=" + filepath.Clean(s.Dir)}, s.Env...)
	return (&exec.Cmd{Env: append(os.Environ(), over...)}).Environ()
}
