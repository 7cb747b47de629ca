// Boards simulates the boards of bench fleet in a process of its own, so that their memory
// is not counted as Slipway's. It prints when they are on. After the end of its standard
// input it prints which of them hold a file that they got exactly once.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"slipway/ci/fleet/fleettest"
)

func main() {
	if err := serveBoards(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "boards:", err)
		os.Exit(1)
	}
}

// The limits of boards that nothing else ends.
var limits = fleettest.Limits{Hangs: 10 * time.Second, Slow: 20 * time.Second}

func serveBoards(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("want a folder, the numbers of boards and checks, a file's path on the boards and its digest, not %q", args)
	}
	boards, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	checks, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	f, err := fleettest.Start(context.Background(), args[0], fleettest.MixedFaults(boards), checks, limits)
	if err != nil {
		return err
	}
	defer f.Stop()
	fmt.Println("on")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	took := f.CountFiles(args[3])
	for name := range f.BoardsWithFile(args[3], args[4]) {
		if took[name] == 1 {
			fmt.Println(name)
		}
	}
	return nil
}
