// Slipway-hook adds the files that the board lists to its containers: the libraries, devices and
// links of the NVIDIA CSV files. It runs on the board, as an OCI hook.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// version is set by the linker: -X main.version=1.2.3.
var version = "dev"

// The hook moves its thread between namespaces. /proc/self describes the first thread of
// a process, so the main goroutine stays on that one.
func init() { runtime.LockOSThread() }

const usage = `slipway-hook gives containers what their board lists for them in
/etc/nvidia-container-runtime/host-files-for-container.d/*.csv

  slipway-hook hook      run as an OCI hook: reads a container's state from
                         standard input (container runtimes call this)
  slipway-hook runtime   run as an OCI runtime, before runc or crun (docker, containerd
                         and cri-o call this; also by the name slipway-runtime)
  slipway-hook cdi       write a CDI spec, for docker, podman, containerd and cri-o
  slipway-hook check     say what containers would get, and which lines of the
                         CSV files are wrong
  slipway-hook version   print the version

slipway-hook COMMAND -h says more. /etc/slipway/hook.toml has the board's settings.
`

// errUsage is an invalid command line, after its message was printed. It makes exit status 2.
var errUsage = errors.New("usage")

// errFound means that check found, and printed, entries that cannot be used.
var errFound = errors.New("found")

// main runs a command. It exits 2 for wrong usage, and 1 for other errors.
func main() {
	args := commandFor(filepath.Base(os.Args[0]), os.Args[1:])
	err := runCommand(args, os.Stdin, os.Stdout, os.Stderr)
	switch {
	case err == nil:
	case errors.Is(err, errUsage):
		os.Exit(2)
	case errors.Is(err, errFound):
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "slipway-hook:", printable(err.Error()))
		os.Exit(1)
	}
}

// commandFor returns the arguments for runCommand. As slipway-runtime, the program runs the command
// runtime. As nvidia-container-runtime-hook with the argument prestart, it runs hook.
func commandFor(name string, args []string) []string {
	switch {
	case name == runtimeName:
		return append([]string{"runtime"}, args...)
	case name == gpusName && len(args) == 1 && args[0] == "prestart":
		return []string{"hook"}
	}
	return args
}

// runCommand runs the command args[0]. Without args, or for an unknown command, it prints usage or
// an error and returns errUsage.
func runCommand(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return errUsage
	}
	switch args[0] {
	case "hook":
		return hookCommand(args[1:], stdin, stdout, stderr)
	case "runtime":
		return runtimeCommand(args[1:], stdout)
	case "cdi":
		return cdiCommand(args[1:], stdout, stderr)
	case "check":
		return checkCommand(args[1:], stdout, stderr)
	case "version", "--version":
		_, err := fmt.Fprintf(stdout, "slipway-hook %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	case "help", "-h", "-help", "--help":
		_, err := fmt.Fprint(stdout, usage)
		return err
	}
	fmt.Fprintf(stderr, "slipway-hook: unknown command %q (have hook, runtime, cdi, check, version)\n", args[0])
	return errUsage
}

// parseFlags parses a command's flags, and refuses other arguments. done: it printed help or an
// error; the command returns err.
func parseFlags(flags *flag.FlagSet, usage string, args []string, stdout, stderr io.Writer) (done bool, err error) {
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	err = flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, err = fmt.Fprint(stdout, usage)
		return true, err
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("takes no argument %q", flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "slipway-hook %s: %v\nslipway-hook %s -h says more\n", flags.Name(), err, flags.Name())
		return true, errUsage
	}
	return false, nil
}
