package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strings"
	"syscall"

	"slipway/layers/run"
)

// ErrNotRoot means that this user cannot run commands as root.
var ErrNotRoot = errors.New("not root")

// RunAsRoot prints a command to w and runs it as root, with sudo if needed. Its error is ErrNotRoot
// or ErrForbidden if this process cannot or may not do that. It shows no output.
func RunAsRoot(ctx context.Context, w io.Writer, argv []string) error {
	rights, err := rootCommand(ctx)
	if err != nil {
		return err
	}
	argv = append(rights, argv...)
	fmt.Fprintf(w, "Running:\n  %s\n", strings.Join(argv, " "))
	return run.Run(ctx, run.Command{Argv: argv})
}

// RestartInGroup replaces this process by the same command, run through sudo with the user's
// current groups: a process keeps the groups that it began with. It prints that to w. It returns
// only an error, if sudo does not allow that or the new process would not be in the group gid.
func RestartInGroup(ctx context.Context, w io.Writer, gid string) error {
	u, err := user.Current()
	if err != nil {
		return err
	}
	sudo, err := exec.LookPath("sudo")
	if err != nil {
		return fmt.Errorf("%w, and sudo is not installed", ErrNotRoot)
	}
	asUser := []string{sudo, "-n", "--preserve-env", "-u", u.Username, "--"}
	groups, err := run.Output(ctx, run.Command{Argv: append(slices.Clone(asUser), "id", "-G")})
	if err != nil || !slices.Contains(strings.Fields(string(groups)), gid) {
		return errors.Join(fmt.Errorf("%w to change the groups of a process", ErrNotRoot), err)
	}
	line, err := os.ReadFile("/proc/self/cmdline") // os.Args has changed if Mage runs this
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "Starting again, to be in the new group.")
	// sudo sets these two itself.
	argv := append(asUser, "env", "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME"))
	argv = append(argv, strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")...)
	return syscall.Exec(sudo, argv, os.Environ())
}
