// Simulated is slipway whose "fleet smoke" simulates boards that are folders. Soaks and benchmarks of
// hubs run it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"slipway/ci/dev/lab"
	"slipway/ci/dev/soak"
	"slipway/magefiles/commands"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if dir, simulated := lab.SimulatedBoard(args); simulated {
		return lab.Work(dir)
	}
	if len(args) < 2 || args[0] != soak.HubInside {
		return commands.Main(args, os.Stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := soak.RunHubInside(ctx, os.Stdout, args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return 0
}
