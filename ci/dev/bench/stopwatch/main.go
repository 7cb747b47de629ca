// Stopwatch runs a program and appends its figures to a file: the time from before the exec
// to after the exit and the processor time, both in nanoseconds, and the peak of resident
// memory in KiB. The kernel counts the memory of the process that starts the program until
// the exec, so this program is small.
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
