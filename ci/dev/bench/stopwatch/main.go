// Stopwatch runs a program and appends to a file how long that took, from before the
// exec to after the exit, how long it was on a processor, both in nanoseconds, and its
// peak of resident memory in KiB. What the kernel says of a program's memory counts that
// of the process which started it, until the exec: so this one is small.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

func main() {
	if err := measureProgram(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "stopwatch:", err)
		os.Exit(1)
	}
}

func measureProgram(file string, argv []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if err != nil {
		return err
	}
	state := cmd.ProcessState
	peakKiB := state.SysUsage().(*syscall.Rusage).Maxrss
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = fmt.Fprintf(out, "%d %d %d\n", took, state.UserTime()+state.SystemTime(), peakKiB)
	return err
}
